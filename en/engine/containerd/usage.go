package containerd

import (
	"context"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/cgroupusage"
)

// Usage returns what containers use. It asks the kernel alone: a call of each shim would cost more than all the rest.
func (e *Engine) Usage(ctx context.Context, ids []engine.ID) ([]engine.Usage, error) {
	var out []engine.Usage
	for _, id := range ids {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		k := marks.Key(id)
		used, known := cgroupusage.System().Read(e.cgroup() + "/" + k)
		if !known {
			continue
		}
		u := engine.Usage{ID: id, CPU: used.CPU, Memory: used.Memory, MemoryLimit: used.MemoryLimit}
		if used.IO != nil {
			u.Read, u.Written, u.HasIO = used.IO.Read, used.IO.Written, true
		}
		if used.Network != nil && e.net.Has(k) {
			u.Received, u.Sent, u.HasNetwork = used.Network.Received, used.Network.Sent, true
		}
		out = append(out, u)
	}
	return out, nil
}
