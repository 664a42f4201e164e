package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/access"
)

// TestEveryRouteNeedsAPermission compares the routes with the table of what they need: the two have the same
// routes, and the description names what each needs.
func TestEveryRouteNeedsAPermission(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	var doc struct {
		Paths map[string]map[string]struct {
			Permission string                `json:"x-colony-permission"`
			Security   []map[string][]string `json:"security"`
			Responses  map[string]any        `json:"responses"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(w.get("/openapi.json").into(http.StatusOK, nil).body, &doc); err != nil {
		t.Fatal(err)
	}
	var have, want []string
	for path, operations := range doc.Paths {
		for method, o := range operations {
			route := strings.ToUpper(method) + " " + path
			have = append(have, route)
			need := access.Needs(route)
			if o.Permission != string(need) || len(o.Security) == 0 != (need == access.Open) {
				t.Errorf("%s needs %q; the description says %q, security %v", route, need, o.Permission, o.Security)
			}
			for status, open := range map[string]bool{"401": need == access.Open, "403": need == access.Open || need == access.Authenticated} {
				if _, said := o.Responses[status]; said == open {
					t.Errorf("%s needs %q; the description has an answer %s: %v", route, need, status, said)
				}
			}
		}
	}
	for _, routes := range access.Operations() {
		want = append(want, routes...)
	}
	// These are not of the description.
	others := []string{"GET /healthz", "GET /readyz", "GET /metrics", "GET /api/v1/broker/clients", "DELETE /api/v1/broker/clients"}
	have = append(have, others...)
	slices.Sort(have)
	slices.Sort(want)
	if diff := cmp.Diff(have, want); diff != "" {
		t.Errorf("routes of the API, and those of co/access (-have +table):\n%s", diff)
	}
}
