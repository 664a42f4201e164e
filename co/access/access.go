// Package access decides what each principal may do by the CO's API: roles, their permissions, and
// the permission that each operation needs.
package access

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/trailer"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Permission is what an operation needs, as resource:verb.
type Permission string

// The permissions. Each operation of the API needs one of them.
const (
	// Open needs no token: the requests of a load balancer.
	Open Permission = ""
	// Authenticated is what each principal has: it may ask for its own name and role.
	Authenticated Permission = "authenticated"

	ReadFleet        Permission = "fleet:read"        // sites, nodes, deployments, events, applications, metrics
	ReadData         Permission = "data:read"         // machine data
	WriteDeployments Permission = "deployments:write" // and volumes that outlived them
	WriteCommands    Permission = "commands:write"    // commands to nodes, restrictions included
	ReadLogs         Permission = "logs:read"         // of containers: they may hold secrets
	Collect          Permission = "nodes:collect"     // diagnostics and files of nodes: they may hold secrets
	OpenSessions     Permission = "sessions:open"     // programs in containers, and the end of sessions of others
	ReadSessions     Permission = "sessions:read"     // which person used which program, and what it showed
	WriteApps        Permission = "apps:write"        // applications, images and archives
	WriteRules       Permission = "rules:write"       // of machine data
	DecideProposals  Permission = "proposals:decide"  // confirm and withdraw proposals
	WriteSites       Permission = "sites:write"       // sites and nodes, and what a site may go on from
	WriteMachines    Permission = "machines:write"    // join tokens, approvals, revocations, clients and accounts of brokers
	WriteAccess      Permission = "access:write"      // tokens of this package
	ReadAudit        Permission = "audit:read"        // the audit

	// This is the permission of an operation that is in no table: no role has it.
	nobody Permission = "nobody"
)

// operations are the operations of the API, as method and pattern of their route, each with what it needs.
var operations = map[string]Permission{
	"GET /healthz": Open, "GET /readyz": Open,
	"GET /metrics": ReadFleet,

	"GET /api/v1/status": ReadFleet, "GET /api/v1/sites": ReadFleet, "GET /api/v1/sites/{site}": ReadFleet, "GET /api/v1/sites/{site}/link": ReadFleet,
	"GET /api/v1/nodes": ReadFleet, "GET /api/v1/nodes/{site}/{node}": ReadFleet, "GET /api/v1/sites/{site}/volumes": ReadFleet,
	"GET /api/v1/unenrolled-sites": ReadFleet, "GET /api/v1/pending-nodes": ReadFleet, "GET /api/v1/pending-revocations": ReadFleet, "GET /api/v1/revoked-keys/{key}": ReadFleet,
	"GET /api/v1/apps": ReadFleet, "GET /api/v1/apps/{id}": ReadFleet, "GET /api/v1/apps/{id}/versions/{version}": ReadFleet,
	"GET /api/v1/deployments": ReadFleet, "GET /api/v1/deployments/{site}/{name}": ReadFleet, "GET /api/v1/deployments/{site}/{name}/history": ReadFleet, "GET /api/v1/deployments/{site}/{name}/explain": ReadFleet,
	"GET /api/v1/events": ReadFleet, "GET /api/v1/proposals": ReadFleet, "GET /api/v1/proposals/{id}": ReadFleet,
	"GET /api/v1/images": ReadFleet, "GET /api/v1/images/uses": ReadFleet, "GET /api/v1/sites/{site}/data-rules": ReadFleet, "GET /api/v1/sites/{site}/devices": ReadFleet,
	"GET /api/v1/broker/clients": ReadFleet,

	"GET /api/v1/sites/{site}/data": ReadData, "GET /api/v1/sites/{site}/data/stream": ReadData,

	specs: ReadFleet,

	"POST /api/v1/deployments": WriteDeployments, "PATCH /api/v1/deployments/{site}/{name}": WriteDeployments, "DELETE /api/v1/deployments/{site}/{name}": WriteDeployments,
	"POST /api/v1/deployments/{site}/{name}/rollback": WriteDeployments, "POST /api/v1/deployments/{site}/{name}/retry": WriteDeployments,
	"DELETE /api/v1/nodes/{site}/{node}/volumes/{deployment}": WriteDeployments,

	"GET /api/v1/commands": ReadFleet, "GET /api/v1/commands/{id}": ReadFleet, "GET /api/v1/commands/{id}/results": ReadFleet,
	"POST /api/v1/commands": WriteCommands, "DELETE /api/v1/commands/{id}": WriteCommands,
	"GET /api/v1/deployments/{site}/{name}/logs": ReadLogs,

	"GET /api/v1/nodes/{site}/{node}/diagnostics": Collect, "GET /api/v1/nodes/{site}/{node}/files": Collect,

	"GET /api/v1/deployments/{site}/{name}/exec": OpenSessions, "DELETE /api/v1/sessions/{id}": OpenSessions,
	"GET /api/v1/deployments/{site}/{name}/forward": OpenSessions,
	"GET /api/v1/sessions":                          ReadSessions, "GET /api/v1/sessions/{id}": ReadSessions, "GET /api/v1/sessions/{id}/recording": ReadSessions,
	"GET /api/v1/sites/{site}/exec": ReadFleet, "PUT /api/v1/sites/{site}/exec": WriteSites,
	"GET /api/v1/sites/{site}/maintenance": ReadFleet, "PUT /api/v1/sites/{site}/maintenance": WriteSites, "DELETE /api/v1/sites/{site}/maintenance": WriteSites,

	"POST /api/v1/apps": WriteApps, "PATCH /api/v1/apps/{id}/versions/{version}": WriteApps, "DELETE /api/v1/apps/{id}/versions/{version}": WriteApps, "DELETE /api/v1/images": WriteApps,

	"PUT /api/v1/sites/{site}/data-rules": WriteRules, "DELETE /api/v1/sites/{site}/data-rules": WriteRules,

	"GET /api/v1/fleet-deployments": ReadFleet, "GET /api/v1/fleet-deployments/{fleet}": ReadFleet, "POST /api/v1/fleet-deployments/{fleet}/plan": ReadFleet,
	"GET /api/v1/rollouts": ReadFleet, "GET /api/v1/fleet-deployments/{fleet}/rollout": ReadFleet, "GET /api/v1/fleet-deployments/{fleet}/rollout/sites": ReadFleet,
	"PUT /api/v1/fleet-deployments/{fleet}": WriteDeployments, "DELETE /api/v1/fleet-deployments/{fleet}": WriteDeployments, "POST /api/v1/fleet-deployments/{fleet}/revert": WriteDeployments,
	"POST /api/v1/fleet-deployments/{fleet}/rollout/pause": WriteDeployments, "POST /api/v1/fleet-deployments/{fleet}/rollout/resume": WriteDeployments,
	"POST /api/v1/fleet-deployments/{fleet}/rollout/promote": WriteDeployments, "POST /api/v1/fleet-deployments/{fleet}/rollout/abort": WriteDeployments,

	"POST /api/v1/proposals/{id}/confirm": DecideProposals, "POST /api/v1/proposals/{id}/withdraw": DecideProposals,

	"POST /api/v1/sites": WriteSites, "DELETE /api/v1/sites/{site}": WriteSites, "DELETE /api/v1/nodes/{site}/{node}": WriteSites, "POST /api/v1/sites/{site}/accept-position": WriteSites,

	"POST /api/v1/sites/{site}/join-tokens": WriteMachines, "POST /api/v1/sites/{site}/node-tokens": WriteMachines,
	"POST /api/v1/sites/{site}/revoke": WriteMachines, "POST /api/v1/nodes/{site}/{node}/revoke": WriteMachines,
	"POST /api/v1/nodes/{site}/{node}/approve": WriteMachines, "POST /api/v1/nodes/{site}/{node}/reject": WriteMachines,
	"PUT /api/v1/sites/{site}/devices/{user}": WriteMachines, "DELETE /api/v1/sites/{site}/devices/{user}": WriteMachines,
	"DELETE /api/v1/broker/clients": WriteMachines,

	"GET /api/v1/audit": ReadAudit, "GET /api/v1/audit/verification": ReadAudit,

	HowToSignIn:               Open,
	"GET /api/v1/principal":   Authenticated,
	"GET /api/v1/site-groups": WriteAccess, "PUT /api/v1/site-groups/{group}": WriteAccess, "DELETE /api/v1/site-groups/{group}": WriteAccess,
	"GET /api/v1/tokens": WriteAccess, "POST /api/v1/tokens": WriteAccess, "DELETE /api/v1/tokens/{id}": WriteAccess,
}

// described are the routes of the API's own description.
var described = regexp.MustCompile(`^GET /(openapi(-3\.0)?\.(json|yaml)|schemas/\{schema\})$`)

// HowToSignIn is the operation by which a person without a token learns how to get one.
const HowToSignIn = "GET /api/v1/sign-in"

// specs is the operation by which a site fetches, by its digest, what it is to run.
const specs = "GET /api/v1/specs/{digest}"

// Needs returns what an operation needs, by the method and the pattern of its route, as "GET
// /api/v1/sites/{site}". An operation that this package does not know needs a permission that no
// role has. Each principal may learn that a path has no route, which is "".
func Needs(route string) Permission {
	if route == "" {
		return Authenticated
	}
	if described.MatchString(route) {
		return ReadFleet
	}
	if p, ok := operations[route]; ok {
		return p
	}
	return nobody
}

// NeedsAt returns what a request to a path needs that one handler serves with all its methods. HEAD is as
// GET (RFC 9110, section 9.3.2); each principal may learn that a method is not allowed there.
func NeedsAt(method, path string) Permission {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if p, ok := operations[method+" "+path]; ok {
		return p
	}
	return Authenticated
}

// Operations returns all operations, by what they need.
func Operations() map[Permission][]string {
	out := map[Permission][]string{}
	for route, p := range operations {
		out[p] = append(out[p], route)
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// Sites says how sites fetch what they run.
type Sites struct {
	// Prove: elsewhere, with their certificates. Otherwise they fetch it here, and have no token.
	Prove bool
}

// Needs is the function Needs, where sites fetch as s says.
func (s Sites) Needs(route string) Permission {
	if route == specs && !s.Prove {
		return Open
	}
	return Needs(route)
}

// RegistryNeeds returns what a request to the registry needs. A client that asks for the version of the API must
// present a token, since it would not offer its credentials later.
func (s Sites) RegistryNeeds(method, path string) Permission {
	switch read := method == http.MethodGet || method == http.MethodHead; {
	case !read:
		return WriteApps
	case path == "/v2/":
		return Authenticated
	case s.Prove:
		return ReadFleet
	}
	return Open
}

// A Principal is an authenticated person or program. Its role is empty where it may do nothing.
type Principal struct {
	Name    string    `json:"name"`
	Role    Role      `json:"role" doc:"read-only, operator, admin, or a role of the configuration"`
	Sites   []string  `json:"sites,omitempty" doc:"the sites for which the role holds: names, or how names begin with a * after it; absent: all"`
	Further []Grant   `json:"further,omitempty" doc:"roles besides, of a person whose groups give several"`
	Token   string    `json:"token" doc:"id of the token that it has shown"`
	Expires time.Time `json:"expires" doc:"when that token ends"`
	// Issuer and Subject are the OpenID provider that authenticated a person, and the person's id
	// there.
	Issuer  string `json:"issuer,omitempty" doc:"the OpenID provider that vouches for it; absent: this CO does"`
	Subject string `json:"subject,omitempty" doc:"its identifier at the provider, which never changes; absent: this CO vouches for it"`
	// Key is the thumbprint of the provider's key that has signed the token; empty where there is no issuer.
	Key string `json:"-"`

	custom Custom
}

// A SignIn is what a program must know to sign a person in with an OpenID provider.
type SignIn struct {
	Issuer   string   `json:"issuer" doc:"address of the OpenID provider"`
	ClientID string   `json:"clientID" doc:"under which the command line is known there"`
	Scopes   []string `json:"scopes" doc:"what is to be asked for"`
}

// A Token is what the CO records of a token that it made.
type Token struct {
	ID        string     `json:"id"`
	Name      string     `json:"name" doc:"whom it was made for: each change that is made with it names it"`
	Role      Role       `json:"role" doc:"read-only, operator, admin, or a role of the configuration"`
	Sites     []string   `json:"sites,omitempty" doc:"the sites for which the role holds: names, how names begin with a * after it, or @ and the name of a group of sites; absent: all"`
	CreatedAt time.Time  `json:"createdAt"` // by the CO's clock
	CreatedBy string     `json:"createdBy" doc:"its maker; console: a user of the CO's machine"`
	Expires   time.Time  `json:"expires"`             // when its life ends
	RevokedAt *time.Time `json:"revokedAt,omitempty"` // when it was revoked; absent: it was not
	UsedAt    *time.Time `json:"usedAt,omitempty" doc:"when it was used last, to about a minute; absent: never"`
	Key       string     `json:"key,omitempty" doc:"thumbprint of the key that signed it; absent: not known"`
}

// String names a token to people.
func (t Token) String() string {
	if len(t.Sites) == 0 {
		return fmt.Sprintf("token %s of %s (%s)", t.ID, t.Name, t.Role)
	}
	return fmt.Sprintf("token %s of %s (%s of %s)", t.ID, t.Name, t.Role, strings.Join(t.Sites, ", "))
}

// Principal returns the principal of a token.
func (t Token) Principal() Principal {
	return Principal{Name: t.Name, Role: t.Role, Sites: t.Sites, Token: t.ID, Expires: t.Expires}
}

// Holds reports whether a token counts at a time.
func (t Token) Holds(at time.Time) bool { return t.RevokedAt == nil && at.Before(t.Expires) }

// The bounds of a token's life.
const (
	MinLife = time.Minute              // the shortest life
	MaxLife = 2 * 365 * 24 * time.Hour // the longest life: two years
)

// Console is the name of the user on the CO's own machine, who makes tokens there.
const Console = "console"

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9._@-]{0,62}[a-z0-9])?$`)

// A Request says which token to make.
type Request struct {
	Name, Role string        // name of the token, and its role
	Custom     Custom        // the roles there are besides those that are always there
	Sites      []string      // as of ParseSites; nil: all; an empty list is refused
	Life       time.Duration // how long it is valid
}

// NewToken returns a token with a new id, after it has checked the request. Errors are of kind Invalid and say what is wanted.
func NewToken(r Request, by string, now time.Time) (Token, error) {
	name, life := r.Name, r.Life
	if name == Console {
		return Token{}, protocol.Errorf(protocol.Invalid, "name %q: it stands for the CO's own machine; want another one", name)
	}
	if !nameForm.MatchString(name) {
		return Token{}, protocol.Errorf(protocol.Invalid, "name %q: want 1 to 64 lower-case letters, digits, and . _ @ - between them", name)
	}
	role, err := r.Custom.Parse(r.Role)
	if err != nil {
		return Token{}, err
	}
	sites, err := ParseSites(r.Sites)
	if err != nil {
		return Token{}, err
	}
	if life < MinLife || life > MaxLife {
		return Token{}, protocol.Errorf(protocol.Invalid, "a life of %s: want %s to %s", life, MinLife, MaxLife)
	}
	// Claims of a JWT are in whole seconds.
	created := now.UTC().Truncate(time.Second)
	return Token{ID: rand.Text(), Name: name, Role: role, Sites: sites, CreatedAt: created, CreatedBy: by, Expires: created.Add(life)}, nil
}

type key struct{}

// A value is what a context knows of whose request it is.
type value struct {
	Principal
	sites  siteset.Set
	denied func(err error) // nil: it is not called
}

// With returns a context of a request of p that needs a permission, which Allows has granted. It calls denied, unless that is
// nil, with each error of Check and Deny.
func With(ctx context.Context, p Principal, need Permission, denied func(err error)) context.Context {
	sites, _, _ := p.sitesFor(need) // Allows has refused whose sites cannot be read
	return context.WithValue(ctx, key{}, value{p, sites, denied})
}

// Deny says that a handler refuses the request of a context, with an error of kind Denied, and returns that.
func Deny(ctx context.Context, err error) error {
	if v, ok := ctx.Value(key{}).(value); ok && v.denied != nil {
		v.denied(err)
	}
	return err
}

// From returns the principal of a request's context, and false where no token is required.
func From(ctx context.Context) (Principal, bool) {
	v, ok := ctx.Value(key{}).(value)
	return v.Principal, ok
}

// principalTrailer is the key under which a commit names whose request it is.
const principalTrailer = "Colony-Principal"

// Stamp adds to the message of a commit whose request it is, as a trailer (git-interpret-trailers).
func Stamp(ctx context.Context, message string) string {
	p, ok := From(ctx)
	if !ok {
		return message
	}
	return trailer.Add(message, principalTrailer, p.Name)
}
