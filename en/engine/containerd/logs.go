package containerd

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk"
)

// tendEvery is the time between two looks at what belongs to the containers.
const tendEvery = time.Second

// tend looks after what belongs to containers until ctx ends: their name servers follow the
// node's.
func (e *Engine) tend(ctx context.Context) {
	defer close(e.stopped)
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		if err := e.leases.SweepLeft(e.in(ctx)); err != nil {
			e.log.DebugContext(ctx, "leases not dropped yet", "err", err)
		}
		if err := e.programs.SweepLeft(e.in(ctx)); err != nil && ctx.Err() == nil {
			e.log.DebugContext(ctx, "programs not ended yet", "err", err)
		}
		e.forward.Retry()
		if err := e.names.Follow(); err != nil {
			e.log.WarnContext(ctx, "name servers of containers not brought up to date", "err", err)
		}
		if err := e.names.Retry(ctx); err != nil && ctx.Err() == nil {
			e.log.WarnContext(ctx, "names of containers not brought up to date", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// openLogs takes up the logs of the containers.
func openLogs(opts Options) (*ondisk.Store, error) {
	return ondisk.Open(ondisk.Options{Dir: opts.StateDir, Limits: opts.Logs, Damaged: opts.damage, Logger: opts.Logger})
}

// Logs returns what reads the logs of the containers.
func (e *Engine) Logs() logs.Reader { return e.logs }

// reason returns the line by which the last run of a container says why it ended: of stderr, or else of stdout.
func (e *Engine) reason(key string) string { return e.logs.Reason(key, engine.MaxMessage) }
