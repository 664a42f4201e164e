// Package within keeps a request to what belongs to the sites that its token holds for.
package within

import (
	"context"
	"strings"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// Picked returns the sites that a request may be about, and the error of kind Denied where the one that it asks for, if any,
// is none of them.
func Picked(ctx context.Context, asked protocol.SiteID) (siteset.Set, error) {
	if asked != "" {
		if err := access.Check(ctx, asked); err != nil {
			return siteset.Set{}, err
		}
	}
	return access.SitesOf(ctx), nil
}

// shown is how many of the sites that exist an error lists.
const shown = 10

// Missing returns the error of a site that does not exist. It lists some that do, of those that the request may be about,
// which list returns.
func Missing(ctx context.Context, id protocol.SiteID, list func(context.Context, fleet.SiteFilter, fleet.Page) ([]fleet.Site, string, error)) error {
	known, next, err := list(ctx, fleet.SiteFilter{Within: access.SitesOf(ctx)}, fleet.Page{Limit: shown})
	if err != nil {
		return err
	}
	ids := make([]string, len(known))
	for i := range known {
		ids[i] = string(known[i].ID)
	}
	there := "nothing yet"
	if len(ids) > 0 {
		there = strings.Join(ids, ", ")
	}
	if next != "" {
		there += " and more"
	}
	return protocol.Errorf(protocol.NotFound, "no site %q; there is %s: a site exists once its LO has connected, or when it was created", id, there)
}
