package agent

import (
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
