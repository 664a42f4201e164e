package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/proposals"
	"github.com/colonyfleet/colony/protocol"
)

// ProposalStore is the record of proposals.
type ProposalStore interface {
	proposals.Store
	// ConfirmRemoval agrees to one removal that is held; NotFound where there is none.
	ConfirmRemoval(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, by string) error
	// HeldRemovals counts the open proposals, and what they hold.
	HeldRemovals(ctx context.Context) (proposals, removals int, err error)
}

func conflicts(o *huma.Operation) { o.Errors = append(o.Errors, http.StatusConflict) }

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
