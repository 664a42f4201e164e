package registry

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A manifest that cannot be read keeps what it may name, and stops neither the garbage
// collection of other repositories nor the migration of an old directory.
func TestUnreadableManifest(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"no JSON": func(b []byte) []byte { return b[1:] },
		"a bit":   func(b []byte) []byte { return bytes.Replace(b, []byte(`"size":1`), []byte(`"size":2`), 1) },
		"nothing": func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			h, address := handler(t, dir, Limits{})
			named, orphan := pushBlob(t, address, "a", []byte("named")), pushBlob(t, address, "b", []byte("orphan"))
			ofA := pushManifest(t, address, "a", named)
			ofB := pushManifest(t, address, "b", pushBlob(t, address, "b", []byte("other")))
			body, err := os.ReadFile(onDisk(h, blobPath(ofA)))
			must(t, err)
			if damaged := damage(body); bytes.Equal(damaged, body) {
				t.Fatalf("not damaged: %s", body)
			}
			must(t, os.WriteFile(onDisk(h, blobPath(ofA)), damage(body), 0o600))
			var logged bytes.Buffer
			h.log = slog.New(slog.NewTextHandler(&logged, nil))
			late := time.Now().Add(h.limits.UploadLife + time.Hour)

			must(t, h.Clean(t.Context(), late))
			if status(t, address, "GET", "a/blobs/"+string(named)) != http.StatusOK {
				t.Error("what the damaged manifest names was removed")
			}
			if _, err := os.Stat(onDisk(h, blobPath(orphan))); err == nil {
				t.Error("the orphan of another repository was kept")
			}
			if status(t, address, "GET", "b/manifests/"+string(ofB)) != http.StatusOK {
				t.Error("the manifest of another repository was removed")
			}
			if said := logged.String(); !strings.Contains(said, "repository=a count=1") || !strings.Contains(said, string(ofA)) {
				t.Errorf("logged: %s", said)
			}

			// As a version without links left it.
			must(t, os.Remove(filepath.Join(dir, "linked")))
			must(t, os.RemoveAll(filepath.Join(onDisk(h, repoDir("a")), "_blobs")))
			must(t, os.RemoveAll(filepath.Join(onDisk(h, repoDir("b")), "_blobs")))
			h, address = handler(t, dir, Limits{})
			must(t, h.Clean(t.Context(), late))
			for _, blob := range []struct {
				repository string
				digest     protocol.Digest
			}{{"a", named}, {"b", protocol.DigestOf([]byte("other"))}} {
				if code := status(t, address, "GET", blob.repository+"/blobs/"+string(blob.digest)); code != http.StatusOK {
					t.Errorf("after the migration, blob of %s: %d, want 200", blob.repository, code)
				}
			}
		})
	}
}

// A repository that cannot be listed stops the removal of blobs, and not the cleaning of
// the other repositories.
func TestUnreadableRepository(t *testing.T) {
	t.Parallel()
	h, address := handler(t, t.TempDir(), Limits{})
	lost, orphan := pushBlob(t, address, "a", []byte("lost")), pushBlob(t, address, "b", []byte("orphan"))
	pushManifest(t, address, "a", lost)
	links := filepath.Join(onDisk(h, repoDir("a")), "_blobs")
	must(t, os.RemoveAll(links))
	must(t, os.WriteFile(links, nil, 0o600)) // a file cannot be listed
	err := h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour))
	if err == nil || !strings.Contains(err.Error(), "clean repository a") || !strings.Contains(err.Error(), "no blob was removed") {
		t.Errorf("%v, want the repository and what it costs", err)
	}
	if _, err := os.Stat(onDisk(h, blobPath(lost))); err != nil {
		t.Error("a blob of the repository that cannot be listed was removed")
	}
	if status(t, address, "HEAD", "b/blobs/"+string(orphan)) != http.StatusNotFound {
		t.Error("the other repository was not cleaned")
	}
}
