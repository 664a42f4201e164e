package registry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

// TestRemove removes an image by its tag: the tag is away at once, what it named when it is
// collected, and not before; what shares a blob with it stays.
func TestRemove(t *testing.T) {
	t.Parallel()
	h, address := handler(t, t.TempDir(), Limits{})
	only, shared := pushBlob(t, address, "a", []byte("only")), pushBlob(t, address, "a", []byte("shared"))
	pushBlob(t, address, "b", []byte("shared"))
	image, other := pushManifest(t, address, "a", only, shared), pushManifest(t, address, "b", shared)
	late := time.Now().Add(h.limits.UploadLife + time.Hour)
	r, err := h.Remove(t.Context(), "a", "1")
	must(t, err)
	if !slices.Equal(r.Tags, []string{"1"}) || !slices.Equal(r.Manifests, []protocol.Digest{image}) {
		t.Errorf("removed %+v", r)
	}
	if code := status(t, address, "GET", "a/manifests/1"); code != http.StatusNotFound {
		t.Errorf("the tag answers %d", code)
	}
	must(t, h.Clean(t.Context(), time.Now()))
	if code := status(t, address, "GET", "a/manifests/"+string(image)); code != http.StatusOK {
		t.Errorf("the digest answers %d at once: a deployment may be under way", code)
	}
	entries, err := h.Entries(t.Context(), "")
	must(t, err)
	if len(entries) != 2 || entries[0].Removed.IsZero() || entries[1].Digest != other || !entries[1].Removed.IsZero() {
		t.Errorf("entries %+v", entries)
	}
	must(t, h.Clean(t.Context(), late))
	for _, d := range []protocol.Digest{image, only} {
		if _, err := os.Stat(onDisk(h, blobPath(d))); !os.IsNotExist(err) {
			t.Errorf("%s is kept: %v", d, err)
		}
	}
	if status(t, address, "GET", "b/manifests/"+string(other)) != http.StatusOK || status(t, address, "GET", "b/blobs/"+string(shared)) != http.StatusOK {
		t.Error("an image of another repository was harmed")
	}
	if _, err := h.Remove(t.Context(), "a", "1"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("once more: %v, want not found", err)
	}
}

// What refers to an image and was removed is no longer among its referrers.
func TestRemovedReferrer(t *testing.T) {
	t.Parallel()
	h, address := handler(t, t.TempDir(), Limits{})
	blob := pushBlob(t, address, "a", []byte("blob"))
	image := pushManifest(t, address, "a", blob)
	const mediaType = "application/vnd.oci.image.manifest.v1+json"
	signature := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"artifactType":"text/signature","config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":4},"layers":[],"subject":{"mediaType":%q,"digest":%q,"size":1}}`,
		mediaType, blob, mediaType, image)
	if code, _, said := do(t, "PUT", "http://"+address+"/v2/a/manifests/signature", []byte(signature), "Content-Type", mediaType); code != http.StatusCreated {
		t.Fatalf("push the signature: %d %s", code, said)
	}
	referrers := func() string {
		_, _, body := do(t, "GET", "http://"+address+"/v2/a/referrers/"+string(image), nil)
		return body
	}
	if got := referrers(); !strings.Contains(got, "text/signature") {
		t.Fatalf("referrers %s", got)
	}
	_, err := h.Remove(t.Context(), "a", "signature")
	must(t, err)
	must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
	if got := referrers(); strings.Contains(got, "text/signature") {
		t.Errorf("referrers once it is collected: %s", got)
	}
}

// What was removed and is pushed again before it is collected stays, under its tag or by its
// digest.
func TestRemovedAndPushedAgain(t *testing.T) {
	t.Parallel()
	for _, byTag := range []bool{true, false} {
		h, address := handler(t, t.TempDir(), Limits{})
		blob := pushBlob(t, address, "a", []byte("blob"))
		image := pushManifest(t, address, "a", blob)
		_, _, manifest := do(t, "GET", "http://"+address+"/v2/a/manifests/1", nil)
		_, err := h.Remove(t.Context(), "a", string(image))
		must(t, err)
		ref := string(image)
		if byTag {
			ref = "2"
		}
		if code, _, said := do(t, "PUT", "http://"+address+"/v2/a/manifests/"+ref, []byte(manifest), "Content-Type", "application/vnd.oci.image.manifest.v1+json"); code != http.StatusCreated {
			t.Fatalf("push again: %d %s", code, said)
		}
		must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
		if code := status(t, address, "GET", "a/manifests/"+ref); code != http.StatusOK || status(t, address, "GET", "a/blobs/"+string(blob)) != http.StatusOK {
			t.Errorf("pushed again as %s: %d", ref, code)
		}
	}
}

// TestGuard refuses each way to remove content in use, also where its use began after the removal;
// content whose use is unknown is kept as well.
func TestGuard(t *testing.T) {
	t.Parallel()
	h, address := handler(t, t.TempDir(), Limits{})
	image := pushManifest(t, address, "a", pushBlob(t, address, "a", []byte("blob")))
	var asked []graph.Removal
	var answer error = protocol.Errorf(protocol.Conflict, "in use by plant/meter")
	h.SetGuard(func(_ context.Context, r graph.Removal) error {
		asked = append(asked, r)
		return answer
	})
	for _, ref := range []string{"1", string(image)} {
		if _, err := h.Remove(t.Context(), "a", ref); protocol.KindOf(err) != protocol.Conflict {
			t.Errorf("Remove %s: %v, want a conflict", ref, err)
		}
		if code := status(t, address, "DELETE", "a/manifests/"+ref); code != http.StatusForbidden {
			t.Errorf("DELETE %s: %d, want 403", ref, code)
		}
	}
	if len(asked) != 4 || asked[0].Manifests[0] != image || !slices.Equal(asked[2].Tags, []string{"1"}) {
		t.Errorf("asked about %+v", asked)
	}
	answer = nil
	_, err := h.Remove(t.Context(), "a", "1")
	must(t, err)
	for _, answer = range []error{protocol.Errorf(protocol.Conflict, "in use by plant/meter"), protocol.Errorf(protocol.Unavailable, "the database is away")} {
		must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
		if code := status(t, address, "GET", "a/manifests/"+string(image)); code != http.StatusOK {
			t.Errorf("collected although the answer is %v: %d", answer, code)
		}
	}
	if code := status(t, address, "DELETE", "a/manifests/"+string(image)); code != http.StatusServiceUnavailable {
		t.Errorf("DELETE where nobody can tell: %d, want 503", code)
	}
	answer = nil
	must(t, h.Clean(t.Context(), time.Now().Add(h.limits.UploadLife+time.Hour)))
	if code := status(t, address, "GET", "a/manifests/"+string(image)); code != http.StatusNotFound {
		t.Errorf("kept although nothing needs it: %d", code)
	}
}
