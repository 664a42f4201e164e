package co

import (
	"context"

	webhookdb "github.com/colonyfleet/colony/co/db/webhook"
	"github.com/colonyfleet/colony/co/webhook"
)

// startWebhooks posts events where the options say. Of several COs on one database one does for each hook.
func (c *CO) startWebhooks(s stores) error {
	if len(c.opts.Webhooks) == 0 {
		return nil
	}
	posters, err := webhook.New(webhook.Options{
		Hooks: c.opts.Webhooks, Events: s.fleet, Positions: webhookdb.New(s.db),
		Lock: func(ctx context.Context, hook string) (context.Context, func(), error) {
			return s.db.Lease(ctx, "webhook "+hook)
		},
		Logger: c.log, Registerer: c.opts.Registerer,
	})
	if err != nil {
		return err
	}
	for _, p := range posters {
		c.parts.Go("webhook "+p.Name(), p.Run)
	}
	return nil
}
