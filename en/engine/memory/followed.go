package memory

import (
	"context"
	"maps"

	"github.com/colonyfleet/colony/protocol"
)

// Followed returns what Follow stored.
func (e *Engine) Followed(context.Context) (map[protocol.DeploymentName]protocol.Position, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.followed), nil
}

// Follow stores a position that is later than the one that is stored.
func (e *Engine) Follow(_ context.Context, d protocol.DeploymentName, at protocol.Position) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at.After(e.followed[d]) {
		e.followed[d] = at
	}
	return nil
}

// Forget removes a position.
func (e *Engine) Forget(_ context.Context, d protocol.DeploymentName) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.followed, d)
	return nil
}
