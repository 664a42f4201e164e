// Package proposals has the routes of the API about proposals: changes that wait to be confirmed.
package proposals

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
)

// A Store is the record of proposals.
type Store interface {
	// Proposals lists proposals without effects, the newest first; an empty state lists all.
	Proposals(ctx context.Context, state proposal.State, p fleet.Page) ([]proposal.Proposal, string, error)
	// Proposal returns one proposal with its effects.
	Proposal(ctx context.Context, id string) (proposal.Proposal, error)
	// Confirm and Withdraw decide on an open proposal. One that is decided the same way
	// already stays so, one that is closed otherwise is a Conflict.
	Confirm(ctx context.Context, id, by string) (proposal.Proposal, error)
	Withdraw(ctx context.Context, id, by string) (proposal.Proposal, error)
}

type routes struct {
	store   Store
	changed func()
	log     *slog.Logger
}

// Register adds the routes to h. It calls changed once a proposal is confirmed.
func Register(h huma.API, store Store, changed func(), log *slog.Logger) {
	r := &routes{store, changed, log}
	const one = "/api/v1/proposals/{id}"
	conflicts := func(o *huma.Operation) { o.Errors = append(o.Errors, http.StatusConflict) }
	huma.Get(h, "/api/v1/proposals", r.list, form.Describe("proposals", "List proposals: changes that wait to be confirmed"))
	huma.Get(h, one, r.get, form.Describe("proposals", "Show a proposal and its effects"))
	huma.Post(h, one+"/confirm", r.confirm, form.Describe("proposals", "Agree to a proposal: what it holds is done"), conflicts)
	huma.Post(h, one+"/withdraw", r.withdraw, form.Describe("proposals", "Refuse a proposal: what it holds stays as it is"), conflicts)
}

func (r *routes) list(ctx context.Context, in *struct {
	form.PageQuery
	State proposal.State `query:"state" enum:"open,confirmed,superseded,withdrawn" doc:"only in this state"`
},
) (*form.Reply[form.List[proposal.Proposal]], error) {
	items, next, err := r.store.Proposals(ctx, in.State, in.Page())
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return form.Page(items, next), nil
}

// ProposalPath names a proposal. It is exported because it is embedded, and huma reads
// exported fields only.
type ProposalPath struct {
	ID string `path:"id" doc:"the proposal"`
}

func (r *routes) get(ctx context.Context, in *ProposalPath) (*form.Reply[proposal.Proposal], error) {
	p, err := r.store.Proposal(ctx, in.ID)
	return r.answer(ctx, p, err)
}

// A Decision names the person that decides on a proposal.
type Decision struct {
	By string `json:"by,omitempty" maxLength:"200" doc:"who decides, for the record; it is not verified, and not used where the CO wants tokens: there it is the name of the token"`
}

type decisionInput struct {
	ProposalPath
	Body *Decision
}

// by returns the person that decides: the name of the token, or where none is required, the name in
// the body.
func (in *decisionInput) by(ctx context.Context) string {
	if p, ok := access.From(ctx); ok {
		return p.Name
	}
	if in.Body == nil {
		return ""
	}
	return in.Body.By
}

func (r *routes) confirm(ctx context.Context, in *decisionInput) (*form.Reply[proposal.Proposal], error) {
	p, err := r.store.Confirm(ctx, in.ID, in.by(ctx))
	if err == nil {
		r.changed()
	}
	return r.answer(ctx, p, err)
}

func (r *routes) withdraw(ctx context.Context, in *decisionInput) (*form.Reply[proposal.Proposal], error) {
	p, err := r.store.Withdraw(ctx, in.ID, in.by(ctx))
	return r.answer(ctx, p, err)
}

func (r *routes) answer(ctx context.Context, p proposal.Proposal, err error) (*form.Reply[proposal.Proposal], error) {
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	p.Effects = form.NotNil(p.Effects)
	return &form.Reply[proposal.Proposal]{Body: p}, nil
}
