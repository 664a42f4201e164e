package identity_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// serve answers with the routes for o.
func serve(t *testing.T, o identityapi.Options) func(method, path string) (status int, body string) {
	t.Helper()
	mux := http.NewServeMux()
	identityapi.Register(humago.New(mux, huma.DefaultConfig("test", "1")), o, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
}

// TestRevoke revokes LOs and nodes by their paths, and refuses what names no machine.
func TestRevoke(t *testing.T) {
	t.Parallel()
	until := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	var revoked []identity.Name
	call := serve(t, identityapi.Options{Revoke: func(_ context.Context, n identity.Name) (fleet.Revocation, error) {
		if n.Node == "unknown" {
			return fleet.Revocation{}, protocol.Errorf(protocol.NotFound, "no machine is known to be enrolled as %s", n)
		}
		revoked = append(revoked, n)
		return fleet.Revocation{Site: n.Site, Node: n.Node, Until: until}, nil
	}})
	for _, c := range []struct {
		path   string
		status int
		want   identity.Name // the zero value: no machine is revoked
		says   string
	}{
		{"/api/v1/sites/plant1/revoke", http.StatusOK, identity.OfLO("plant1"), `"until":"2027-01-02T03:04:05Z"`},
		{"/api/v1/nodes/plant1/g1/revoke", http.StatusOK, identity.OfNode("plant1", "g1"), `"node":"g1"`},
		{"/api/v1/nodes/plant1/unknown/revoke", http.StatusNotFound, identity.Name{}, "no machine is known to be enrolled as unknown.plant1"},
		{"/api/v1/sites/No%20Site/revoke", http.StatusUnprocessableEntity, identity.Name{}, "path.site"},
		{"/api/v1/nodes/plant1/No%20Node/revoke", http.StatusUnprocessableEntity, identity.Name{}, "path.node"},
	} {
		revoked = nil
		status, body := call(http.MethodPost, c.path)
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s, want %d with %q", c.path, status, body, c.status, c.says)
		}
		if got := append(revoked, identity.Name{})[0]; got != c.want {
			t.Errorf("%s revoked %v, want %v", c.path, got, c.want)
		}
	}
}

// TestNoIdentity asks a CO that enrols no machines.
func TestNoIdentity(t *testing.T) {
	t.Parallel()
	call := serve(t, identityapi.Options{})
	for _, path := range []string{"/api/v1/sites/plant1/revoke", "/api/v1/nodes/plant1/g1/revoke"} {
		if status, body := call(http.MethodPost, path); status != http.StatusConflict || !strings.Contains(body, "set identity in its configuration") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := call(http.MethodGet, "/api/v1/revoked-keys/"+strings.Repeat("0", 64)); status != http.StatusNotFound {
		t.Errorf("a revoked key: %d %s", status, body)
	}
	for _, path := range []string{"/api/v1/unenrolled-sites", "/api/v1/pending-revocations", "/api/v1/pending-nodes"} {
		if status, body := call(http.MethodGet, path); status != http.StatusOK || !strings.Contains(body, `"items":[]`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// TestRevocations reads a revoked key and the sites that do not go by their lists.
func TestRevocations(t *testing.T) {
	t.Parallel()
	known := strings.Repeat("a1", 32)
	asked := 0
	call := serve(t, identityapi.Options{
		RevokedKey: func(_ context.Context, key string) (fleet.RevokedKey, error) {
			if key != known {
				return fleet.RevokedKey{}, protocol.Errorf(protocol.NotFound, "the key was not revoked")
			}
			return fleet.RevokedKey{Key: key, Site: "plant1", Node: "g1", Removed: true}, nil
		},
		PendingRevocations: func(_ context.Context, limit int) ([]fleet.PendingRevocation, int, error) {
			asked = limit
			return []fleet.PendingRevocation{{Site: "plant1", Number: 7}}, 3, nil
		},
	})
	status, body := call(http.MethodGet, "/api/v1/revoked-keys/"+known)
	var got fleet.RevokedKey
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK || got != (fleet.RevokedKey{Key: known, Site: "plant1", Node: "g1", Removed: true}) {
		t.Errorf("a revoked key: %d %s, %v", status, body, err)
	}
	for key, want := range map[string]int{strings.Repeat("b2", 32): http.StatusNotFound, "no-key": http.StatusUnprocessableEntity} {
		if status, body := call(http.MethodGet, "/api/v1/revoked-keys/"+key); status != want {
			t.Errorf("key %s: %d %s, want %d", key, status, body, want)
		}
	}
	var page identityapi.Page[fleet.PendingRevocation]
	status, body = call(http.MethodGet, "/api/v1/pending-revocations?limit=2")
	if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK || asked != 2 || page.Total != 3 || len(page.Items) != 1 || page.Items[0].Number != 7 {
		t.Errorf("pending: %d %s, %v, limit %d", status, body, err, asked)
	}
}
