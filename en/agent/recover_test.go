package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A container that was healthy for a month and is not for three minutes is
// reported, kept, and reported as back; with no word from the LO.
func TestUnhealthyContainerStaysAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		sick := time.Now().Add(30 * 24 * time.Hour)
		well := sick.Add(3 * time.Minute)
		n.probe = func(plan.Target) bool { return time.Now().Before(sick) || time.Now().After(well) }
		n.start()
		defer func() { n.stop() }()
		c := web()
		c.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 10_000, Retries: 3}
		v1 := version("1", 1, c)
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(time.Until(sick))
		n.eventually("app", lifecycle.Failed)
		if m := n.lo.last(t); !m.Recovering || m.Code != protocol.ProbeFailed {
			t.Errorf("reported %+v, want probe_failed and recovering", m)
		}
		n.wantContainers(running("web", v1))
		n.stop() // and a restart of the agent changes nothing
		n.start()
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
		rec := n.eventually("app", lifecycle.Installed)
		if rec.Code != "" || time.Now().Before(well) {
			t.Errorf("back at %s with code %q, want after %s and none", time.Now(), rec.Code, well)
		}
		if got := n.engine.Calls(memory.Start); got != 1 {
			t.Errorf("%d starts, want 1", got)
		}
		want := []string{">INSTALLED", "INSTALLED>FAILED probe_failed", "FAILED>INSTALLED"}
		if got := n.lo.transitions(); !slices.Equal(got[len(got)-2:], want[1:]) {
			t.Errorf("transitions %q, want %q at the end", got, want[1:])
		}
	})
}

// TestRefusalIsReportedHoweverTheVersionDoes returns from a version that was given up to one that is proven, which hangs, and works once more: all
// the time the node says what it refuses, for an LO that has lost its record.
func TestRefusalIsReportedHoweverTheVersionDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sick := false
		n := newNode(t, memory.Options{Program: func(c engine.Container, _ uint32) memory.Program {
			return memory.Program{Exits: c.Spec.Image == image("2"), Code: 9}
		}})
		n.probe = func(plan.Target) bool { return !sick }
		n.start()
		defer func() { n.stop() }()
		v1, v2 := version("1", 1, probed(web())), version("2", 1, protocol.Container{Name: "web"})
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute) // it is proven
		n.want(v2)
		n.eventually("app", lifecycle.Failed)
		v1.Rollback, v1.Attempt = true, 2
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		said := func(when string) {
			t.Helper()
			n.stop()
			n.start() // which has it say everything that it holds
			synctest.Wait()
			whole := n.lo.reports()
			for _, m := range []protocol.DeploymentStatus{n.lo.last(t), whole[len(whole)-1].Statuses[0]} {
				if m.Digest != v1.Digest || m.Refused != v2.Digest {
					t.Errorf("%s: reported %s at %s, refused %q, want the version that was given up", when, m.State, m.Digest.Short(), m.Refused)
				}
			}
		}
		said("rolled back")
		sick = true
		if rec := n.eventually("app", lifecycle.Failed); !rec.Recovers() {
			t.Errorf("the proven version is not being recovered: %+v", rec)
		}
		said("failed")
		sick = false
		if rec := n.eventually("app", lifecycle.Installed); rec.Code != "" || rec.Message != "" {
			t.Errorf("recovered with %q %q, which is why it had failed", rec.Code, rec.Message)
		}
		said("recovered")
		v1.Refused = v2.Digest // as the LO says of a rollback
		n.want(v1)
		n.stop()
		if err := os.RemoveAll(filepath.Join(n.dir, "deployments")); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.eventually("app", lifecycle.Installed)
		said("the record was lost")
		n.wantContainers(running("web", v1))
	})
}

// A program that crashes for a day after it was proven is started for all the day.
func TestProvenVersionIsRestartedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		starts := 0
		for begin := time.Now(); time.Since(begin) < 24*time.Hour; {
			if n.engine.Exit(webID, 1) == nil {
				starts++
			}
			<-time.After(10 * time.Second)
		}
		if rec := n.eventually("app", lifecycle.Failed); rec.Code != protocol.CrashLoop || starts < 1000 {
			t.Errorf("%s after %d starts, want crash_loop and above 1000", rec.Code, starts)
		}
		rec := n.eventually("app", lifecycle.Installed) // once it no longer crashes
		n.wantContainers(running("web", v1))
		if rec.Proven != v1.Digest {
			t.Errorf("proven %q, want %q", rec.Proven, v1.Digest)
		}
	})
}

// TestMinHealthyOfThePolicy proves a version after the minimum time of its policy, which a
// later desired state changes while the version runs.
func TestMinHealthyOfThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer func() { n.stop() }()
		v1 := version("1", 1, web())
		v1.MinHealthyMillis = uint32(time.Hour.Milliseconds())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(30 * time.Minute)
		n.stop() // the agent knows it without the LO
		n.start()
		<-time.After(30*time.Minute + time.Second)
		if rec := n.eventually("app", lifecycle.Installed); rec.Proven != "" {
			t.Errorf("proven half an hour after the start of the agent, want an hour")
		}
		v1.MinHealthyMillis = uint32((10 * time.Minute).Milliseconds())
		n.want(v1)
		<-time.After(9 * time.Minute)
		if rec := n.eventually("app", lifecycle.Installed); rec.Proven != "" {
			t.Errorf("proven 9 minutes after the policy said 10")
		}
		<-time.After(2 * time.Minute)
		if rec := n.eventually("app", lifecycle.Installed); rec.Proven != v1.Digest {
			t.Errorf("proven %q 11 minutes after the policy said 10, want %q", rec.Proven, v1.Digest)
		}
		if got := n.engine.Calls(memory.Start); got != 1 {
			t.Errorf("%d starts, want 1: the policy is no part of the version", got)
		}
	})
}
