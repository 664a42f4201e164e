package registry

import (
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
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/colonyfleet/colony/co/registry/storage/files"
	"github.com/colonyfleet/colony/protocol"
)

// status is that of the answer to a request for /v2/ and path.
func status(t *testing.T, address, method, path string) int {
	t.Helper()
	code, _, _ := do(t, method, "http://"+address+"/v2/"+path, nil)
	return code
}

// pushManifest stores an image manifest of these blobs under the tag 1.
func pushManifest(t *testing.T, address, repo string, blobs ...protocol.Digest) protocol.Digest {
	t.Helper()
	layers := make([]string, len(blobs))
	for i, d := range blobs {
		layers[i] = fmt.Sprintf(`{"mediaType":"x","digest":%q,"size":1}`, d)
	}
	body := []byte(`{"schemaVersion":2,"layers":[` + strings.Join(layers, ",") + `]}`)
	code, _, said := do(t, "PUT", "http://"+address+"/v2/"+repo+"/manifests/1", body, "Content-Type", "application/vnd.oci.image.manifest.v1+json")
	if code != http.StatusCreated {
		t.Fatalf("push manifest: %d %s", code, said)
	}
	return protocol.DigestOf(body)
}

// TestBlobsAreOfTheirRepository attacks the blobs of one repository through another.
func TestBlobsAreOfTheirRepository(t *testing.T) {
	t.Parallel()
	opts := options(t)
	address, _ := serve(t, t.TempDir())
	img, err := random.Image(1000, 2)
	must(t, err)
	must(t, remote.Write(tag(t, address, "plant/web:1"), img, opts...))
	layers, err := img.Layers()
	must(t, err)
	d, err := layers[0].Digest()
	must(t, err)
	for _, method := range []string{"GET", "HEAD", "DELETE"} {
		if code := status(t, address, method, "somebody/else/blobs/"+d.String()); code != http.StatusNotFound {
			t.Errorf("%s through another repository: %d, want 404", method, code)
		}
	}
	if code := status(t, address, "POST", "somebody/else/blobs/uploads/?mount="+d.String()); code != http.StatusAccepted {
		t.Errorf("mount from nowhere: %d, want 202: an upload", code)
	}
	if code := status(t, address, "POST", "somebody/else/blobs/uploads/?from=third/one&mount="+d.String()); code != http.StatusAccepted {
		t.Errorf("mount from a repository that has it not: %d, want 202: an upload", code)
	}
	if code := status(t, address, "POST", "somebody/else/blobs/uploads/?from=plant/web&mount="+d.String()); code != http.StatusCreated {
		t.Errorf("mount: %d, want 201", code)
	}
	if code := status(t, address, "DELETE", "somebody/else/blobs/"+d.String()); code != http.StatusAccepted {
		t.Errorf("DELETE of a mounted blob: %d, want 202", code)
	}
	if code := status(t, address, "GET", "somebody/else/blobs/"+d.String()); code != http.StatusNotFound {
		t.Errorf("GET after DELETE: %d, want 404", code)
	}
	got, err := remote.Image(tag(t, address, "plant/web:1"), opts...)
	must(t, err)
	if err := validate.Image(got); err != nil {
		t.Errorf("the image of the other repository: %v", err)
	}
}

// onDisk is where a file of a registry in a directory lies.
func onDisk(h *Handler, file string) string { return h.store.(*files.Dir).Path(file) }

// handler opens a registry whose garbage collection the test runs.
func handler(t *testing.T, dir string, limits Limits) (*Handler, string) {
	t.Helper()
	h, err := NewHandler(dir, limits, nil)
	must(t, err)
	return h, serving(t, h)
}

// serving returns the address of a registry.
func serving(t *testing.T, h *Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestCleanRemovesWhatNothingNames(t *testing.T) {
	t.Parallel()
	t.Run("of a directory", func(t *testing.T) {
		t.Parallel()
		h, address := handler(t, t.TempDir(), Limits{})
		removesWhatNothingNames(t, h, address)
	})
	t.Run("of a bucket", func(t *testing.T) {
		t.Parallel()
		h := bucket(t)[0]
		removesWhatNothingNames(t, h, serving(t, h))
	})
}

func removesWhatNothingNames(t *testing.T, h *Handler, address string) {
	named, shared, orphan := pushBlob(t, address, "a", []byte("named")), pushBlob(t, address, "a", []byte("shared")), pushBlob(t, address, "a", []byte("orphan"))
	pushBlob(t, address, "b", []byte("shared"))
	ofA, ofB := pushManifest(t, address, "a", named, shared), pushManifest(t, address, "b", shared)
	there := func(d protocol.Digest) bool { there, err := h.there(blobPath(d)); must(t, err); return there }
	late := time.Now().Add(h.limits.UploadLife + time.Hour)

	must(t, h.Clean(t.Context(), time.Now()))
	if !there(orphan) {
		t.Error("a blob that was just pushed was removed: its manifest may follow")
	}
	must(t, h.Clean(t.Context(), late))
	if there(orphan) || status(t, address, "HEAD", "a/blobs/"+string(orphan)) != http.StatusNotFound {
		t.Error("a blob that no manifest names was kept")
	}
	for _, d := range []protocol.Digest{named, shared, ofA, ofB} {
		if !there(d) {
			t.Errorf("%s was removed though it is named", d)
		}
	}
	if code := status(t, address, "DELETE", "a/manifests/"+string(ofA)); code != http.StatusAccepted {
		t.Fatalf("DELETE manifest: %d", code)
	}
	must(t, h.Clean(t.Context(), late))
	if there(named) || there(ofA) {
		t.Error("what a deleted manifest named was kept")
	}
	if !there(shared) || status(t, address, "GET", "b/blobs/"+string(shared)) != http.StatusOK || status(t, address, "GET", "a/blobs/"+string(shared)) != http.StatusNotFound {
		t.Error("a shared blob is not exactly where it is still named")
	}
}

// TestCleanBesidePushes pushes and deletes images while garbage is collected again and
// again with no patience, by the same process and by another one: what a manifest names is there whenever it is there.
func TestCleanBesidePushes(t *testing.T) {
	t.Parallel()
	t.Run("of one process", func(t *testing.T) {
		t.Parallel()
		h, address := handler(t, t.TempDir(), Limits{})
		cleanBesidePushes(t, h, 0, address)
	})
	t.Run("of two processes", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		_, a := handler(t, dir, Limits{})
		h, b := handler(t, dir, Limits{})
		cleanBesidePushes(t, h, 0, a, b)
	})
	t.Run("of two processes with a bucket", func(t *testing.T) {
		t.Parallel()
		handlers := bucket(t)
		// The times of objects are whole seconds.
		cleanBesidePushes(t, handlers[1], 2*time.Second, serving(t, handlers[0]), serving(t, handlers[1]))
	})
}

// cleanBesidePushes has h collect whatever nothing names and is older than an age, and clients push to one address, and look at another.
func cleanBesidePushes(t *testing.T, h *Handler, age time.Duration, addresses ...string) {
	ctx, stop := context.WithCancel(t.Context())
	var cleaning sync.WaitGroup
	cleaning.Go(func() {
		for ctx.Err() == nil {
			if err := h.collect(ctx, time.Now().Add(-age)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	manifest := func(d protocol.Digest) string {
		return fmt.Sprintf(`{"schemaVersion":2,"layers":[{"mediaType":"x","digest":%q,"size":1}]}`, d)
	}
	var pushing sync.WaitGroup
	for n := range 3 {
		pushing.Go(func() {
			repo := fmt.Sprintf("r%d", n)
			for i := range 25 {
				address, other := addresses[0], addresses[(n+i)%len(addresses)]
				content := fmt.Appendf(nil, "blob %d", i%2)
				d := protocol.DigestOf(content)
				for { // a client begins again where the registry asks for a blob once more
					pushBlob(t, address, repo, content)
					code, _, body := do(t, "PUT", "http://"+address+"/v2/"+repo+"/manifests/1", []byte(manifest(d)), "Content-Type", "application/vnd.oci.image.manifest.v1+json")
					if code == http.StatusCreated {
						break
					}
					if !strings.Contains(body, "MANIFEST_BLOB_UNKNOWN") {
						t.Errorf("PUT manifest: %d %s", code, body)
						return
					}
				}
				for _, path := range []string{"/blobs/" + string(d), "/manifests/1"} {
					if code := status(t, other, "GET", repo+path); code != http.StatusOK {
						t.Errorf("GET %s%s beside a garbage collection: %d", repo, path, code)
					}
				}
				if code := status(t, other, "DELETE", repo+"/manifests/"+string(protocol.DigestOf([]byte(manifest(d))))); code != http.StatusAccepted {
					t.Errorf("DELETE: %d", code)
				}
			}
		})
	}
	pushing.Wait()
	stop()
	cleaning.Wait()
}

// TestCrashBetweenBlobAndLink leaves a blob as a crash does: it belongs to no repository, and is
// removed.
func TestCrashBetweenBlobAndLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, address := handler(t, dir, Limits{})
	d := protocol.DigestOf([]byte("x"))
	must(t, os.WriteFile(onDisk(h, blobPath(d)), []byte("x"), 0o600))
	if code := status(t, address, "GET", "a/blobs/"+string(d)); code != http.StatusNotFound {
		t.Errorf("GET: %d, want 404", code)
	}
	must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
	if _, err := os.Stat(onDisk(h, blobPath(d))); err == nil {
		t.Error("the blob was kept")
	}
	pushBlob(t, address, "a", []byte("x"))
	if code := status(t, address, "GET", "a/blobs/"+string(d)); code != http.StatusOK {
		t.Errorf("GET after a push: %d", code)
	}
}

// TestDirectoryWithoutLinks opens a directory that a version without links wrote.
func TestDirectoryWithoutLinks(t *testing.T) {
	t.Parallel()
	dir, opts := t.TempDir(), options(t)
	address, stop := serve(t, dir)
	img, err := random.Image(1000, 2)
	must(t, err)
	index, err := random.Index(1000, 1, 2)
	must(t, err)
	must(t, remote.Write(tag(t, address, "plant/web:1"), img, opts...))
	must(t, remote.WriteIndex(tag(t, address, "plant/web/many:1"), index, opts...))
	stop()
	must(t, os.Remove(filepath.Join(dir, "linked")))
	links, err := filepath.Glob(filepath.Join(dir, "repositories", "plant", "web", "_blobs"))
	must(t, err)
	more, err := filepath.Glob(filepath.Join(dir, "repositories", "plant", "web", "many", "_blobs"))
	must(t, err)
	if links = append(links, more...); len(links) != 2 {
		t.Fatalf("links are in %v", links)
	}
	for _, l := range links {
		must(t, os.RemoveAll(l))
	}
	h, address := handler(t, dir, Limits{})
	must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
	got, err := remote.Image(tag(t, address, "plant/web:1"), opts...)
	must(t, err)
	must(t, validate.Image(got))
	many, err := remote.Index(tag(t, address, "plant/web/many:1"), opts...)
	must(t, err)
	must(t, validate.Index(many))
}

func TestUploadsAreBounded(t *testing.T) {
	t.Parallel()
	h, address := handler(t, t.TempDir(), Limits{BlobBytes: 10, Uploads: 2})
	url := "http://" + address + "/v2/a/blobs/uploads/"
	large := []byte("eleven byte")
	for name, body := range map[string]io.Reader{"known": strings.NewReader(string(large)), "unknown": io.MultiReader(strings.NewReader(string(large)))} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"?digest="+string(protocol.DigestOf(large)), body)
		must(t, err)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		said, err := io.ReadAll(resp.Body)
		must(t, err)
		must(t, resp.Body.Close())
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(said), "SIZE_INVALID") {
			t.Errorf("a blob over the limit, its length %s: %s %s", name, resp.Status, said)
		}
	}
	_, head, _ := do(t, "POST", url, nil)
	first := head.Get("Location")
	if code, _, _ := do(t, "PATCH", "http://"+address+first, []byte("123456")); code != http.StatusAccepted {
		t.Errorf("first part: %d", code)
	}
	if code, _, _ := do(t, "PATCH", "http://"+address+first, []byte("78901")); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a part past the limit: %d, want 413", code)
	}
	for range 2 {
		if code, _, _ := do(t, "POST", url, nil); code != http.StatusAccepted {
			t.Errorf("POST: %d", code)
		}
	}
	if code, _, body := do(t, "POST", url, nil); code != http.StatusTooManyRequests || !strings.Contains(body, "TOOMANYREQUESTS") {
		t.Errorf("an upload past the limit: %d %s, want 429", code, body)
	}
	old := time.Now().Add(-h.limits.IdleUpload - time.Minute)
	entries, err := os.ReadDir(onDisk(h, "uploads"))
	must(t, err)
	must(t, os.Chtimes(onDisk(h, "uploads/"+entries[0].Name()), old, old))
	if code, _, body := do(t, "POST", url, nil); code != http.StatusAccepted {
		t.Errorf("an upload in the place of an idle one: %d %s, want 202", code, body)
	}
	if entries, err = os.ReadDir(onDisk(h, "uploads")); err != nil || len(entries) != 2 {
		t.Errorf("uploads: %v %v, want 2", entries, err)
	}
	must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
	if entries, err = os.ReadDir(onDisk(h, "uploads")); err != nil || len(entries) != 0 {
		t.Errorf("uploads after their life: %v %v, want none", entries, err)
	}
}
