package api

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// checkWait bounds how long a write waits for registries that are slow.
const checkWait = 10 * time.Second

// check says why a deployment must not be committed.
func (a *API) check(ctx context.Context, t intent.Target, d *v1rc3.Deployment) error {
	if a.opts.Check == nil {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	err := a.opts.Check(waiting, intent.Path(t.Site, t.Name), d)
	if err == nil || protocol.KindOf(err) == protocol.Invalid {
		return err
	}
	a.log.WarnContext(ctx, "deployment not checked before its commit", "site_id", t.Site, "deployment_id", t.Name, "err", err)
	return ctx.Err()
}
