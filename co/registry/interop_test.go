package registry

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/protocol"
)

// skopeo runs Skopeo, which speaks no TLS to a test registry.
func skopeo(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Fatal("skopeo is missing: install it with scripts/setup --with-test-peers")
	}
	cmd := exec.CommandContext(t.Context(), "skopeo", append([]string{"--insecure-policy"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("skopeo %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// What Colony pushes other tools read whole, and what they push it reads: packages and
// Compose archives go to another registry by Skopeo, and into memory by ORAS.
func TestInterop(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first, _ := serve(t, t.TempDir())
	second, _ := serve(t, t.TempDir())
	tgz, err := archive.Build("hello", sampleComponent)
	must(t, err)
	pkg := fstest.MapFS{"margo.yaml": {Data: []byte(samplePackage)}, "resources/description.md": {Data: []byte("# Hello\n")}}
	from, to := client(t, first), client(t, second)
	pushed, err := from.PushPackage(ctx, "registry.colony/apps/hello", pkg)
	must(t, err)
	component, err := from.PushArchive(ctx, "oci://registry.colony/compose/hello", "1.0.0", tgz)
	must(t, err)

	dir := t.TempDir()
	for _, repository := range []string{"apps/hello", "compose/hello"} {
		layout := "oci:" + filepath.Join(dir, strings.ReplaceAll(repository, "/", "-")) + ":1.0.0"
		skopeo(t, "copy", "--src-tls-verify=false", "docker://"+first+"/"+repository+":1.0.0", layout)
		skopeo(t, "copy", "--dest-tls-verify=false", layout, "docker://"+second+"/"+repository+":1.0.0")
	}
	files, digest := pull(t, to, "oci://registry.colony/apps/hello:1.0.0")
	if diff := cmp.Diff(map[string][]byte{"margo.yaml": []byte(samplePackage), "resources/description.md": []byte("# Hello\n")}, files); diff != "" || digest != pushed {
		t.Errorf("the package by way of Skopeo has digest %s, want %s; files (-want +got):\n%s", digest, pushed, diff)
	}
	if got, _, err := to.Archive(ctx, "oci://registry.colony/compose/hello", "1.0.0"); err != nil || !bytes.Equal(got, tgz) {
		t.Errorf("the archive by way of Skopeo: %d bytes, %v, want %d", len(got), err, len(tgz))
	}
	var manifest struct{ ArtifactType string }
	must(t, json.Unmarshal([]byte(skopeo(t, "inspect", "--raw", "--tls-verify=false", "docker://"+second+"/apps/hello:1.0.0")), &manifest))
	if manifest.ArtifactType != artifact.PackageKind {
		t.Errorf("artifact type as Skopeo reads it: %q, want %s", manifest.ArtifactType, artifact.PackageKind)
	}

	for repository, want := range map[string]protocol.Digest{"apps/hello": pushed, "compose/hello": component} {
		r, err := remote.NewRepository(second + "/" + repository)
		must(t, err)
		r.PlainHTTP = true
		got, err := oras.Copy(ctx, r, "1.0.0", memory.New(), "1.0.0", oras.DefaultCopyOptions)
		if err != nil || string(got.Digest) != string(want) {
			t.Errorf("%s by ORAS: digest %s, %v, want %s", repository, got.Digest, err, want)
		}
	}
}

// A package that ORAS made, without Colony, is read.
func TestPackageOfORAS(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := serve(t, t.TempDir())
	store := memory.New()
	layers := packOf(t, store)
	made, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, artifact.PackageKind, oras.PackManifestOptions{Layers: layers})
	must(t, err)
	must(t, store.Tag(ctx, made, "1.0.0"))
	r, err := remote.NewRepository(address + "/apps/hello")
	must(t, err)
	r.PlainHTTP = true
	_, err = oras.Copy(ctx, store, "1.0.0", r, "1.0.0", oras.DefaultCopyOptions)
	must(t, err)
	files, digest := pull(t, client(t, address), "oci://registry.colony/apps/hello:1.0.0")
	if len(files) != 2 || string(digest) != string(made.Digest) {
		t.Errorf("files %v, digest %s, want 2 and %s", files, digest, made.Digest)
	}
}

// packOf puts the files of a package into a store, as its layers.
func packOf(t *testing.T, store *memory.Store) []ocispec.Descriptor {
	t.Helper()
	var layers []ocispec.Descriptor
	for _, l := range []struct{ media, title, content string }{
		{artifact.DescriptionMedia, artifact.DescriptionFile, samplePackage},
		{artifact.PackageMedia + "descriptionFile.v1+markdown", "resources/description.md", "# Hello\n"},
	} {
		d, err := oras.PushBytes(t.Context(), store, l.media, []byte(l.content))
		must(t, err)
		d.Annotations = map[string]string{artifact.TitleAnnotation: l.title}
		layers = append(layers, d)
	}
	return layers
}

// Credentials go to the registry that they are of, under the name that references have.
func TestCredentials(t *testing.T) {
	t.Parallel()
	h, err := NewHandler(t.TempDir(), Limits{}, nil)
	must(t, err)
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:secret"))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	connect := func(password string) *ociclient.Client {
		c := ociclient.New(ociclient.Options{
			Hosts: map[string]string{"registry.colony": strings.TrimPrefix(s.URL, "http://")}, Timeout: 20 * time.Second,
			Credentials: func(host string) (string, string, error) {
				if host != "registry.colony" {
					t.Errorf("credentials of %s were asked for", host)
				}
				return "ann", password, nil
			},
		})
		t.Cleanup(c.Close)
		return c
	}
	if _, err := connect("secret").PushArchive(t.Context(), "oci://registry.colony/a", "1.0.0", []byte("x")); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	_, err = connect("wrong").PushArchive(t.Context(), "oci://registry.colony/a", "1.0.0", []byte("x"))
	if protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), "wants other credentials") {
		t.Errorf("with a wrong password: %v, want denied", err)
	}
}

// A tag that names something else is kept, and the same content pushed again changes nothing.
func TestKeepTags(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": address}, KeepTags: true, Timeout: 20 * time.Second})
	t.Cleanup(c.Close)
	push := func(c *ociclient.Client, content string) (protocol.Digest, error) {
		return c.PushArchive(t.Context(), "oci://registry.colony/a", "1.0.0", []byte(content))
	}
	first, err := push(c, "one")
	must(t, err)
	if again, err := push(c, "one"); err != nil || again != first {
		t.Errorf("the same again: %s, %v, want %s", again, err, first)
	}
	if _, err := push(c, "two"); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), "give this one another number") {
		t.Errorf("other content: %v, want a conflict", err)
	}
	if got, err := c.Image(t.Context(), "registry.colony/a:1.0.0"); err != nil || !strings.HasSuffix(got, string(first)) {
		t.Errorf("the tag: %s, %v, want %s", got, err, first)
	}
	if second, err := push(client(t, address), "two"); err != nil || second == first {
		t.Errorf("a client that replaces tags: %s, %v", second, err)
	}
}

// A registry that says nothing of its tags to a client that may push has none replaced; one that
// denies what is not there yet is pushed to.
func TestKeepTagsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		denied func(r *http.Request, pushed bool) bool
		want   protocol.Kind
	}{
		"denied":             {func(r *http.Request, _ bool) bool { return r.Method == http.MethodHead }, protocol.Denied},
		"denied while empty": {func(r *http.Request, pushed bool) bool { return r.Method == http.MethodHead && !pushed }, ""},
	} {
		h, err := NewHandler(t.TempDir(), Limits{}, nil)
		must(t, err)
		var pushed atomic.Bool
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") && c.denied(r, pushed.Load()) {
				http.Error(w, "", http.StatusForbidden)
				return
			}
			pushed.Store(pushed.Load() || r.Method == http.MethodPost)
			h.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Close)
		push := func(keep bool, content string) error {
			client := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": strings.TrimPrefix(s.URL, "http://")}, KeepTags: keep, Timeout: 20 * time.Second})
			t.Cleanup(client.Close)
			_, err := client.PushArchive(t.Context(), "oci://registry.colony/a", "1.0.0", []byte(content))
			return err
		}
		if c.want == protocol.Denied {
			must(t, push(false, "one"))
		}
		if err := push(true, "two"); protocol.KindOf(err) != c.want && (err != nil || c.want != "") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.want == protocol.Denied {
			reader := client(t, strings.TrimPrefix(s.URL, "http://"))
			b, _, err := reader.Archive(t.Context(), "oci://registry.colony/a", "1.0.0")
			if err != nil || string(b) != "one" {
				t.Errorf("%s: the tag has %q, %v", name, b, err)
			}
		}
	}
}
