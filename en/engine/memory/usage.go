package memory

import (
	"context"

	"github.com/colonyfleet/colony/en/engine"
)

// Usage returns what the containers use that run, by the script. It asks for nothing that Lose takes away, as an engine that
// asks the kernel.
func (e *Engine) Usage(_ context.Context, ids []engine.ID) ([]engine.Usage, error) {
	var running []engine.Container
	e.mu.Lock()
	for _, id := range ids {
		if c := e.containers[id]; c != nil && c.status.State == engine.Running {
			running = append(running, c.spec)
		}
	}
	e.mu.Unlock()
	var out []engine.Usage
	for _, c := range running {
		u := e.opts.Usage(c)
		u.ID = c.ID
		out = append(out, u)
	}
	return out, nil
}
