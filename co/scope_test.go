package co_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
)

// ofNoSite are the operations that a token for some sites allows though their path names no site. The others without a
// site in their path are for the whole fleet.
var ofNoSite = []string{
	"GET /healthz", "GET /readyz", "GET /api/v1/principal", "GET /api/v1/apps", "GET /api/v1/apps/{id}", "GET /api/v1/apps/{id}/versions/{version}", "GET /api/v1/images",
	"GET /api/v1/status", "GET /api/v1/sites", "GET /api/v1/nodes", "GET /api/v1/deployments", "GET /api/v1/events", "GET /api/v1/pending-nodes",
	"POST /api/v1/deployments", "POST /api/v1/sites",
	"POST /api/v1/commands", "GET /api/v1/commands", "GET /api/v1/commands/{id}", "GET /api/v1/commands/{id}/results", "DELETE /api/v1/commands/{id}",
	"GET /api/v1/sessions", "GET /api/v1/sessions/{id}", "DELETE /api/v1/sessions/{id}", "GET /api/v1/sessions/{id}/recording",
	"GET /api/v1/specs/{digest}", // sites prove nothing here
}

// scopedToken makes a token for some sites.
func (b *bench) scopedToken(role access.Role, sites ...string) string {
	b.t.Helper()
	_, text, err := co.NewAccessToken(b.t.Context(), b.options, access.Request{Name: "some-" + string(role), Role: string(role), Sites: sites, Life: time.Hour})
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// TestScopes plays each operation with each role, at sites that the token holds for and at others.
func TestScopes(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	cases := 0
	for _, role := range access.Roles() {
		text := b.scopedToken(role, "plant-1", "north*")
		for need, routes := range access.Operations() {
			for _, route := range routes {
				method, pattern, _ := strings.Cut(route, " ")
				for site, own := range map[string]bool{"plant-1": true, "north": true, "northern": true, "plant-11": false, "plant": false, "south": false, "%70lant-1": true, "nort": false} {
					path := inBraces.ReplaceAllString(strings.Replace(pattern, "{site}", site, 1), "none")
					within := strings.Contains(pattern, "{site}") && own || slices.Contains(ofNoSite, route)
					open := need == access.Open || route == "GET /api/v1/specs/{digest}"
					status, said := b.ask(method, path, text, `{"none":1}`)
					if allowed := status != http.StatusForbidden && status != http.StatusUnauthorized; allowed != (open || within && role.Has(need)) {
						t.Errorf("%s at %s as %s for plant-1 and north*: %d %s", route, site, role, status, said)
					}
					cases++
					if !strings.Contains(pattern, "{site}") {
						break // one site is as another
					}
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestScopesShowNothingElse has lists, counts and errors of a token for some sites say nothing of the others.
func TestScopesShowNothingElse(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	scoped := b.scopedToken(access.Admin, "plant-*")
	for _, site := range []string{"secret-1", "plant-1"} {
		if status, said := b.ask(http.MethodPost, "/api/v1/sites", admin, `{"id":"`+site+`"}`); status != http.StatusCreated {
			t.Fatalf("%d %s", status, said)
		}
	}
	for _, c := range []struct{ site, want string }{{"plant-2", ""}, {"secret-2", "403"}} {
		status, said := b.ask(http.MethodPost, "/api/v1/sites", scoped, `{"id":"`+c.site+`"}`)
		if refused := status == http.StatusForbidden; refused != (c.want != "") {
			t.Errorf("make site %s: %d %s", c.site, status, said)
		}
	}
	for _, path := range []string{
		"/api/v1/sites?total=true", "/api/v1/sites?q=1", "/api/v1/nodes?total=true", "/api/v1/deployments?total=true", "/api/v1/events", "/api/v1/events?newest=true", "/api/v1/pending-nodes",
		"/api/v1/sites/plant-absent", "/api/v1/deployments/plant-1/absent", "/api/v1/nodes/plant-absent/n", "/api/v1/nodes?site=plant-absent",
	} {
		status, said := b.ask(http.MethodGet, path, scoped, "")
		if status == http.StatusForbidden || strings.Contains(said, "secret") {
			t.Errorf("%s: %d %s", path, status, said)
		}
	}
	for _, path := range []string{"/api/v1/nodes?site=secret-1", "/api/v1/deployments?site=secret-1", "/api/v1/events?site=secret-1", "/api/v1/pending-nodes?site=secret-1", "/api/v1/sites/secret-1"} {
		if status, said := b.ask(http.MethodGet, path, scoped, ""); status != http.StatusForbidden {
			t.Errorf("%s: %d %s, want 403", path, status, said)
		}
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/deployments", scoped, `{"site":"secret-1","app":"none"}`); status != http.StatusForbidden {
		t.Errorf("deploy at another site: %d %s, want 403", status, said)
	}
	for text, names := range map[string]string{admin: "there is plant-1, plant-2, secret-1:", scoped: "there is plant-1, plant-2:"} {
		if status, said := b.ask(http.MethodGet, "/api/v1/sites/plant-absent", text, ""); status != http.StatusNotFound || !strings.Contains(said, names) {
			t.Errorf("a site that is not there: %d %s, want one that says %q", status, said, names)
		}
	}
	var all, own struct{ Sites int }
	for text, into := range map[string]any{admin: &all, scoped: &own} {
		status, said := b.ask(http.MethodGet, "/api/v1/status", text, "")
		if err := json.Unmarshal([]byte(said), into); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s: %v", status, said, err)
		}
	}
	if all.Sites != 3 || own.Sites != 2 {
		t.Errorf("the status counts %d sites of the fleet and %d of the token, want 3 and 2", all.Sites, own.Sites)
	}
	// The token shows for which sites it holds.
	if _, said := b.ask(http.MethodGet, "/api/v1/principal", scoped, ""); !strings.Contains(said, `"sites":["plant-*"]`) {
		t.Errorf("the principal: %s", said)
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"x","role":"operator","sites":["Plant"]}`); status != http.StatusUnprocessableEntity || !strings.Contains(said, `site \"Plant\"`) {
		t.Errorf("a token for a site that cannot be: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"x","role":"operator","sites":null}`); status != http.StatusUnprocessableEntity || !strings.Contains(said, "sites has no value") {
		t.Errorf("a token with no value for its sites: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"x","role":"operator","sites":[]}`); status != http.StatusUnprocessableEntity || !strings.Contains(said, "the list has no site") {
		t.Errorf("a token for an empty list of sites: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"x","role":"operator","sites":["plant-1"]}`); status != http.StatusCreated || !strings.Contains(said, `"sites":["plant-1"]`) {
		t.Errorf("a token for a site: %d %s", status, said)
	}
}
