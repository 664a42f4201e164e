package containerd

import (
	"context"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// recover makes anew what damage took of a container that runs. The caller holds the lock.
func (e *Engine) recover(ctx context.Context, k string, c engine.Container) error {
	if err := e.joined.Recover(ctx, k, c); err != nil {
		return err
	}
	if !e.names.Unknown(k) {
		return nil
	}
	if err := e.names.Adopt(ctx, k, c); err != nil {
		e.log.WarnContext(ctx, "settings of the names of a container were damaged, and are not all written anew", "container", c.ID.String(), "err", err)
	}
	return nil
}

// Vacant returns an error where a container of a deployment could not publish one of the ports.
func (e *Engine) Vacant(_ context.Context, d protocol.DeploymentName, ports []protocol.Port) error {
	if err := e.net.Vacant(string(d), ports); err != nil {
		return engine.Errorf(protocol.StartFailed, "%w", err)
	}
	return nil
}
