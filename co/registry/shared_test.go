package registry

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/colonyfleet/colony/protocol"
)

// replicas returns the addresses of two registries that share a directory, as two processes do.
func replicas(t *testing.T) (a, b string) {
	t.Helper()
	dir := t.TempDir()
	_, a = handler(t, dir, Limits{})
	_, b = handler(t, dir, Limits{})
	return a, b
}

// TestReplicas uses two registries in turn, as a load balancer does.
func TestReplicas(t *testing.T) {
	t.Parallel()
	t.Run("of one directory", func(t *testing.T) {
		t.Parallel()
		a, b := replicas(t)
		inTurn(t, a, b)
	})
	t.Run("of one bucket", func(t *testing.T) {
		t.Parallel()
		handlers := bucket(t)
		inTurn(t, serving(t, handlers[0]), serving(t, handlers[1]))
	})
}

func inTurn(t *testing.T, a, b string) {
	img, err := random.Image(100_000, 3)
	must(t, err)
	must(t, remote.Write(tag(t, a, "plant/web:1"), img, options(t)...))
	got, err := remote.Image(tag(t, b, "plant/web:1"), options(t)...)
	must(t, err)
	if err := validate.Image(got); err != nil {
		t.Errorf("pushed to one, pulled from the other: %v", err)
	}
	must(t, remote.Tag(tag(t, b, "plant/web:2").Context().Tag("2"), got, options(t)...))
	if _, _, body := do(t, "GET", "http://"+a+"/v2/plant/web/tags/list", nil); !strings.Contains(body, `["1","2"]`) {
		t.Errorf("tags at the one after the other set one: %s", body)
	}

	// An upload whose parts go here and there.
	code, h, _ := do(t, "POST", "http://"+a+"/v2/plant/web/blobs/uploads/", nil)
	location := h.Get("Location")
	if code != http.StatusAccepted || location == "" {
		t.Fatalf("begin an upload: %d", code)
	}
	for i, part := range []string{"one ", "two ", "three"} {
		at := []string{b, a, b}[i]
		if code, _, body := do(t, "PATCH", "http://"+at+location, []byte(part)); code != http.StatusAccepted {
			t.Fatalf("part %d: %d %s", i, code, body)
		}
	}
	d := protocol.DigestOf([]byte("one two three"))
	if code, _, body := do(t, "PUT", "http://"+a+location+"?digest="+string(d), nil); code != http.StatusCreated {
		t.Fatalf("end the upload: %d %s", code, body)
	}
	if code, _, body := do(t, "GET", "http://"+b+"/v2/plant/web/blobs/"+string(d), nil); code != http.StatusOK || body != "one two three" {
		t.Errorf("the blob at the other: %d %q", code, body)
	}

	digest, err := img.Digest()
	must(t, err)
	if code := status(t, b, "DELETE", "plant/web/manifests/"+digest.String()); code != http.StatusAccepted {
		t.Errorf("delete at the other: %d", code)
	}
	if code := status(t, a, "GET", "plant/web/manifests/1"); code != http.StatusNotFound {
		t.Errorf("what the other deleted: %d", code)
	}
}

// TestUploadWithTwoWriters refuses the second writer of an upload, though the first one is another process's.
func TestUploadWithTwoWriters(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	_, h, _ := do(t, "POST", "http://"+a+"/v2/plant/web/blobs/uploads/", nil)
	location := h.Get("Location")
	body, feed := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+a+location, body)
	must(t, err)
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	done := make(chan int)
	go func() {
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Error(err)
			done <- 0
			return
		}
		_ = resp.Body.Close()
		done <- resp.StatusCode
	}()
	if _, err := feed.Write([]byte("first")); err != nil { // the first writer has it, or will: until then the second one adds nothing
		t.Fatal(err)
	}
	for {
		code, _, _ := do(t, "PATCH", "http://"+b+location, nil)
		if code == http.StatusRequestedRangeNotSatisfiable {
			break
		}
		if code != http.StatusAccepted {
			t.Fatalf("the second writer: %d", code)
		}
	}
	must(t, feed.Close())
	if code := <-done; code != http.StatusAccepted {
		t.Errorf("the first writer: %d", code)
	}
	if code, h, _ := do(t, "GET", "http://"+b+location, nil); code != http.StatusNoContent || h.Get("Range") != "0-4" {
		t.Errorf("the upload has %q (%d), want what the first one wrote", h.Get("Range"), code)
	}
}

// TestCleanIsForOne leaves a garbage collection to the process that has begun one.
func TestCleanIsForOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, address := handler(t, dir, Limits{})
	second, _ := handler(t, dir, Limits{})
	orphan := pushBlob(t, address, "a", []byte("orphan"))
	late := time.Now().Add(first.limits.UploadLife + time.Hour)
	alone, err := first.store.Alone()
	must(t, err)
	must(t, second.Clean(t.Context(), late))
	if code := status(t, address, "HEAD", "a/blobs/"+string(orphan)); code != http.StatusOK {
		t.Errorf("collected beside another collection: %d", code)
	}
	must(t, alone.Close())
	must(t, second.Clean(t.Context(), late))
	if code := status(t, address, "HEAD", "a/blobs/"+string(orphan)); code != http.StatusNotFound {
		t.Errorf("not collected after the other ended: %d", code)
	}
}

// TestCleanFindsUseOfAnotherProcess has a garbage collection find, when it removes, what another process has used since it looked.
func TestCleanFindsUseOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, address := handler(t, dir, Limits{})
	h, _ := handler(t, dir, Limits{})
	old := time.Now().Add(-time.Hour)
	for name, use := range map[string]func(repo string, d protocol.Digest){
		"named by a manifest": func(repo string, d protocol.Digest) { pushManifest(t, address, repo, d) },
		"asked for":           func(repo string, d protocol.Digest) { status(t, address, "HEAD", repo+"/blobs/"+string(d)) },
		"mounted": func(repo string, d protocol.Digest) {
			status(t, address, "POST", repo+"/blobs/uploads/?from="+repo+"&mount="+string(d))
		},
		"pushed": func(repo string, _ protocol.Digest) { pushBlob(t, address, repo, []byte(repo)) },
	} {
		repo := strings.NewReplacer(" ", "-", ",", "").Replace(name)
		d := pushBlob(t, address, repo, []byte(repo))
		must(t, os.Chtimes(onDisk(h, linkPath(repo, d)), old, old))
		must(t, os.Chtimes(onDisk(h, blobPath(d)), old, old))
		use(repo, d)
		if removed, err := h.removeIfUnused(linkPath(repo, d), old.Add(time.Minute)); removed || err != nil {
			t.Errorf("%s: its link was removed: %v", name, err)
		}
	}
}
