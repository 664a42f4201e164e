package co

import (
	"context"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// watched delivers messages, and shows those that went out to whoever watches.
func (c *CO) watched(deliver func(context.Context, []fleet.Delivery) error) func(context.Context, []fleet.Delivery) error {
	return func(ctx context.Context, list []fleet.Delivery) error {
		if err := deliver(ctx, list); err != nil {
			return err
		}
		c.live.Deliver(list)
		return nil
	}
}

// watch is the API's way to what the CO delivers.
func (c *CO) watch(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) api.Watch {
	return c.live.Subscribe(site, limit, want)
}
