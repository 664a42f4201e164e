package api

import (
	"context"

	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// named is a store of the fleet whose error of a site that does not exist lists some that do.
type named struct{ FleetStore }

// Site returns one site.
func (n named) Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	v, err := n.FleetStore.Site(ctx, id)
	if protocol.KindOf(err) == protocol.NotFound {
		err = within.Missing(ctx, id, n.SitesLike)
	}
	return v, err
}
