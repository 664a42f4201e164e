package containerd

import (
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// TestUsage has a container execute a program, and another one use the network of the machine.
func TestUsage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.Limits.MemoryBytes = 64 << 20
	r.run(t, c)
	host := r.container("wait")
	host.ID.Name, host.Spec.Name, host.Spec.Network = "host", "host", protocol.NetworkHost
	r.run(t, host)
	ids := []engine.ID{c.ID, host.ID}
	before, err := r.Usage(t.Context(), ids)
	if err != nil || len(before) != 2 {
		t.Fatalf("usage %+v, %v", before, err)
	}
	if before[0].MemoryLimit != 64<<20 || before[1].MemoryLimit != 0 {
		t.Errorf("limits of memory %d and %d, want 64 MiB and none", before[0].MemoryLimit, before[1].MemoryLimit)
	}
	if !before[0].HasNetwork || before[1].HasNetwork {
		t.Errorf("a network of its own: %t and %t, want only the first to have one", before[0].HasNetwork, before[1].HasNetwork)
	}
	if _, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "id"}); err != nil {
		t.Fatal(err)
	}
	after, err := r.Usage(t.Context(), ids[:1])
	if err != nil || len(after) != 1 || after[0].CPU <= before[0].CPU {
		t.Errorf("after a program in it: %+v, %v; before: %+v", after, err, before[0])
	}
}
