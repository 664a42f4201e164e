package containerd

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
)

// A container that the kernel killed for want of memory is one that ran out of memory,
// also after its task was removed and by another agent, and until it starts again.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("eat", "134217728")
	c.Spec.Limits.MemoryBytes = 32 << 20
	r.run(t, c)
	awaitEnd(t, r.Engine, func(st engine.Status) bool {
		return st.OutOfMemory && st.ExitCode == 137 && st.Message == "the last words"
	})
	awaitEnd(t, r.open(t), func(st engine.Status) bool { return st.OutOfMemory })
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.run(t, r.container("exit", "137", "by itself"))
	awaitEnd(t, r.Engine, func(st engine.Status) bool { return !st.OutOfMemory && st.ExitCode == 137 })
}

// awaitEnd lists until the only container has exited, and checks how.
func awaitEnd(t *testing.T, e *Engine, ok func(engine.Status) bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		list, err := e.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("listed %+v (%v), want one container", list, err)
		}
		if list[0].State == engine.Exited {
			if !ok(list[0]) {
				t.Errorf("it ended as %+v", list[0])
			}
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%+v has not ended", list[0])
		}
	}
}
