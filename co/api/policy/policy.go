// Package policy says of each request to the CO's HTTP which operation it is, which permission it needs, and whether
// the audit records it. It covers all handlers: the API, the registry, and the list of the broker's clients.
package policy

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/colonyfleet/colony/co/access"
)

// registry is below which path the registry is.
const registry = "/v2/"

// A Policy knows the CO's handlers.
type Policy struct {
	// Route returns the method and the pattern of the API's route that serves a request; "": there is none.
	Route func(r *http.Request) string
	// Clients is the path of the broker's clients, which one handler serves with all its methods.
	Clients string
	// Sites says how sites fetch what they run.
	Sites access.Sites
}

// Registry reports whether a request is of the registry.
func (p Policy) Registry(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, registry) }

// Needs returns what a request needs.
func (p Policy) Needs(r *http.Request) access.Need {
	switch {
	case p.Registry(r):
		return p.Sites.RegistryNeed(r.Method, r.URL.Path)
	case r.URL.Path == p.Clients:
		return access.Need{Permission: access.NeedsAt(r.Method, p.Clients), Reach: access.WholeFleet}
	}
	route := p.Route(r)
	return access.NeedOf(p.Sites.Needs(route), route, r.URL)
}

// Limited reports whether a request counts for the limit of its address: it does if its operation needs a permission, or
// asks how to sign in. Requests of load balancers, and of sites that fetch without a token, do not count.
func (p Policy) Limited(r *http.Request) bool {
	return p.Needs(r).Permission != access.Open || !p.Registry(r) && p.Route(r) == access.HowToSignIn
}

// Operation names the operation that a request asks for, as the audit has it: by its method and route.
func (p Policy) Operation(r *http.Request) string {
	switch {
	case r.URL.Path == p.Clients:
		return r.Method + " " + p.Clients
	case p.Registry(r):
		return r.Method + " " + registry
	}
	return cmp.Or(p.Route(r), r.Method)
}

// Recorded reports whether a request has a row in the audit: one that may change something, and one that reads logs, what a node
// collects or what sessions showed, which may hold secrets. Of an upload to the registry it is the manifest that counts: what no manifest names is collected.
func (p Policy) Recorded(r *http.Request) bool {
	switch {
	case safe(r.Method):
		needs := p.Needs(r).Permission
		return needs == access.ReadLogs || needs == access.Collect || needs == access.OpenSessions || needs == access.ReadSessions
	case p.Registry(r):
		return r.Method == http.MethodDelete || strings.Contains(r.URL.Path, "/manifests/")
	}
	return r.URL.Path == p.Clients || p.Route(r) != ""
}

// safe reports whether requests of a method change nothing (RFC 9110, section 9.2.1).
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}
