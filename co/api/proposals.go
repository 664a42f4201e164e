package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/protocol"
)

// ProposalStore is the record of proposals.
type ProposalStore interface {
	// Proposals lists proposals without effects, the newest first; an empty state lists all.
	Proposals(ctx context.Context, state proposal.State, p fleet.Page) ([]proposal.Proposal, string, error)
	Proposal(ctx context.Context, id string) (proposal.Proposal, error)
	// Confirm and Withdraw decide on an open proposal. One that is decided the same way
	// already stays so, one that is closed otherwise is a Conflict.
	Confirm(ctx context.Context, id, by string) (proposal.Proposal, error)
	Withdraw(ctx context.Context, id, by string) (proposal.Proposal, error)
	// ConfirmRemoval agrees to one removal that is held; NotFound where there is none.
	ConfirmRemoval(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, by string) error
	// HeldRemovals counts the open proposals, and what they hold.
	HeldRemovals(ctx context.Context) (proposals, removals int, err error)
}

func (a *API) proposalRoutes(h huma.API) {
	const one = "/api/v1/proposals/{id}"
	huma.Get(h, "/api/v1/proposals", a.listProposals, form.Describe("proposals", "List proposals: changes that wait to be confirmed"))
	huma.Get(h, one, a.getProposal, form.Describe("proposals", "Show a proposal and its effects"))
	huma.Post(h, one+"/confirm", a.confirmProposal, form.Describe("proposals", "Agree to a proposal: what it holds is done"), conflicts)
	huma.Post(h, one+"/withdraw", a.withdrawProposal, form.Describe("proposals", "Refuse a proposal: what it holds stays as it is"), conflicts)
}

func conflicts(o *huma.Operation) { o.Errors = append(o.Errors, http.StatusConflict) }

func (a *API) listProposals(ctx context.Context, in *struct {
	form.PageQuery
	State proposal.State `query:"state" enum:"open,confirmed,superseded,withdrawn" doc:"only in this state"`
},
) (*form.Reply[List[proposal.Proposal]], error) {
	items, next, err := a.opts.Proposals.Proposals(ctx, in.State, in.Page())
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return page(items, next, nil)
}

// ProposalPath names a proposal. It is exported because it is embedded, and huma reads
// exported fields only.
type ProposalPath struct {
	ID string `path:"id" doc:"the proposal"`
}

func (a *API) getProposal(ctx context.Context, in *ProposalPath) (*form.Reply[proposal.Proposal], error) {
	p, err := a.opts.Proposals.Proposal(ctx, in.ID)
	return a.proposal(ctx, p, err)
}

// A Decision says who decides on a proposal.
type Decision struct {
	By string `json:"by,omitempty" maxLength:"200" doc:"who decides, for the record; it is not verified, and not used where the CO wants tokens: there it is the name of the token"`
}

type decisionInput struct {
	ProposalPath
	Body *Decision
}

// by returns who decides: whose token it is, or where none is wanted, who the body says.
func (in *decisionInput) by(ctx context.Context) string {
	if p, ok := access.From(ctx); ok {
		return p.Name
	}
	if in.Body == nil {
		return ""
	}
	return in.Body.By
}

func (a *API) confirmProposal(ctx context.Context, in *decisionInput) (*form.Reply[proposal.Proposal], error) {
	p, err := a.opts.Proposals.Confirm(ctx, in.ID, in.by(ctx))
	if err == nil {
		a.opts.Changed()
	}
	return a.proposal(ctx, p, err)
}

func (a *API) withdrawProposal(ctx context.Context, in *decisionInput) (*form.Reply[proposal.Proposal], error) {
	p, err := a.opts.Proposals.Withdraw(ctx, in.ID, in.by(ctx))
	return a.proposal(ctx, p, err)
}

func (a *API) proposal(ctx context.Context, p proposal.Proposal, err error) (*form.Reply[proposal.Proposal], error) {
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	p.Effects = form.NotNil(p.Effects)
	return &form.Reply[proposal.Proposal]{Body: p}, nil
}

// An AcceptedPosition is where the CO goes on with a site.
type AcceptedPosition struct {
	Site     protocol.SiteID   `json:"site"`
	Position protocol.Position `json:"position" doc:"of the desired state that is published next"`
}

func (a *API) acceptPosition(ctx context.Context, in *form.SitePath) (*form.Reply[AcceptedPosition], error) {
	site, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return nil, a.fail(ctx, err)
	}
	at, err := a.opts.Sites.AcceptPosition(ctx, site)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[AcceptedPosition]{Body: AcceptedPosition{site, at}}, nil
}
