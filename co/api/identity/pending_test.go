package identity_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/access"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
)

// TestPending asks for the nodes that wait, all and those of a filter, and refuses filters that are none.
func TestPending(t *testing.T) {
	t.Parallel()
	var got fleet.PendingFilter
	limit := 0
	call := serve(t, identityapi.Options{Pending: func(_ context.Context, f fleet.PendingFilter, l int) ([]fleet.PendingNode, int, error) {
		got, limit = f, l
		return []fleet.PendingNode{{Site: "plant1", Node: "g1"}}, 7, nil
	}})
	for _, c := range []struct {
		query  string
		status int
		want   fleet.PendingFilter
		limit  int
	}{
		{"", http.StatusOK, fleet.PendingFilter{}, 100},
		{"?limit=500&site=plant1&key=a1b2", http.StatusOK, fleet.PendingFilter{Site: "plant1", Key: "a1b2"}, 500},
		{"?key=" + strings.Repeat("a1", 32), http.StatusOK, fleet.PendingFilter{Key: strings.Repeat("a1", 32)}, 100},
		{"?key=xyz", http.StatusUnprocessableEntity, fleet.PendingFilter{}, 0},
		{"?key=" + strings.Repeat("a", 65), http.StatusUnprocessableEntity, fleet.PendingFilter{}, 0},
		{"?site=No%20Site", http.StatusUnprocessableEntity, fleet.PendingFilter{}, 0},
		{"?limit=501", http.StatusUnprocessableEntity, fleet.PendingFilter{}, 0},
	} {
		got, limit = fleet.PendingFilter{}, 0
		status, body := call(http.MethodGet, "/api/v1/pending-nodes"+c.query)
		if status != c.status || got.Site != c.want.Site || got.Key != c.want.Key || !got.Within.All() || limit != c.limit || status == http.StatusOK && !strings.Contains(body, `"total":7`) {
			t.Errorf("%q: %d %s, asked for %d of %+v; want %d, %d of %+v", c.query, status, body, limit, got, c.status, c.limit, c.want)
		}
	}
}

// TestDecide approves and rejects keys, with the person that asks and its row in the audit, and refuses what is no key or names
// no node.
func TestDecide(t *testing.T) {
	t.Parallel()
	var got fleet.Decision
	var life time.Duration
	var noted string
	decide := func(_ context.Context, d fleet.Decision, l time.Duration) (fleet.Decided, error) {
		got, life = d, l
		return fleet.Decided{Site: d.Site, Node: d.Node, Key: d.Key, Approved: d.Approved}, nil
	}
	mux := http.NewServeMux()
	identityapi.Register(humago.New(mux, huma.DefaultConfig("test", "1")), identityapi.Options{Decide: decide}, slog.New(slog.DiscardHandler))
	key := strings.Repeat("a1", 32)
	call := func(h http.Handler, path, body string) (int, string) {
		got, life = fleet.Decision{}, 0
		o := &audit.Operation{}
		r := httptest.NewRequestWithContext(audit.With(access.With(t.Context(), access.Principal{Name: "anna"}, access.WriteMachines, nil), o), http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		noted = o.Outcome(time.Now(), w.Code, "").Detail
		return w.Code, w.Body.String()
	}
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		path, body string
		status     int
		want       fleet.Decision
		life       time.Duration
		noted      string
	}{
		{"/api/v1/nodes/plant1/g1/approve", `{"key":"` + key + `"}`, http.StatusOK, fleet.Decision{Site: "plant1", Node: "g1", Key: key, Approved: true, By: "anna"}, week, "approved the key a1a1a1a1a1a1a1a1 of plant1/g1 for 168h0m0s"},
		{"/api/v1/nodes/plant1/g1/approve", `{"key":"` + key + `","replace":true,"seconds":60}`, http.StatusOK, fleet.Decision{Site: "plant1", Node: "g1", Key: key, Approved: true, Replace: true, By: "anna"}, time.Minute, "approved the key a1a1a1a1a1a1a1a1 of plant1/g1 for 1m0s, which may take the place of another one"},
		{"/api/v1/nodes/plant1/g1/reject", `{"key":"` + key + `"}`, http.StatusOK, fleet.Decision{Site: "plant1", Node: "g1", Key: key, By: "anna"}, week, "rejected the key a1a1a1a1a1a1a1a1 of plant1/g1 for 168h0m0s"},
		{"/api/v1/nodes/plant1/g1/reject", `{"key":"` + key + `","replace":true}`, http.StatusUnprocessableEntity, fleet.Decision{}, 0, ""},
		{"/api/v1/nodes/plant1/g1/approve", `{"key":"` + key[1:] + `"}`, http.StatusUnprocessableEntity, fleet.Decision{}, 0, ""},
		{"/api/v1/nodes/plant1/g1/approve", `{}`, http.StatusUnprocessableEntity, fleet.Decision{}, 0, ""},
		{"/api/v1/nodes/plant1/No%20Node/approve", `{"key":"` + key + `"}`, http.StatusUnprocessableEntity, fleet.Decision{}, 0, ""},
	} {
		if status, answer := call(mux, c.path, c.body); status != c.status || got != c.want || life != c.life || noted != c.noted {
			t.Errorf("%s %s: %d %s, decided %+v for %s, noted %q; want %d, %+v for %s, %q", c.path, c.body, status, answer, got, life, noted, c.status, c.want, c.life, c.noted)
		}
	}
	none := http.NewServeMux()
	identityapi.Register(humago.New(none, huma.DefaultConfig("test", "1")), identityapi.Options{}, slog.New(slog.DiscardHandler))
	if status, answer := call(none, "/api/v1/nodes/plant1/g1/approve", `{"key":"`+key+`"}`); status != http.StatusConflict || !strings.Contains(answer, "set identity in its configuration") {
		t.Errorf("a CO that enrols no machines: %d %s", status, answer)
	}
}
