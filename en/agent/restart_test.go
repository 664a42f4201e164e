package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestRestartKilledAtEachStep kills the agent at each of its effects while it restarts a container on request, whose program ends then with the
// code of a signal or with 0, before the next agent looks or after it has: the deployment stays INSTALLED and its container runs. A crash after
// that counts.
func TestRestartKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, policy := range []protocol.RestartPolicy{protocol.RestartNo, protocol.RestartOnFailure, protocol.RestartAlways} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			t.Parallel()
			steps := 0
			for _, after := range []bool{false, true} {
				for _, code := range []int32{0, 143} {
					for _, late := range []bool{false, true} {
						for kill := 1; restartKilled(t, policy, death{kill, after, code, late}) != ""; kill++ {
							steps++
						}
					}
				}
			}
			if steps < 24 {
				t.Errorf("%d steps were tried, want at least 24", steps)
			}
		})
	}
}

// A death is when an agent is killed that restarts a container, and how that ends.
type death struct {
	kill  int
	after bool
	code  int32
	late  bool // it ends only when the next agent runs
}

// restartKilled returns the effect at which the agent was killed; empty: it had done its work before.
func restartKilled(t *testing.T, policy protocol.RestartPolicy, d death) (killed string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{Program: func(engine.Container, uint32) memory.Program { return memory.Program{StopTakes: 2 * time.Second} }})
		n.start()
		v1 := version("1", 1, protocol.Container{Name: "web", Restart: protocol.Restart{Policy: policy}})
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(10 * time.Minute) // it is proven
		n.stop()
		o := n.options()
		g := &gate{left: -1, Engine: n.engine, host: n.engine, store: n.store, uplink: n.lo}
		o.Engine, o.Host, o.Store, o.Uplink = g, g, g, g
		n.startWith(o)
		<-time.After(time.Minute)
		g.mu.Lock()
		g.left, g.after = d.kill, d.after
		g.mu.Unlock()
		before := n.restarts()
		_, _ = n.runner.Restart(t.Context(), "app", func(string, string) bool { return true }, false) // its error is that of the gate
		g.mu.Lock()
		killed = g.killed
		g.dead, g.left = true, -1
		g.mu.Unlock()
		stopped := killed == "stop web" // the signal was sent, or may have been
		end := func() {
			if stopped && n.restarts() == before {
				_ = n.engine.Exit(webID, d.code) // it may have ended
			}
		}
		n.stop()
		if !d.late {
			end()
		}
		n.start()
		defer n.stop()
		<-time.After(time.Second)
		if d.late {
			end()
		}
		<-time.After(5 * time.Minute)
		n.wantContainers(running("web", v1))
		if got := n.lo.transitions(); len(got) != 1 {
			t.Errorf("killed at %q, %+v: transitions %q, want that of the installation alone", killed, d, got)
		}
		if got := n.restarts() - before; got > 1 || stopped && got == 0 {
			t.Errorf("killed at %q, %+v: %d restarts", killed, d, got)
		}
		if policy == protocol.RestartNo {
			if err := n.engine.Exit(webID, 1); err != nil {
				t.Error(err)
			}
			n.eventually("app", lifecycle.Failed)
		}
	})
	return killed
}

// restarts returns how often the container was started again.
func (n *node) restarts() uint32 {
	n.t.Helper()
	list, err := n.engine.List(n.t.Context())
	if err != nil || len(list) != 1 {
		n.t.Fatal(list, err)
	}
	return list[0].Restarts
}
