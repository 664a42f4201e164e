package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/dictionary"
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

	// What a site is sent by digest is found there too: the latest of it, and what came before, which the site has.
	var bodies [3]string
	for i := range bodies {
		bodies[i] = strings.Repeat("what the site has anyway, ", 100) + strconv.Itoa(i)
		if err := w.store.SaveBodies(t.Context(), []fleet.SiteBody{{Site: "home", Digest: protocol.DigestOf([]byte(bodies[i])), Body: []byte(bodies[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(i int) string { return string(protocol.DigestOf([]byte(bodies[i]))) }
	diff(t, "the latest state", bodies[2], string(w.get("/api/v1/specs/"+digest(2)).into(http.StatusOK, nil).body))
	diff(t, "the state before", bodies[1], string(w.get("/api/v1/specs/"+digest(1)).into(http.StatusOK, nil).body))
	w.get("/api/v1/specs/"+digest(0)).fails(http.StatusNotFound, "no spec "+digest(0))

	offer := func(have int, more ...string) answer {
		h := http.Header{}
		dictionary.Offer(h, protocol.Digest(digest(have)))
		for name := range h {
			more = append(more, name, h.Get(name))
		}
		return w.do(http.MethodGet, "/api/v1/specs/"+digest(2), nil, more...)
	}
	difference := offer(1).into(http.StatusOK, nil)
	diff(t, "coding", dictionary.Coding, difference.header.Get("Content-Encoding"))
	diff(t, "what it depends on", dictionary.Vary, difference.header.Get("Vary"))
	if tag := difference.header.Get("Etag"); tag == `"`+digest(2)+`"` {
		t.Errorf("the difference has the entity tag of the whole, %s", tag)
	}
	if len(difference.body) > 100 {
		t.Errorf("the difference has %d bytes", len(difference.body))
	}
	made, err := dictionary.Decode(difference.body, []byte(bodies[1]), uint64(len(bodies[2])))
	diff(t, "error", nil, err)
	diff(t, "what the difference makes", bodies[2], string(made))
	for name, a := range map[string]answer{"to what the CO does not have": offer(0), "to a range": offer(1, "Range", "bytes=0-")} {
		if a.header.Get("Content-Encoding") != "" || string(a.body) != bodies[2] {
			t.Errorf("%s: coding %q, %d bytes; want the whole", name, a.header.Get("Content-Encoding"), len(a.body))
		}
	}
}
