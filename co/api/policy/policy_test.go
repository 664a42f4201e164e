package policy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/colonyfleet/colony/co/access"
)

// TestPolicy has requests to each of the CO's handlers.
func TestPolicy(t *testing.T) {
	t.Parallel()
	const clients = "/api/v1/broker/clients"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/sites/{site}", unused)
	mux.HandleFunc("GET /healthz", unused)
	mux.HandleFunc(access.HowToSignIn, unused)
	mux.HandleFunc("DELETE /api/v1/deployments/{id}", unused)
	mux.HandleFunc("GET /api/v1/deployments/{site}/{name}/logs", unused)
	p := Policy{Clients: clients, Route: func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern
	}}
	for _, c := range []struct {
		method, path, operation string
		needs                   access.Need
		recorded, registry      bool
	}{
		{"GET", "/api/v1/sites/plant-7", "GET /api/v1/sites/{site}", access.Need{Permission: access.ReadFleet, Reach: access.OneSite, Site: "plant-7"}, false, false},
		{"DELETE", "/api/v1/deployments/d", "DELETE /api/v1/deployments/{id}", access.Need{Permission: access.Needs("DELETE /api/v1/deployments/{id}"), Reach: access.WholeFleet}, true, false},
		{"POST", "/api/v1/nothing", "POST", access.Need{Permission: access.Authenticated, Reach: access.Picked}, false, false},
		{"GET", clients, "GET " + clients, access.Need{Permission: access.NeedsAt("GET", clients), Reach: access.WholeFleet}, false, false},
		{"GET", "/api/v1/deployments/plant/meter/logs", "GET /api/v1/deployments/{site}/{name}/logs", access.Need{Permission: access.ReadLogs, Reach: access.OneSite, Site: "plant"}, true, false},
		{"DELETE", clients, "DELETE " + clients, access.Need{Permission: access.NeedsAt("DELETE", clients), Reach: access.WholeFleet}, true, false},
		{"PUT", "/v2/hello/manifests/1", "PUT /v2/", access.Sites{}.RegistryNeed("PUT", "/v2/hello/manifests/1"), true, true},
		{"PUT", "/v2/hello/blobs/uploads/1", "PUT /v2/", access.Sites{}.RegistryNeed("PUT", "/v2/hello/blobs/uploads/1"), false, true},
		{"DELETE", "/v2/hello/blobs/sha256:0", "DELETE /v2/", access.Sites{}.RegistryNeed("DELETE", "/v2/hello/blobs/sha256:0"), true, true},
		{"GET", "/v2", "GET", access.Need{Permission: access.Authenticated, Reach: access.Picked}, false, false}, // no path of the registry
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		name := c.method + " " + c.path
		if got := p.Operation(r); got != c.operation {
			t.Errorf("%s: operation %q, want %q", name, got, c.operation)
		}
		if got := p.Needs(r); got != c.needs {
			t.Errorf("%s: needs %+v, want %+v", name, got, c.needs)
		}
		if got := p.Recorded(r); got != c.recorded {
			t.Errorf("%s: recorded: %t, want %t", name, got, c.recorded)
		}
		if got := p.Registry(r); got != c.registry {
			t.Errorf("%s: of the registry: %t, want %t", name, got, c.registry)
		}
	}
	for path, want := range map[string]bool{"/api/v1/sites/plant-7": true, "/api/v1/sign-in": true, "/healthz": false, "/v2/": true, "/v2/a/manifests/1": false, clients: true, "/api/v1/nothing": true} {
		if got := p.Limited(httptest.NewRequest(http.MethodGet, path, nil)); got != want {
			t.Errorf("GET %s counts for a limit: %t, want %t", path, got, want)
		}
	}
	prove := p
	prove.Sites.Prove = true
	pull := httptest.NewRequest(http.MethodGet, "/v2/hello/manifests/1", nil)
	if open, asked := p.Needs(pull), prove.Needs(pull); open.Permission != access.Open || asked.Permission == access.Open {
		t.Errorf("a pull needs %+v, and %+v where sites prove who they are elsewhere", open, asked)
	}
}

func unused(http.ResponseWriter, *http.Request) {}
