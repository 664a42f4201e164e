package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/protocol"
)

func TestArchive(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	tgz, err := archive.Build("hello", sampleComponent)
	must(t, err)
	const repository = "oci://registry.colony/samples/compose/hello"
	first, err := c.PushArchive(ctx, repository, "1.0.0", tgz)
	must(t, err)
	second, err := c.PushArchive(ctx, repository, "1.0.0", tgz)
	must(t, err)
	if first != second {
		t.Errorf("equal archives have digests %s and %s", first, second)
	}
	got, digest, err := c.Archive(ctx, repository, "1.0.0")
	must(t, err)
	if !bytes.Equal(got, tgz) || digest != protocol.DigestOf(tgz) {
		t.Errorf("archive of %d bytes with digest %s, want %d with %s", len(got), digest, len(tgz), protocol.DigestOf(tgz))
	}
	if diff := cmp.Diff([]string{"hello/", "hello/compose.yaml", "hello/conf/", "hello/conf/nginx.conf"}, entries(t, got)); diff != "" {
		t.Error(diff)
	}
	if _, _, err := c.Archive(ctx, repository, "2.0.0"); protocol.KindOf(err) != protocol.NotFound || !strings.Contains(err.Error(), repository+":2.0.0") {
		t.Errorf("unknown revision: %v, want not_found with the reference", err)
	}
	if _, err := archive.Build("hello", fstest.MapFS{"docker-compose.yml": {}}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("archive without compose.yaml: %v, want invalid", err)
	}
	link := t.TempDir()
	must(t, os.WriteFile(filepath.Join(link, "compose.yaml"), nil, 0o600))
	must(t, os.Symlink("/etc/passwd", filepath.Join(link, "passwd")))
	if _, err := archive.Build("hello", os.DirFS(link)); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("archive with a symbolic link: %v, want invalid", err)
	}
}

func entries(t *testing.T, tgz []byte) []string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(tgz))
	must(t, err)
	var names []string
	r := tar.NewReader(zip)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		if h.Uid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s has owner %d and time %s", h.Name, h.Uid, h.ModTime)
		}
		names = append(names, h.Name)
	}
}

// TestArchiveManifest holds the rules of Margo 1.0.0-rc.3 for the artifact.
func TestArchiveManifest(t *testing.T) {
	t.Parallel()
	good := func() *artifact.Manifest {
		return &artifact.Manifest{ArtifactType: artifact.ComposeKind, Layers: []artifact.Descriptor{{
			MediaType: artifact.ComposeMedia, Annotations: map[string]string{artifact.TypeAnnotation: "compose", artifact.VersionAnnotation: "1.0.0"},
		}}}
	}
	tests := map[string]struct {
		change func(m *artifact.Manifest)
		want   string
	}{
		"annotations on the layer": {func(*artifact.Manifest) {}, ""},
		"annotations on the manifest": {func(m *artifact.Manifest) {
			m.Annotations, m.Layers[0].Annotations = m.Layers[0].Annotations, nil
		}, ""},
		"no annotations": {func(m *artifact.Manifest) { m.Layers[0].Annotations = nil }, "annotation org.margo.component."},
		"other version":  {func(m *artifact.Manifest) { m.Layers[0].Annotations[artifact.VersionAnnotation] = "2.0.0" }, `is "2.0.0", want "1.0.0"`},
		"other version on both": {func(m *artifact.Manifest) {
			m.Layers[0].Annotations[artifact.VersionAnnotation] = "2.0.0"
			m.Annotations = map[string]string{artifact.VersionAnnotation: "2.0.0"}
		}, `is "2.0.0", want "1.0.0"`},
		"contradiction":  {func(m *artifact.Manifest) { m.Annotations = map[string]string{artifact.TypeAnnotation: "helm"} }, `"compose" on the layer and "helm" on the manifest`},
		"other artifact": {func(m *artifact.Manifest) { m.ArtifactType = "application/x" }, "artifact type"},
		"two layers":     {func(m *artifact.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }, "2 layers"},
		"no layer":       {func(m *artifact.Manifest) { m.Layers = nil }, "0 layers"},
		"other layer":    {func(m *artifact.Manifest) { m.Layers[0].MediaType = "text/plain" }, "layer of type"},
	}
	for name, tt := range tests {
		m := good()
		tt.change(m)
		err := artifact.CheckArchive(m, "1.0.0")
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

const samplePackage = `apiVersion: v1
id: hello
metadata:
  name: Hello
  version: "1.0.0"
  catalog:
    application:
      descriptionFile: ./resources/description.md
    organization:
      - name: Colony
deploymentProfiles:
  - type: compose
    id: hello-compose
    components:
      - name: hello
        properties:
          repository: oci://registry.colony/samples/compose/hello
          revision: 1.0.0
`

func TestPackage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	pkg := fstest.MapFS{
		"margo.yaml":               {Data: []byte(samplePackage)},
		"resources/description.md": {Data: []byte("# Hello\n")},
		"notes.txt":                {Data: []byte("not named in the catalog")},
	}
	pushed, err := c.PushPackage(ctx, "oci://registry.colony/apps/hello", pkg)
	must(t, err)
	files, digest := pull(t, c, "oci://registry.colony/apps/hello:1.0.0")
	want := map[string][]byte{"margo.yaml": []byte(samplePackage), "resources/description.md": []byte("# Hello\n")}
	if diff := cmp.Diff(want, files); diff != "" || digest != pushed {
		t.Errorf("digest %s, want %s; files (-want +got):\n%s", digest, pushed, diff)
	}
	if _, err := c.PushPackage(ctx, "oci://registry.colony/apps/hello:2.0.0", pkg); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a tag that is not the version: %v, want invalid", err)
	}
	tgz, err := archive.Build("hello", sampleComponent)
	must(t, err)
	_, err = c.PushArchive(ctx, "oci://registry.colony/apps/archive", "1.0.0", tgz)
	must(t, err)
	if _, err := c.Package(ctx, "oci://registry.colony/apps/archive:1.0.0", t.TempDir()); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("an archive as a package: %v, want invalid", err)
	}
}

// A resource without a title is the file that the description names for its kind; an
// artifact with another config than the empty one is something that runs.
func TestPackageOfAnotherTool(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	a := artifact.Artifact{Kind: artifact.PackageKind, Layers: []artifact.Layer{
		{Media: artifact.DescriptionMedia, Content: []byte(samplePackage)},
		{Media: artifact.PackageMedia + "descriptionFile.v1+markdown", Content: []byte("# Hello\n")},
		{Media: artifact.PackageMedia + "x.v1+png", Annotations: map[string]string{artifact.ResourceMark: "icon"}, Content: []byte("unused")},
	}}
	_, err := c.PushArtifact(t.Context(), "oci://registry.colony/apps/hello:1.0.0", a)
	must(t, err)
	files, _ := pull(t, c, "oci://registry.colony/apps/hello:1.0.0")
	want := map[string][]byte{"margo.yaml": []byte(samplePackage), "resources/description.md": []byte("# Hello\n")}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	config := artifact.Describe(artifact.EmptyMedia, artifact.EmptyConfig)
	other := artifact.Describe("application/vnd.oci.image.config.v1+json", artifact.EmptyConfig)
	full := artifact.Describe(artifact.EmptyMedia, []byte(`{"a":1}`))
	for name, tt := range map[string]struct {
		config *artifact.Descriptor
		want   string
	}{"empty": {&config, ""}, "none": {nil, "no config"}, "an image's": {&other, "want the empty one"}, "full": {&full, "7 bytes"}} {
		if err := artifact.CheckConfig(&artifact.Manifest{Config: tt.config}); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if _, err := artifact.FileOf(artifact.Descriptor{MediaType: artifact.PackageMedia + "icon.v1+png", Annotations: map[string]string{artifact.ResourceMark: "logo", artifact.TitleAnnotation: "a"}}); err == nil {
		t.Error("a kind of resource that does not exist was accepted")
	}
}

func TestPackageLayers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		media, title, want string
		refused            bool
	}{
		"description":     {artifact.DescriptionMedia, "margo.yaml", "margo.yaml", false},
		"resource":        {artifact.PackageMedia + "icon.v1+jpeg", "./resources/icon.jpg", "resources/icon.jpg", false},
		"outside":         {artifact.PackageMedia + "icon.v1+jpeg", "../icon.jpg", "", true},
		"absolute":        {artifact.PackageMedia + "icon.v1+jpeg", "/etc/passwd", "", true},
		"no title":        {artifact.PackageMedia + "icon.v1+jpeg", "", "", false}, // the description says its path
		"nothing known":   {artifact.PackageMedia + "logo.v1+jpeg", "", "", true},
		"second document": {artifact.PackageMedia + "icon.v1+jpeg", "margo.yaml", "", true},
		"foreign layer":   {"text/plain", "a", "", true},
	}
	for name, tt := range tests {
		got, err := artifact.FileOf(artifact.Descriptor{MediaType: tt.media, Annotations: map[string]string{artifact.TitleAnnotation: tt.title}})
		if got != tt.want || (err != nil) != tt.refused {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	build := func(arch string) image.Image {
		return image.Image{
			Architecture: arch, Entrypoint: []string{"/app"}, Env: []string{"A=b"}, Ports: []string{"8080/tcp"}, User: "65534",
			Files: map[string]archive.File{"/app": {Mode: 0o755, Content: []byte("binary for " + arch)}, "/etc/ssl/ca.pem": {Mode: 0o644}},
		}
	}
	const ref = "registry.colony/samples/hello"
	one, err := c.PushImage(ctx, ref+":1.0.0", build("amd64"))
	must(t, err)
	again, err := c.PushImage(ctx, ref+":again", build("amd64"))
	must(t, err)
	if one != again {
		t.Errorf("equal images have digests %s and %s", one, again)
	}
	index, err := c.PushImage(ctx, ref+":multi", build("amd64"), build("arm64"))
	must(t, err)
	for tagged, want := range map[string]protocol.Digest{":1.0.0": one, ":multi": index} {
		if got, err := c.Image(ctx, ref+tagged); err != nil || got != ref+"@"+string(want) {
			t.Errorf("Image(%s) = %s, %v; want digest %s", ref+tagged, got, err, want)
		}
	}
	img, err := remote.Image(tag(t, address, "samples/hello:multi"), append(options(t), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))...)
	must(t, err)
	must(t, validate.Image(img))
	config, err := img.ConfigFile()
	must(t, err)
	if config.Architecture != "arm64" || !cmp.Equal(config.Config.Entrypoint, []string{"/app"}) || config.Config.User != "65534" {
		t.Errorf("configuration = %+v", config)
	}
}

func TestImageErrors(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, stop := serve(t, t.TempDir())
	c := client(t, address)
	pinned := "registry.colony/x@" + string(protocol.DigestOf(nil))
	denying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer denying.Close()
	tests := map[string]struct {
		ref  string
		kind protocol.Kind
	}{
		"no such image": {"registry.colony/none:1", protocol.NotFound},
		"no reference":  {"registry.colony/UPPER:1", protocol.Invalid},
		"denied":        {strings.TrimPrefix(denying.URL, "http://") + "/x:1", protocol.Denied},
	}
	if _, err := c.Image(ctx, pinned); protocol.KindOf(err) != protocol.NotFound || !strings.Contains(err.Error(), "skopeo copy docker://SOURCE docker://ADDRESS-OF-THE-CO/x@sha256:") {
		t.Errorf("pinned, and not there: %v, want not found, and how it is pushed", err)
	}
	for name, tt := range tests {
		if _, err := c.Image(ctx, tt.ref); protocol.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.ref) {
			t.Errorf("%s: %v, want %s with the reference", name, err, tt.kind)
		}
	}
	stop()
	if _, err := c.Image(ctx, "registry.colony/none:1"); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("registry away: %v, want unavailable", err)
	}
	if _, err := c.Image(ctx, pinned); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("own registry away, pinned: %v, want unavailable", err)
	}
	hub := "nginx@" + string(protocol.DigestOf(nil))
	if got, err := c.Image(ctx, hub); err != nil || got != "docker.io/library/"+hub {
		t.Errorf("Image(%s) = %q, %v", hub, got, err)
	}
}

// TestDigestIsChecked serves an archive whose bytes are not those of its digest.
func TestDigestIsChecked(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	address, _ := serve(t, dir)
	c := client(t, address)
	tgz, err := archive.Build("hello", sampleComponent)
	must(t, err)
	_, err = c.PushArchive(ctx, "oci://registry.colony/a", "1.0.0", tgz)
	must(t, err)
	blob := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(string(protocol.DigestOf(tgz)), "sha256:"))
	tgz[20] ^= 1
	must(t, os.WriteFile(blob, tgz, 0o600))
	if _, _, err := c.Archive(ctx, "oci://registry.colony/a", "1.0.0"); err == nil {
		t.Error("an archive with another digest was accepted")
	}
}

// The check of an image is read from its config, of an index from its first image.
func TestHealth(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	push := func(name string, check *v1.HealthConfig) string {
		img, err := mutate.Config(empty.Image, v1.Config{Healthcheck: check})
		must(t, err)
		must(t, remote.Write(tag(t, address, name+":1"), img, options(t)...))
		index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
		must(t, remote.WriteIndex(tag(t, address, name+":index"), index, options(t)...))
		return "registry.colony/" + name
	}
	for name, tt := range map[string]struct {
		check *v1.HealthConfig
		want  *protocol.Health
	}{
		"none":     {nil, nil},
		"disabled": {&v1.HealthConfig{Test: []string{"NONE"}}, nil},
		"program": {
			&v1.HealthConfig{Test: []string{"CMD", "/ok", "-v"}, Interval: 2 * time.Second, Timeout: time.Microsecond, StartPeriod: time.Minute, Retries: 4},
			&protocol.Health{Command: []string{"/ok", "-v"}, IntervalMillis: 2000, TimeoutMillis: 1, StartPeriodMillis: 60000, Retries: 4},
		},
		"shell": {&v1.HealthConfig{Test: []string{"CMD-SHELL", "ok || exit 1"}}, &protocol.Health{Command: []string{"/bin/sh", "-c", "ok || exit 1"}}},
	} {
		repository := push(name, tt.check)
		for _, tag := range []string{":1", ":index"} {
			got, err := c.Health(t.Context(), repository+tag)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%s%s: %v (-want +got):\n%s", name, tag, err, diff)
			}
		}
	}
	if _, err := c.Health(t.Context(), "registry.colony/absent:1"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("an image that is not there: %v", err)
	}
}
