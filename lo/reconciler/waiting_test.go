package reconciler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// reported returns what the journal says of the deployment, from the n-th batch of facts on:
// state, attempt, what runs, and whether the next attempt is named.
func (w *world) reported(from int) (out []string) {
	w.t.Helper()
	for _, facts := range w.journal[from:] {
		for _, f := range facts {
			if f.Event.Kind != protocol.StatusEvent {
				continue
			}
			var m protocol.DeploymentStatus
			if err := protocol.Unmarshal(f.Event.Body, &m); err != nil {
				w.t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s %s %d runs %s next %t", m.Actor, m.State, m.Attempt, m.RunningVersion, m.RetryMillis != 0))
		}
	}
	return out
}

// TestWaitingIsReported follows an update that fails until it is given up: the CO learns at each
// step which version runs, and in FAILED when the next attempt is.
func TestWaitingIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1", attempts(2))
	w.report(lifecycle.Installed, "", func(m *protocol.DeploymentStatus) { m.AppVersion = "1" })
	from := len(w.journal)
	former := func(m *protocol.DeploymentStatus) { m.Running, m.RunningVersion = digest("1"), "1" }
	w.desire("2", attempts(2))
	w.report(lifecycle.Failed, protocol.ProbeFailed, former)
	if got, next := w.rec.Deployments["web"].Status.RetryMillis, w.last.NextAt.UnixMilli(); got != next {
		t.Errorf("the next attempt is reported at %d, and is planned at %d", got, next)
	}
	w.step() // nothing is said twice
	w.reconcile(time.Second)
	w.expect("2", 2, false)
	w.report(lifecycle.Failed, protocol.ProbeFailed, former)
	w.expect("1", 2, true)
	w.report(lifecycle.Installed, "")
	want := []string{
		"LO UPDATING 1 runs 1 next false", "EN FAILED 1 runs 1 next false", "LO FAILED 1 runs 1 next true",
		"LO UPDATING 2 runs 1 next false", "EN FAILED 2 runs 1 next false",
		"LO ROLLINGBACK 2 runs 1 next false", "EN INSTALLED 2 runs  next false",
	}
	if diff := cmp.Diff(want, w.reported(from)); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

// TestPlannedAttemptSurvivesAKill loses the LO's record after it has reported when the next
// attempt is: the attempt is made then.
func TestPlannedAttemptSurvivesAKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1", attempts(3))
	w.report(lifecycle.Failed, protocol.ImageNotFound)
	planned := w.last.NextAt
	last := len(w.journal) - 1
	for i, stored := range w.records[last-1:] {
		v := *w
		v.restart(stored)
		for _, facts := range w.journal[last+i:] {
			for _, f := range facts {
				v.rec.Replay(f.Event)
			}
		}
		if got := time.UnixMilli(v.rec.Deployments["web"].RetryMillis); !got.Equal(planned) {
			t.Errorf("the next attempt is at %s, and was planned at %s", got, planned)
		}
		v.reconcile(time.Second)
		v.expect("1", 2, false)
	}
}
