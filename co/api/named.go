package api

import (
	"context"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// named is a store of the fleet whose error of a site that does not exist lists some that do, of those that the request
// may be about.
type named struct{ FleetStore }

// Site returns one site.
func (n named) Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	v, err := n.FleetStore.Site(ctx, id)
	if protocol.KindOf(err) != protocol.NotFound {
		return v, err
	}
	known, next, err := n.SitesLike(ctx, fleet.SiteFilter{Within: access.SitesOf(ctx)}, fleet.Page{Limit: shownNames})
	if err != nil {
		return v, err
	}
	there := "nothing yet"
	if len(known) > 0 {
		there = names(known, func(v fleet.Site) string { return string(v.ID) }) + andMore(next)
	}
	return v, protocol.Errorf(protocol.NotFound, "no site %q; there is %s: a site exists once its LO has connected, or when it was created", id, there)
}
