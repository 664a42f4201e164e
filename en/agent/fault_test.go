package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestPassingFaultsDoNotEndARollback(t *testing.T) {
	t.Parallel()
	for _, op := range []memory.Op{memory.Pull, memory.Start, memory.Stop, memory.Remove} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, memory.Options{})
				n.start()
				defer n.stop()
				v1, v2 := version("1", 1, web()), version("2", 1, web())
				n.want(v1)
				n.eventually("app", lifecycle.Installed)
				n.want(v2)
				n.eventually("app", lifecycle.Installed)
				fault := engine.Errorf(protocol.InternalError, "device or resource busy")
				n.engine.Fail(op, fault, fault, fault)
				v1.Rollback = true
				n.want(v1)
				n.eventually("app", lifecycle.Installed)
				n.wantContainers(running("web", v1))
				want := []string{"INSTALLING>INSTALLED", "UPDATING>INSTALLED", "ROLLINGBACK>INSTALLED"}
				if diff := cmp.Diff(want, n.lo.transitions()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestLastingFaultsEndARollback(t *testing.T) {
	t.Parallel()
	for _, op := range []memory.Op{memory.Pull, memory.Start, memory.Remove} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, memory.Options{})
				n.start()
				defer n.stop()
				n.want(version("2", 1, web()))
				n.eventually("app", lifecycle.Installed)
				fault := engine.Errorf(protocol.InternalError, "device or resource busy")
				n.engine.Fail(op, fault, fault, fault, fault, fault, fault, fault)
				v1 := version("1", 1, web())
				v1.Rollback = true
				began := time.Now()
				n.want(v1)
				rec := n.eventually("app", lifecycle.Failed)
				if rec.Code != protocol.InternalError || time.Since(began) > time.Minute {
					t.Errorf("%s after %s, want the fault reported within a minute", rec.Code, time.Since(began))
				}
			})
		})
	}
}

func TestPassingFaultAtTheCutOverIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		n.engine.Fail(memory.Remove, engine.Errorf(protocol.InternalError, "device or resource busy"))
		v2 := version("2", 1, web())
		n.want(v2)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		if diff := cmp.Diff([]string{"INSTALLING>INSTALLED", "UPDATING>INSTALLED"}, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
	})
}

// A slowHost takes a while for its sweeps.
type slowHost struct{ *memory.Engine }

func (s slowHost) Sweep(ctx context.Context, o engine.SweepOptions) error {
	select {
	case <-time.After(10 * time.Second):
		return s.Engine.Sweep(ctx, o)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestSweepUnderWayKeepsNewImages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		o := n.options()
		o.Host = slowHost{n.engine}
		n.startWith(o)
		defer n.stop()
		n.want() // the first desired state begins a sweep
		<-time.After(time.Second)
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
		if got := n.engine.Calls(memory.Start); got != 1 {
			t.Errorf("started %d times, want once: the sweep that was under way removed it", got)
		}
	})
}

func TestRefusedReportIsNotHurriedByProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.probe = func(plan.Target) bool { return false }
		n.lo.setRefuse(protocol.Errorf(protocol.Unavailable, "the disk is full"))
		n.start()
		defer n.stop()
		n.want(version("1", 1, web()))
		<-time.After(10 * time.Second)
		slow := web() // each probe is progress to report
		slow.Health = &protocol.Health{HTTP: "/", Port: 80, StartPeriodMillis: 3_600_000, StartIntervalMillis: 100}
		n.want(version("2", 1, slow))
		<-time.After(10 * time.Minute)
		n.lo.mu.Lock()
		asked := n.lo.asked
		n.lo.mu.Unlock()
		if asked > 30 {
			t.Errorf("the report was sent %d times in ten minutes", asked)
		}
		n.lo.setRefuse(nil)
		n.runner.Connected(true) // the link came back: at once, not when the wait is over
		<-time.After(100 * time.Millisecond)
		if got := n.lo.transitions(); len(got) != 2 {
			t.Errorf("reports %q, want the two that waited", got)
		}
	})
}

// deaf is an engine whose containers do not heed the signal to stop: each is killed after 10 s.
type deaf struct{ engine.Engine }

func (d deaf) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	time.Sleep(10 * time.Second)
	return d.Engine.Stop(ctx, id, grace)
}

// TestContainersStopAtOnce removes a deployment of five containers, of which one needs the other four: it
// takes the time of two.
func TestContainersStopAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		o := n.options()
		o.Engine = deaf{n.engine}
		n.startWith(o)
		defer n.stop()
		var all []protocol.Container
		first := web()
		for _, name := range []string{"a", "b", "c", "d"} {
			k := web()
			k.Name = name
			all = append(all, k)
			first.DependsOn = append(first.DependsOn, protocol.Dependency{Container: name})
		}
		n.want(version("1", 1, append(all, first)...))
		n.eventually("app", lifecycle.Installed)
		since := time.Now()
		n.remove(protocol.NodeRemoval{})
		n.eventually("app", lifecycle.Deleted)
		if took := time.Since(since); took < 20*time.Second || took > 30*time.Second {
			t.Errorf("removed in %s, want 20 s: ten for one, and ten for those that it needs", took)
		}
	})
}
