package api_test

import (
	"net/http"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestSpecRanges fetches a specification in parts, as a site on a bad link does.
func TestSpecRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	d := w.recorded(w.deploy(map[string]any{"site": "home", "app": "hello"}))
	path := "/api/v1/specs/" + string(d.Digest)
	whole := w.get(path).into(http.StatusOK, nil)
	etag := whole.header.Get("Etag")
	diff(t, "etag", `"`+string(d.Digest)+`"`, etag)
	diff(t, "ranges", "bytes", whole.header.Get("Accept-Ranges"))

	part := w.do(http.MethodGet, path, nil, "Range", "bytes=10-", "If-Range", etag).into(http.StatusPartialContent, nil)
	diff(t, "the rest", string(whole.body[10:]), string(part.body))
	if protocol.DigestOf(append(whole.body[:10:10], part.body...)) != d.Digest {
		t.Error("the parts are not the whole")
	}
	other := w.do(http.MethodGet, path, nil, "Range", "bytes=10-", "If-Range", `"sha256:other"`).into(http.StatusOK, nil)
	diff(t, "the whole, where the part is of something else", len(whole.body), len(other.body))
	w.do(http.MethodGet, path, nil, "If-None-Match", etag).into(http.StatusNotModified, nil)
	if a := w.do(http.MethodGet, path, nil, "Range", "bytes=1000000-"); a.status != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a range behind the end: %d", a.status)
	}

	// What a site is sent by digest is found there too, and only the latest of it.
	for _, body := range []string{"first", "second"} {
		if err := w.store.SaveBodies(t.Context(), []fleet.SiteBody{{Site: "home", Digest: protocol.DigestOf([]byte(body)), Body: []byte(body)}}); err != nil {
			t.Fatal(err)
		}
	}
	latest := w.get("/api/v1/specs/"+string(protocol.DigestOf([]byte("second")))).into(http.StatusOK, nil)
	diff(t, "the latest state", "second", string(latest.body))
	first := string(protocol.DigestOf([]byte("first")))
	w.get("/api/v1/specs/"+first).fails(http.StatusNotFound, "no spec "+first)
}
