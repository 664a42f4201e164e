package registry

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/protocol"
)

// pull fetches a package and returns its files.
func pull(t *testing.T, c *ociclient.Client, ref string) (map[string][]byte, protocol.Digest) {
	t.Helper()
	dir := t.TempDir()
	digest, err := c.Package(t.Context(), ref, dir)
	must(t, err)
	files := map[string][]byte{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[p], err = fs.ReadFile(os.DirFS(dir), p)
		return err
	}))
	return files, digest
}

// A package is bounded as a whole, before any of it is fetched; its parts are what their
// digests and sizes say.
func TestPackageIsBounded(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	const ref = "oci://registry.colony/apps/hello:1.0.0"
	manifest := func(layers ...artifact.Descriptor) *artifact.Manifest {
		config := artifact.Describe(artifact.EmptyMedia, artifact.EmptyConfig)
		return &artifact.Manifest{ArtifactType: artifact.PackageKind, Config: &config, Layers: layers}
	}
	description := artifact.Describe(artifact.DescriptionMedia, []byte(samplePackage))
	resource := func(n int, size int64) artifact.Descriptor {
		d := artifact.Describe(artifact.PackageMedia+"icon.v1+png", []byte{byte(n)})
		d.Size, d.Annotations = size, map[string]string{artifact.TitleAnnotation: fmt.Sprintf("resources/%d", n)}
		return d
	}
	large := []artifact.Descriptor{description}
	for n := range 5 {
		large = append(large, resource(n, artifact.MaxFile))
	}
	huge := description
	huge.Size = artifact.MaxDescription + 1
	for name, tt := range map[string]struct {
		m    *artifact.Manifest
		want string
	}{
		"in all":      {manifest(large...), "more than 268435456 bytes in all"},
		"one":         {manifest(description, resource(1, artifact.MaxFile+1)), "resources/1 has 67108865 bytes"},
		"negative":    {manifest(description, resource(1, -1)), "has -1 bytes"},
		"description": {manifest(huge), "margo.yaml has 1048577 bytes"},
	} {
		if _, _, err := artifact.Files(tt.m); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	// A registry that sends more than it says.
	must(t, func() error {
		_, err := c.PushArtifact(t.Context(), ref, artifact.Artifact{Kind: artifact.PackageKind, Layers: []artifact.Layer{{Media: artifact.DescriptionMedia, Content: []byte(samplePackage)}}})
		return err
	}())
	blob := "/blobs/" + string(protocol.DigestOf([]byte(samplePackage)))
	lying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, blob) {
			_, _ = w.Write([]byte(samplePackage + "# more"))
			return
		}
		http.Redirect(w, r, "http://"+address+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(lying.Close)
	_, err := client(t, strings.TrimPrefix(lying.URL, "http://")).Package(t.Context(), ref, t.TempDir())
	if protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), ref[len("oci://"):]) {
		t.Errorf("a blob that is longer than its size: %v", err)
	}
}

// A path of a package that leads through another of its files has no place.
func TestPackageWithPathsThatClash(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	const ref = "oci://registry.colony/apps/hello:1.0.0"
	_, err := c.PushArtifact(t.Context(), ref, artifact.Artifact{Kind: artifact.PackageKind, Layers: []artifact.Layer{
		{Media: artifact.DescriptionMedia, Content: []byte(samplePackage)},
		{Media: artifact.PackageMedia + "icon.v1+png", Annotations: map[string]string{artifact.TitleAnnotation: "margo.yaml/icon.png"}, Content: []byte("x")},
	}})
	must(t, err)
	if _, err := c.Package(t.Context(), ref, t.TempDir()); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "margo.yaml/icon.png") {
		t.Errorf("%v, want invalid with the path", err)
	}
}

// What Allow refuses is never asked, by whatever path a reference comes.
func TestOnlyAllowedRegistriesAreAsked(t *testing.T) {
	t.Parallel()
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked++; w.WriteHeader(http.StatusNotFound) }))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	c := ociclient.New(ociclient.Options{Timeout: 20 * time.Second, Allow: func(h string) error {
		return protocol.Errorf(protocol.Denied, "not %s", h)
	}})
	t.Cleanup(c.Close)
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"package": func() error { _, err := c.Package(ctx, "oci://"+host+"/a:1", t.TempDir()); return err },
		"tags":    func() error { _, err := c.Tags(ctx, "oci://"+host+"/a"); return err },
		"archive": func() error { _, _, err := c.Archive(ctx, "oci://"+host+"/a", "1.0.0"); return err },
		"image":   func() error { _, err := c.Image(ctx, host+"/a:1"); return err },
		"push":    func() error { _, err := c.PushArchive(ctx, "oci://"+host+"/a", "1.0.0", nil); return err },
		"image pushed": func() error {
			_, err := c.PushImage(ctx, host+"/a:1", image.Image{})
			return err
		},
	} {
		if err := call(); protocol.KindOf(err) != protocol.Denied || err.Error() != "not "+host {
			t.Errorf("%s: %v, want denied", name, err)
		}
	}
	if _, err := c.Image(ctx, "nodered/node-red"); err == nil || err.Error() != "not docker.io" {
		t.Errorf("an image of Docker Hub: %v", err)
	}
	if got, err := c.Image(ctx, host+"/a@"+string(protocol.DigestOf(nil))); err != nil || got == "" {
		t.Errorf("an image by its digest is not looked up: %q, %v", got, err)
	}
	if asked != 0 {
		t.Errorf("the registry was asked %d times", asked)
	}
}
