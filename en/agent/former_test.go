package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestFormerVersionRunsBetweenAttempts updates to a version whose check fails in two attempts:
// between them and after them the old version runs, and the reports say so.
func TestFormerVersionRunsBetweenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v1, v2 := version("1", 1, web()), version("2", 1, probed(web()))
		n := newNode(t, memory.Options{})
		n.probe = func(plan.Target) bool { return false }
		n.start()
		defer n.stop()
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		var rec plan.Record
		for attempt := range uint32(2) {
			v2.Attempt = attempt + 1
			n.want(v2)
			for rec = n.eventually("app", lifecycle.Failed); rec.Attempt != v2.Attempt; rec = n.eventually("app", lifecycle.Failed) {
				<-time.After(time.Second)
			}
			if m := n.lo.last(t); m.Digest != v2.Digest || m.Running != v1.Digest || m.RunningVersion != "1" {
				t.Errorf("attempt %d: reported %s running %q (%s), want the old version running", attempt, m.Digest.Short(), m.RunningVersion, m.Running.Short())
			}
			<-time.After(time.Minute)
			n.wantContainers(running("web", v1))
		}
		// It is looked after, and a new agent goes on with it.
		if err := n.engine.Exit(webID, 1); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		n.wantContainers(running("web", v1))
		n.stop()
		n.start()
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
		before, err := n.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v1.Rollback, v1.Attempt = true, 2
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		after, err := n.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("the rollback replaced what ran:\n%s", diff)
		}
	})
}

// TestFormerVersionReturnsBeforeTheUpdateIsProven updates to a version that is INSTALLED and fails
// a minute later, in two attempts: after each of them, and once the LO returns to the old version,
// that one runs, and its image has stayed on the node. Once an update is proven, it is removed.
func TestFormerVersionReturnsBeforeTheUpdateIsProven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v1, v2, v3 := version("1", 1, web()), version("2", 1, probed(web())), version("3", 1, web())
		n := newNode(t, memory.Options{})
		var sick time.Time
		n.probe = func(plan.Target) bool { return time.Now().Before(sick) }
		n.start()
		defer func() { n.stop() }()
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		pulls := n.engine.Calls(memory.Pull) // two, where the first was interrupted by the agent's first look
		for attempt := range uint32(2) {
			v2.Attempt = attempt + 1
			sick = time.Now().Add(time.Minute)
			n.want(v2)
			n.eventually("app", lifecycle.Installed)
			n.wantContainers(running("web", v2))
			n.stop() // the agent knows it after a restart
			n.start()
			n.eventually("app", lifecycle.Failed)
			if m := n.lo.last(t); m.Digest != v2.Digest || m.Running != v1.Digest || m.RunningVersion != "1" || m.Recovering {
				t.Errorf("attempt %d: reported %s running %q, want the old version running", m.Attempt, m.Digest.Short(), m.RunningVersion)
			}
			<-time.After(time.Minute)
			n.wantContainers(running("web", v1))
		}
		if got := n.engine.Calls(memory.Pull) - pulls; got != 2 {
			t.Errorf("%d pulls, want one for each attempt and none for the old version", got)
		}
		v1.Rollback, v1.Attempt = true, 2
		n.want(v1)
		if rec := n.eventually("app", lifecycle.Installed); rec.Proven != v1.Digest {
			t.Errorf("proven %s, want the old version", rec.Proven.Short())
		}
		n.wantContainers(running("web", v1))

		n.want(v3)
		n.eventually("app", lifecycle.Installed)
		images := func(want ...string) {
			t.Helper()
			if got := n.engine.Images(); !slices.Equal(got, want) {
				t.Errorf("images %q, want %q", got, want)
			}
		}
		images(image("1"), image("3"))
		<-time.After(3 * time.Minute)
		images(image("3"))
	})
}

// TestPolicyThatForbidsTheFormerVersion updates under a policy without rollback: nothing runs
// once the update has failed.
func TestPolicyThatForbidsTheFormerVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.probe = func(plan.Target) bool { return false }
		n.start()
		defer n.stop()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		v2 := version("2", 1, probed(web()))
		v2.NoRollback = true
		n.want(v2)
		n.eventually("app", lifecycle.Failed)
		<-time.After(time.Minute)
		n.wantContainers()
		if m := n.lo.last(t); m.Running != "" {
			t.Errorf("reported running %s, want none", m.RunningVersion)
		}
	})
}

// probed adds a health check to a container.
func probed(c protocol.Container) protocol.Container {
	c.Health = &protocol.Health{Command: []string{"check"}, IntervalMillis: 1000, Retries: 1}
	return c
}
