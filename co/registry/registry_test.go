package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a registry over dir and returns its address.
func serve(t *testing.T, dir string) (address string, stop func()) {
	t.Helper()
	h, err := NewHandler(dir, Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	stop = sync.OnceFunc(s.Close)
	t.Cleanup(stop)
	return strings.TrimPrefix(s.URL, "http://"), stop
}

// client returns a Client that knows the registry at address as registry.colony.
func client(t *testing.T, address string) *ociclient.Client {
	t.Helper()
	c := ociclient.New(ociclient.Options{
		Hosts: map[string]string{"registry.colony": address}, Timeout: 20 * time.Second,
		Transport: http.DefaultTransport.(*http.Transport).Clone(),
	})
	t.Cleanup(c.Close)
	return c
}

func tag(t *testing.T, address, ref string) name.Reference {
	t.Helper()
	r, err := name.ParseReference(address + "/" + ref)
	must(t, err)
	return r
}

func options(t *testing.T) []remote.Option {
	t.Helper()
	tr := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(tr.CloseIdleConnections)
	return []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(tr)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestart pushes an image, an index, and an artifact that refers to the image,
// with go-containerregistry, and finds all of them after a restart.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir, opts := t.TempDir(), options(t)
	address, stop := serve(t, dir)
	img, err := random.Image(100_000, 3)
	must(t, err)
	index, err := random.Index(1000, 2, 2)
	must(t, err)
	must(t, remote.Write(tag(t, address, "apps/one:1.0.0"), img, opts...))
	must(t, remote.Write(tag(t, address, "apps/one:2.0.0"), img, opts...))
	must(t, remote.WriteIndex(tag(t, address, "apps/one/deep:1"), index, opts...))
	subject, err := remote.Head(tag(t, address, "apps/one:1.0.0"), opts...)
	must(t, err)
	sbom := mutate.Subject(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "text/sbom"), *subject).(v1.Image)
	must(t, remote.Write(tag(t, address, "apps/one:sbom"), sbom, opts...))
	stop()

	address, _ = serve(t, dir)
	got, err := remote.Image(tag(t, address, "apps/one:1.0.0"), opts...)
	must(t, err)
	must(t, validate.Image(got))
	wantDigest, err := img.Digest()
	must(t, err)
	if d, err := got.Digest(); err != nil || d != wantDigest {
		t.Errorf("digest = %v, %v; want %v", d, err, wantDigest)
	}
	gotIndex, err := remote.Index(tag(t, address, "apps/one/deep:1"), opts...)
	must(t, err)
	must(t, validate.Index(gotIndex))
	tags, err := remote.List(tag(t, address, "apps/one").Context(), opts...)
	must(t, err)
	if diff := cmp.Diff([]string{"1.0.0", "2.0.0", "sbom"}, tags); diff != "" {
		t.Error(diff)
	}
	reg, err := name.NewRegistry(address)
	must(t, err)
	repos, err := remote.Catalog(t.Context(), reg, opts...)
	must(t, err)
	if diff := cmp.Diff([]string{"apps/one", "apps/one/deep"}, repos); diff != "" {
		t.Error(diff)
	}
	refs, err := remote.Referrers(tag(t, address, "apps/one:1.0.0").Context().Digest(wantDigest.String()), opts...)
	must(t, err)
	m, err := refs.IndexManifest()
	must(t, err)
	if len(m.Manifests) != 1 || m.Manifests[0].ArtifactType != "text/sbom" {
		t.Errorf("referrers = %+v", m.Manifests)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	opts := options(t)
	address, _ := serve(t, t.TempDir())
	img, err := random.Image(1000, 1)
	must(t, err)
	for _, v := range []string{"1", "2", "3"} {
		must(t, remote.Write(tag(t, address, "app:"+v), img, opts...))
	}
	must(t, remote.Delete(tag(t, address, "app:1"), opts...))
	if _, err := remote.Head(tag(t, address, "app:1"), opts...); err == nil {
		t.Error("a deleted tag is still there")
	}
	d, err := remote.Head(tag(t, address, "app:2"), opts...)
	must(t, err)
	must(t, remote.Delete(tag(t, address, "app@"+d.Digest.String()), opts...))
	tags, err := remote.List(tag(t, address, "app").Context(), opts...)
	must(t, err)
	if len(tags) != 0 {
		t.Errorf("tags = %v, want none: their manifest was deleted", tags)
	}
}

// do sends one request and returns the status, headers and body of the answer.
func do(t *testing.T, method, url string, body []byte, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, resp.Header, string(b)
}

func pushBlob(t *testing.T, address, repo string, content []byte) protocol.Digest {
	t.Helper()
	d := protocol.DigestOf(content)
	status, _, body := do(t, "POST", "http://"+address+"/v2/"+repo+"/blobs/uploads/?digest="+string(d), content)
	if status != http.StatusCreated {
		t.Fatalf("push blob: %d %s", status, body)
	}
	return d
}

func TestBlobRanges(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	d := pushBlob(t, address, "a/b", []byte("0123456789"))
	url := "http://" + address + "/v2/a/b/blobs/" + string(d)
	tests := []struct {
		header string
		status int
		body   string
	}{
		{"", 200, "0123456789"},
		{"bytes=3-", 206, "3456789"},
		{"bytes=3-4", 206, "34"},
		{"bytes=-2", 206, "89"},
		{"bytes=0-99", 206, "0123456789"},
		{"bytes=10-", 416, "invalid range: failed to overlap\n"},
	}
	for _, tt := range tests {
		status, h, body := do(t, "GET", url, nil, "Range", tt.header)
		if status != tt.status || body != tt.body || (status < 300 && h.Get("Docker-Content-Digest") != string(d)) {
			t.Errorf("Range %q: %d %q %v, want %d %q", tt.header, status, body, h, tt.status, tt.body)
		}
	}
	if status, h, body := do(t, "HEAD", url, nil); status != 200 || h.Get("Content-Length") != "10" || body != "" {
		t.Errorf("HEAD: %d %v", status, h)
	}
}

func TestUploadInPartsAcrossRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address, stop := serve(t, dir)
	status, h, _ := do(t, "POST", "http://"+address+"/v2/a/blobs/uploads/", nil)
	if status != http.StatusAccepted {
		t.Fatalf("POST: %d", status)
	}
	location := h.Get("Location")
	if status, _, body := do(t, "PATCH", "http://"+address+location, []byte("hello "), "Content-Range", "0-5"); status != http.StatusAccepted {
		t.Fatalf("PATCH: %d %s", status, body)
	}
	stop()
	address, _ = serve(t, dir)
	status, h, _ = do(t, "GET", "http://"+address+location, nil)
	if status != http.StatusNoContent || h.Get("Range") != "0-5" {
		t.Errorf("state after the restart: %d %v", status, h)
	}
	if status, _, _ := do(t, "PATCH", "http://"+address+location, []byte("x"), "Content-Range", "3-3"); status != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a part at a wrong place: %d, want 416", status)
	}
	d := protocol.DigestOf([]byte("hello world"))
	status, _, body := do(t, "PUT", "http://"+address+location+"?digest="+string(d), []byte("world"), "Content-Range", "6-10")
	if status != http.StatusCreated {
		t.Fatalf("PUT: %d %s", status, body)
	}
	if _, _, got := do(t, "GET", "http://"+address+"/v2/a/blobs/"+string(d), nil); got != "hello world" {
		t.Errorf("blob = %q", got)
	}
}

func TestServerRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address, _ := serve(t, dir)
	d := string(pushBlob(t, address, "a", []byte("x")))
	missing := string(protocol.DigestOf([]byte("missing")))
	const media = "application/vnd.oci.image.manifest.v1+json"
	manifest := func(digest string) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"config":{"mediaType":"x","digest":%q,"size":1},"layers":[]}`, digest)
	}
	tests := map[string]struct {
		method, path string
		body         []byte
		status       int
		code         string
	}{
		"digest mismatch":  {"POST", "a/blobs/uploads/?digest=" + missing, []byte("other"), 400, "DIGEST_INVALID"},
		"blob unknown":     {"GET", "a/blobs/" + missing, nil, 404, "BLOB_UNKNOWN"},
		"bad digest":       {"GET", "a/blobs/sha256:zz", nil, 400, "DIGEST_INVALID"},
		"bad name":         {"GET", "A/b/tags/list", nil, 400, "NAME_INVALID"},
		"escape":           {"GET", "%2e%2e/%2e%2e/manifests/x", nil, 400, "NAME_INVALID"},
		"hidden name":      {"GET", "_tags/manifests/x", nil, 400, "NAME_INVALID"},
		"bad tag":          {"PUT", "a/manifests/..", manifest(d), 400, "TAG_INVALID"},
		"tag unknown":      {"GET", "a/manifests/9", nil, 404, "MANIFEST_UNKNOWN"},
		"repo unknown":     {"GET", "none/tags/list", nil, 404, "NAME_UNKNOWN"},
		"blob missing":     {"PUT", "a/manifests/1", manifest(missing), 400, "MANIFEST_BLOB_UNKNOWN"},
		"not JSON":         {"PUT", "a/manifests/1", []byte("{"), 400, "MANIFEST_INVALID"},
		"other digest":     {"PUT", "a/manifests/" + missing, manifest(d), 400, "DIGEST_INVALID"},
		"upload unknown":   {"PATCH", "a/blobs/uploads/aaaaaaaaaaaaaaaaaaaaaaaaaa", nil, 404, "BLOB_UPLOAD_UNKNOWN"},
		"upload elsewhere": {"PATCH", "a/blobs/uploads/..", nil, 404, "BLOB_UPLOAD_UNKNOWN"},
		"method":           {"POST", "a/manifests/1", nil, 405, "UNSUPPORTED"},
		"too large":        {"PUT", "a/manifests/1", make([]byte, maxManifest+1), 413, "MANIFEST_INVALID"},
	}
	for name, tt := range tests {
		status, _, body := do(t, tt.method, "http://"+address+"/v2/"+tt.path, tt.body, "Content-Type", media)
		if status != tt.status || !strings.Contains(body, `"code":"`+tt.code+`"`) {
			t.Errorf("%s: %d %s; want %d %s", name, status, body, tt.status, tt.code)
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "uploads"))
	must(t, err)
	if len(left) != 0 {
		t.Errorf("a refused upload was left behind: %v", left)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	for _, v := range []string{"1", "2", "3"} {
		_, err := c.PushImage(t.Context(), "registry.colony/app:"+v, image.Image{Files: map[string]archive.File{"/x": {Content: []byte(v)}}})
		must(t, err)
	}
	_, h, body := do(t, "GET", "http://"+address+"/v2/app/tags/list?n=2", nil)
	if body != `{"name":"app","tags":["1","2"]}`+"\n" || h.Get("Link") != `</v2/app/tags/list?last=2&n=2>; rel="next"` {
		t.Errorf("first page: %s %v", body, h["Link"])
	}
	_, h, body = do(t, "GET", "http://"+address+"/v2/app/tags/list?last=2&n=2", nil)
	if body != `{"name":"app","tags":["3"]}`+"\n" || h.Get("Link") != "" {
		t.Errorf("last page: %s %v", body, h["Link"])
	}
}

func TestOldUploadsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, err := NewHandler(dir, Limits{}, nil)
	must(t, err)
	life := h.limits.UploadLife
	must(t, os.WriteFile(filepath.Join(dir, "uploads", "old"), nil, 0o600))
	must(t, h.removeOldUploads(time.Now().Add(life-time.Hour)))
	if _, err := os.Stat(filepath.Join(dir, "uploads", "old")); err != nil {
		t.Errorf("a young upload was removed: %v", err)
	}
	must(t, h.removeOldUploads(time.Now().Add(life+time.Hour)))
	if _, err := os.Stat(filepath.Join(dir, "uploads", "old")); err == nil {
		t.Error("an old upload was kept")
	}
}

func TestConcurrentPushes(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, t.TempDir())
	c := client(t, address)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			_, err := c.PushImage(context.WithoutCancel(t.Context()), fmt.Sprintf("registry.colony/app:%d", n%4),
				image.Image{Files: map[string]archive.File{"/same": {Content: []byte("same")}}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	tags, err := c.Tags(t.Context(), "registry.colony/app")
	must(t, err)
	if len(tags) != 4 {
		t.Errorf("tags = %v", tags)
	}
}

var sampleComponent = fstest.MapFS{
	"compose.yaml":    {Data: []byte("services: {}\n")},
	"conf/nginx.conf": {Data: []byte("x\n")},
}
