// Package identity has the routes of the API about machines that enrol.
package identity

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// NewToken makes a join token of a site and returns its text.
type NewToken func(ctx context.Context, t fleet.JoinToken, life time.Duration) (text string, expires time.Time, err error)

// Revoke revokes the certificates of a machine.
type Revoke func(ctx context.Context, n identity.Name) (fleet.Revocation, error)

// RevokedKey returns a key that was revoked, by identity.KeyName; the error is of kind NotFound where it was not.
type RevokedKey func(ctx context.Context, key string) (fleet.RevokedKey, error)

// Options are what the routes need. All functions are nil where the CO enrols no machines.
type Options struct {
	NewToken   NewToken
	Revoke     Revoke
	RevokedKey RevokedKey
	Decide     Decide
	Pending    Pending
	// Unenrolled lists the sites whose LO was never enrolled, PendingRevocations those that do not go by
	// their list of revoked keys.
	Unenrolled         List[fleet.Unenrolled]
	PendingRevocations List[fleet.PendingRevocation]
}

// A JoinToken is a join token that was made. Its text is in no other answer.
type JoinToken struct {
	Site    protocol.SiteID `json:"site"`
	Token   string          `json:"token" doc:"id.secret.fingerprint, for the file that identity.tokenFile names; it is kept nowhere"`
	Expires time.Time       `json:"expires"` // when it stops to admit machines
	Uses    int             `json:"uses" doc:"how many machines may enrol with it"`
}

type tokenInput struct {
	form.SitePath
	Body struct {
		Seconds int  `json:"seconds,omitempty" doc:"how long it holds; default one day"`
		Replace bool `json:"replace,omitempty" doc:"the machine may take a name over from another one, whose certificates are revoked"`
	}
}

// oneDay is the life of a token whose maker names none.
const oneDay = 24 * time.Hour

type routes struct {
	Options
	log *slog.Logger
}

// Register adds the routes to h.
func Register(h huma.API, o Options, log *slog.Logger) {
	r := &routes{o, log}
	made := func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusConflict)
		o.DefaultStatus = http.StatusCreated
		o.Description = "Conflict: the CO enrols no machines, as identity is not set in its configuration."
	}
	huma.Post(h, "/api/v1/sites/{site}/node-tokens", r.nodeToken, form.Describe("fleet", "Make a join token of nodes of a site"), made)
	huma.Post(h, "/api/v1/sites/{site}/join-tokens", r.siteToken, form.Describe("fleet", "Make the join token of a site's LO, and the site where there is none"), made)
	ended := func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusConflict)
		o.Description = "Its connections end, here at once and at its site as soon as that hears of it; what runs goes on. It needs a new key and a new join token to come back. " +
			"Conflict: the CO enrols no machines, as identity is not set in its configuration."
	}
	huma.Post(h, "/api/v1/sites/{site}/revoke", r.revokeSite, form.Describe("fleet", "Revoke the certificates of a site's LO, and of the authority with which it enrols nodes"), ended)
	huma.Post(h, "/api/v1/nodes/{site}/{node}/revoke", r.revokeNode, form.Describe("fleet", "Revoke the certificates of a node"), ended)
	huma.Get(h, "/api/v1/revoked-keys/{key}", r.revokedKey, form.Describe("fleet", "Show a key that was revoked"))
	registerPending(h, r)
	list(h, "/api/v1/unenrolled-sites", "List the sites whose LO has no certificate, at a CO that wants one", o.Unenrolled, log)
	list(h, "/api/v1/pending-revocations", "List the sites that do not go by their list of revoked keys yet", o.PendingRevocations, log)
}

func (r *routes) revokedKey(ctx context.Context, in *struct {
	Key string `path:"key" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the public key, in hex"`
},
) (*form.Reply[fleet.RevokedKey], error) {
	if r.RevokedKey == nil {
		return nil, problem.Answer(ctx, r.log, protocol.Errorf(protocol.NotFound, "this CO enrols no machines, and has revoked no key"))
	}
	out, err := r.RevokedKey(ctx, in.Key)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[fleet.RevokedKey]{Body: out}, nil
}

func (r *routes) revokeSite(ctx context.Context, in *form.SitePath) (*form.Reply[fleet.Revocation], error) {
	site, err := in.Parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return r.end(ctx, identity.OfLO(site))
}

func (r *routes) revokeNode(ctx context.Context, in *form.NodePath) (*form.Reply[fleet.Revocation], error) {
	site, node, err := in.Parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return r.end(ctx, identity.OfNode(site, node))
}

func (r *routes) end(ctx context.Context, n identity.Name) (*form.Reply[fleet.Revocation], error) {
	if r.Revoke == nil {
		return nil, problem.Answer(ctx, r.log, errNone)
	}
	out, err := r.Revoke(ctx, n)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[fleet.Revocation]{Body: out}, nil
}

var errNone = protocol.Errorf(protocol.Conflict, "this CO enrols no machines: set identity in its configuration")

func (r *routes) siteToken(ctx context.Context, in *tokenInput) (*form.Reply[JoinToken], error) {
	return r.token(ctx, in.SitePath, in.Body.Seconds, fleet.JoinToken{Tier: identity.LO, Uses: 1, Replace: in.Body.Replace})
}

type nodeTokenInput struct {
	form.SitePath
	Body struct {
		Seconds int  `json:"seconds,omitempty" doc:"how long it holds; default one day"`
		Uses    int  `json:"uses,omitempty" doc:"how many nodes may enrol with it; default 1"`
		Replace bool `json:"replace,omitempty" doc:"a node may take a name over from another one, whose certificates are revoked"`
	}
}

func (r *routes) nodeToken(ctx context.Context, in *nodeTokenInput) (*form.Reply[JoinToken], error) {
	return r.token(ctx, in.SitePath, in.Body.Seconds, fleet.JoinToken{Tier: identity.EN, Uses: cmp.Or(in.Body.Uses, 1), Replace: in.Body.Replace})
}

func (r *routes) token(ctx context.Context, at form.SitePath, seconds int, t fleet.JoinToken) (*form.Reply[JoinToken], error) {
	var err error
	if t.Site, err = at.Parse(); err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	if r.NewToken == nil {
		return nil, problem.Answer(ctx, r.log, errNone)
	}
	life := oneDay
	if seconds != 0 {
		life = time.Duration(seconds) * time.Second
	}
	text, expires, err := r.NewToken(ctx, t, life)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("body", err))
	}
	id, _, _ := strings.Cut(text, ".") // the rest is secret
	audit.Note(ctx, fmt.Sprintf("join token %s of %s, %d uses, until %s", id, t.Site, t.Uses, expires.Format(time.RFC3339)))
	return &form.Reply[JoinToken]{Body: JoinToken{Site: t.Site, Token: text, Expires: expires, Uses: t.Uses}}, nil
}
