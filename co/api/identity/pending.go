package identity

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// Decide records what is decided about a node that has no join token, for a life.
type Decide func(ctx context.Context, d fleet.Decision, life time.Duration) (fleet.Decided, error)

// Pending returns the first limit nodes without a join token that wait and that f picks, by site and name, and how
// many there are.
type Pending func(ctx context.Context, f fleet.PendingFilter, limit int) (list []fleet.PendingNode, total int, err error)

type pendingInput struct {
	LimitQuery
	Site string `query:"site" doc:"only of this one"`
	Key  string `query:"key" pattern:"^[0-9a-f]{1,64}$" doc:"only where the key begins so, in hex"`
}

type decisionInput struct {
	form.NodePath
	Body struct {
		Key     string `json:"key" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the public key of the node, in hex"`
		Seconds int    `json:"seconds,omitempty" doc:"how long the decision holds; default one week"`
	}
}

type approvalInput struct {
	form.NodePath
	Body struct {
		Key     string `json:"key" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the public key of the node, in hex"`
		Replace bool   `json:"replace,omitempty" doc:"the node may take the name over from another one, whose certificates are revoked"`
		Seconds int    `json:"seconds,omitempty" doc:"within which time the node must enrol; default one week"`
	}
}

// oneWeek is the life of a decision whose maker names none, in seconds.
const oneWeek = 7 * 24 * 3600

// registerPending adds the routes about nodes without a join token.
func registerPending(h huma.API, r *routes) {
	about := func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusConflict)
		o.Description = "It holds for this key and this name alone, whether the node waits already or comes later. " +
			"Conflict: the CO enrols no machines, the key was revoked, is to be rejected and has enrolled, or a thousand keys of the site are decided about."
	}
	huma.Get(h, "/api/v1/pending-nodes", r.pending, form.Describe("fleet", "List the nodes without a join token that wait until their keys are approved"))
	huma.Post(h, "/api/v1/nodes/{site}/{node}/approve", r.approve, form.Describe("fleet", "Let a node enrol without a join token, by its key"), about)
	huma.Post(h, "/api/v1/nodes/{site}/{node}/reject", r.reject, form.Describe("fleet", "Refuse a node without a join token, by its key"), about)
}

func (r *routes) pending(ctx context.Context, in *pendingInput) (*form.Reply[Page[fleet.PendingNode]], error) {
	f := fleet.PendingFilter{Key: in.Key, Within: access.SitesOf(ctx)}
	if in.Site != "" {
		var err error
		if f.Site, err = protocol.ParseSiteID(in.Site); err == nil {
			err = access.Check(ctx, f.Site)
		}
		if err != nil {
			return nil, problem.Answer(ctx, r.log, problem.At("query.site", err))
		}
	}
	if r.Pending == nil {
		return page[fleet.PendingNode](ctx, nil, 0, nil, r.log)
	}
	items, total, err := r.Pending(ctx, f, in.Limit)
	return page(ctx, items, total, err, r.log)
}

func (r *routes) approve(ctx context.Context, in *approvalInput) (*form.Reply[fleet.Decided], error) {
	return r.decide(ctx, in.NodePath, fleet.Decision{Key: in.Body.Key, Approved: true, Replace: in.Body.Replace}, in.Body.Seconds)
}

func (r *routes) reject(ctx context.Context, in *decisionInput) (*form.Reply[fleet.Decided], error) {
	return r.decide(ctx, in.NodePath, fleet.Decision{Key: in.Body.Key}, in.Body.Seconds)
}

func (r *routes) decide(ctx context.Context, at form.NodePath, d fleet.Decision, seconds int) (*form.Reply[fleet.Decided], error) {
	var err error
	if d.Site, d.Node, err = at.Parse(); err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	if r.Decide == nil {
		return nil, problem.Answer(ctx, r.log, errNone)
	}
	if p, ok := access.From(ctx); ok {
		d.By = p.Name
	}
	life := time.Duration(cmp.Or(seconds, oneWeek)) * time.Second
	out, err := r.Options.Decide(ctx, d, life)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	note := "rejected"
	if d.Approved {
		note = "approved"
	}
	note = fmt.Sprintf("%s the key %.16s of %s/%s for %s", note, d.Key, d.Site, d.Node, life)
	if d.Replace {
		note += ", which may take the place of another one"
	}
	audit.Note(ctx, note)
	return &form.Reply[fleet.Decided]{Body: out}, nil
}
