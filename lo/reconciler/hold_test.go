package reconciler

import (
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// expectWait checks what waits of the deployment, and that a step more says the same and changes nothing.
func (w *world) expectWait(part string) {
	w.t.Helper()
	for range 2 {
		switch waits := w.last.Waits; {
		case part == "" && len(waits) > 0:
			w.t.Errorf("%v waits, and nothing should", waits)
		case part != "" && (len(waits) != 1 || waits[0].Deployment != "web" || !strings.Contains(waits[0].Why, part)):
			w.t.Errorf("%v waits, want %q of web", waits, part)
		}
		w.step()
	}
	if w.last.Changed || w.last.Reassigned {
		w.t.Errorf("a step that has nothing to do: changed %t, reassigned %t", w.last.Changed, w.last.Reassigned)
	}
}

func TestHoldDelaysAnUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.held = "held by anna: a batch runs"
	w.step()
	w.expectWait("")
	w.desire("2")
	w.expectWait("the update waits: the node is held by anna: a batch runs")
	w.expect("1", 1, false)
	w.desire("1")
	w.expectWait("")
	w.desire("2")
	w.expectTransitions()
	w.held = ""
	w.step()
	w.expect("2", 1, false)
	w.expectTransitions("LO UPDATING")
	w.expectWait("")
}

func TestHoldDelaysTheRest(t *testing.T) {
	t.Parallel()
	hold := func(w *world) { w.held = "held by anna: a batch runs"; w.step() }
	for name, tt := range map[string]struct {
		act  func(*world)
		want string
	}{
		"an installation": {func(w *world) { hold(w); w.desire("1") }, "the installation waits"},
		"a removal":       {func(w *world) { w.install("1"); hold(w); w.remove() }, "the removal waits"},
		"a move": {func(w *world) {
			w.install("1")
			hold(w)
			delete(w.desired, "web")
			w.moved = map[protocol.DeploymentName]bool{"web": true}
			w.step()
		}, "the move to another node waits"},
		"a retry": {func(w *world) { w.desire("1"); hold(w); w.report(lifecycle.Failed, protocol.ImageNotFound) }, "the next attempt"},
		"a retry that was asked for": {func(w *world) {
			w.desire("1", attempts(1))
			w.report(lifecycle.Failed, protocol.ImageNotFound)
			hold(w)
			w.desire("1", attempts(1), retrying(1))
		}, "that was asked for"},
		"a rollback by hand": {func(w *world) { w.install("1"); w.install("2"); hold(w); w.desire("1", rollback) }, "the update waits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.act(w)
			w.transitions = nil
			before := w.last.Desired.ContentDigest()
			w.reconcile(time.Hour)
			w.expectWait(tt.want)
			w.expectTransitions()
			if w.last.Desired.ContentDigest() != before {
				t.Error("what the node is to run has changed")
			}
			w.held = ""
			w.reconcile(time.Hour)
			w.expectWait("")
			if len(w.transitions) == 0 {
				t.Error("nothing follows the end of the hold")
			}
		})
	}
}

// TestHoldLeavesWhatRuns: crashes are reported and recovered from, and what was assigned before goes on.
func TestHoldLeavesWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2")
	w.held = "held by anna: a batch runs"
	w.transitions = nil
	w.report(lifecycle.Installed, "")
	w.expect("2", 1, false)
	w.report(lifecycle.Failed, protocol.CrashLoop, func(m *protocol.DeploymentStatus) { m.Recovering = true })
	w.expectWait("")
	w.report(lifecycle.Installed, "")
	w.expectTransitions("EN INSTALLED", "EN FAILED", "EN INSTALLED")
	w.purges = []protocol.NodePurge{{Deployment: "old", Volume: "data"}}
	w.step()
	if len(w.last.Desired.Purges) != 0 {
		t.Errorf("volumes are removed from a node that is held: %v", w.last.Desired.Purges)
	}
}

// TestHoldGoesOnWithARemovalThatHasBegun: the node was given it before the hold.
func TestHoldGoesOnWithARemovalThatHasBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.remove()
	w.held = "held by anna: a batch runs"
	w.step()
	w.expectWait("")
	w.report(lifecycle.Deleted, "")
	w.expectTransitions("LO DELETING", "EN DELETED")
}
