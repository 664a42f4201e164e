package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

var errDead = errors.New("the agent was killed")

// A gate stands between a runner and the world, and kills the runner at its n-th
// effect on it: before the effect, or after it and before the runner learns of it.
type gate struct {
	mu     sync.Mutex
	left   int // effects until the kill; negative: never
	after  bool
	dead   bool
	killed string // the effect at which it died

	engine.Engine
	host   Host
	store  Store
	uplink Uplink
}

func (g *gate) effect(name string, do func() error) error {
	g.mu.Lock()
	if g.dead {
		g.mu.Unlock()
		return errDead
	}
	g.left--
	if g.left != 0 {
		g.mu.Unlock()
		return do()
	}
	g.dead, g.killed = true, name
	g.mu.Unlock()
	if g.after {
		_ = do() // its result is never seen
	}
	return errDead
}

func (g *gate) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.dead
}

func (g *gate) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	return g.effect("pull", func() error { return g.Engine.Pull(ctx, ref, report) })
}

func (g *gate) Start(ctx context.Context, c engine.Container) error {
	return g.effect("start "+c.Spec.Name, func() error { return g.Engine.Start(ctx, c) })
}

func (g *gate) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	return g.effect("stop "+id.Name, func() error { return g.Engine.Stop(ctx, id, grace) })
}

func (g *gate) Remove(ctx context.Context, id engine.ID) error {
	return g.effect("remove "+id.Name, func() error { return g.Engine.Remove(ctx, id) })
}

func (g *gate) List(ctx context.Context) ([]engine.Status, error) {
	if !g.alive() {
		return nil, errDead
	}
	return g.Engine.List(ctx)
}

func (g *gate) Sweep(ctx context.Context, o engine.SweepOptions) error {
	return g.effect("sweep", func() error { return g.host.Sweep(ctx, o) })
}

func (g *gate) SaveRecord(r plan.Record) error {
	return g.effect(fmt.Sprintf("save %s", r.State), func() error { return g.store.SaveRecord(r) })
}

func (g *gate) RemoveRecord(name protocol.DeploymentName) error {
	return g.effect("forget", func() error { return g.store.RemoveRecord(name) })
}

func (g *gate) SaveDesired(b []byte) error {
	return g.effect("save desired", func() error { return g.store.SaveDesired(b) })
}

func (g *gate) SaveCounter(n uint64) error {
	return g.effect("save counter", func() error { return g.store.SaveCounter(n) })
}

func (g *gate) SaveVolumes(v plan.Volumes) error {
	if !g.alive() {
		return errDead
	}
	return g.store.SaveVolumes(v)
}

func (g *gate) SaveTrust(s trust.State) error {
	if !g.alive() {
		return errDead
	}
	return g.store.SaveTrust(s)
}

func (g *gate) Vacant(ctx context.Context, d protocol.DeploymentName, ports []protocol.Port) error {
	return g.host.Vacant(ctx, d, ports)
}

func (g *gate) Volumes(ctx context.Context) ([]engine.Volume, error) { return g.host.Volumes(ctx) }

func (g *gate) VolumeBytes(ctx context.Context, v engine.Volume) (uint64, error) {
	return g.host.VolumeBytes(ctx, v)
}

func (g *gate) RemoveVolume(ctx context.Context, v engine.Volume) error {
	return g.effect("remove volume "+v.String(), func() error { return g.host.RemoveVolume(ctx, v) })
}

func (g *gate) Followed(ctx context.Context) (map[protocol.DeploymentName]protocol.Position, error) {
	return g.host.Followed(ctx)
}

func (g *gate) Follow(ctx context.Context, d protocol.DeploymentName, at protocol.Position) error {
	return g.effect("follow "+string(d), func() error { return g.host.Follow(ctx, d, at) })
}

func (g *gate) Forget(ctx context.Context, d protocol.DeploymentName) error {
	return g.effect("forget position of "+string(d), func() error { return g.host.Forget(ctx, d) })
}

func (g *gate) ReportAll(ctx context.Context, m protocol.NodeReport) error {
	if !g.alive() {
		return errDead
	}
	return g.uplink.ReportAll(ctx, m)
}

func (g *gate) Report(ctx context.Context, m protocol.DeploymentStatus, durable bool) error {
	return g.effect(fmt.Sprintf("report %s", m.State), func() error { return g.uplink.Report(ctx, m, durable) })
}

// A scenario brings a node from one desired state to another.
type scenario struct {
	name        string
	script      memory.Options
	before      []protocol.Assignment // reached without a crash
	then        []protocol.Assignment // crashed into
	end         lifecycle.State
	transitions []string // the reports that the LO has in the end
}

func scenarios() []scenario {
	db := protocol.Container{Name: "db", Restart: protocol.Restart{Policy: protocol.RestartAlways}}
	front := web()
	front.DependsOn = []protocol.Dependency{{Container: "db", Condition: protocol.ServiceHealthy}}
	v1, v2 := version("1", 1, db, front), version("2", 1, db, front)
	bad := version("bad", 1, protocol.Container{Name: "web"})
	script := memory.Options{Program: func(c engine.Container, _ uint32) memory.Program {
		return memory.Program{Exits: c.Spec.Image == image("bad"), After: 10 * time.Millisecond, Code: 2}
	}}
	back := v1
	back.Rollback, back.Attempt = true, 2
	up := "INSTALLING>INSTALLED"
	return []scenario{
		{"install", script, nil, []protocol.Assignment{v1}, lifecycle.Installed, []string{up}},
		{"update", script, []protocol.Assignment{v1}, []protocol.Assignment{v2}, lifecycle.Installed, []string{up, "UPDATING>INSTALLED"}},
		{"failing update", script, []protocol.Assignment{v1}, []protocol.Assignment{bad}, lifecycle.Failed, []string{up, "UPDATING>FAILED start_failed"}},
		{"rollback", script, []protocol.Assignment{v2}, []protocol.Assignment{back}, lifecycle.Installed, []string{up, "ROLLINGBACK>INSTALLED"}},
		{"delete", script, []protocol.Assignment{v1}, nil, lifecycle.Deleted, []string{up, "DELETING>DELETED"}},
	}
}

// TestKilledAtEachStep kills the agent at each of its effects on disk, engine and
// link, before and after the effect, and lets a new one go on: the end is always
// the same.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := s.run(t, -1, false)
			steps := 0
			for _, after := range []bool{false, true} {
				for n := 1; ; n++ {
					got := s.run(t, n, after)
					if got.killed == "" {
						break // it came to its end without an n-th effect
					}
					steps++
					got.killed = ""
					if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
						t.Errorf("killed at effect %d (after it: %v): %s", n, after, diff)
					}
				}
			}
			if steps < 14 {
				t.Errorf("%d steps were tried, want at least 14", steps)
			}
		})
	}
}

// An outcome is what is left to see of a scenario.
type outcome struct {
	killed      string
	containers  []string
	images      []string
	transitions []string
}

func (s scenario) run(t *testing.T, kill int, after bool) (out outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, s.script)
		if s.before != nil {
			n.start()
			n.want(s.before...)
			n.eventually("app", lifecycle.Installed)
			n.stop()
		}
		o := n.options()
		g := &gate{left: kill, after: after, Engine: n.engine, host: n.engine, store: n.store, uplink: n.lo}
		o.Engine, o.Host, o.Store, o.Uplink = g, g, g, g
		n.startWith(o)
		n.gen++
		next := protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen}, Assignments: s.then}
		if s.then == nil {
			next.Removals = []protocol.NodeRemoval{{Deployment: "app"}}
		}
		d := protocol.Marshal(next)
		_ = n.runner.Accept(t.Context(), d) // it may die of that; the LO has it retained
		if kill < 0 {
			n.eventually("app", s.end)
		} else {
			<-time.After(time.Minute)
		}
		n.stop()
		n.start()
		if err := n.runner.Accept(t.Context(), d); err != nil {
			t.Error(err)
		}
		n.eventually("app", s.end)
		<-time.After(5 * time.Minute)
		out = outcome{g.killed, n.containers(), n.engine.Images(), n.lo.transitions()}
		n.stop()
		if !slices.Equal(out.transitions, s.transitions) {
			t.Errorf("killed at %q (effect %d, after it: %v): reports %q, want %q", g.killed, kill, after, out.transitions, s.transitions)
		}
	})
	return out
}
