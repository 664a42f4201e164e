package reconciler

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const closed = "outside the maintenance windows until Sat 22:00"

// TestWindowDelaysWhatInterrupts: what a node has up is updated and removed in a window, and no part of that is lost meanwhile.
func TestWindowDelaysWhatInterrupts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		act  func(*world)
		want string
	}{
		"an update": {func(w *world) { w.install("1"); w.desire("2") }, "the update waits: " + closed},
		"a removal": {func(w *world) { w.install("1"); w.remove() }, "the removal waits: " + closed},
		"a rollback by hand": {func(w *world) {
			w.closed = ""
			w.install("1")
			w.install("2")
			w.closed = closed
			w.desire("1", rollback)
		}, "the update waits: " + closed},
		"another version, while the one before an update that failed is up": {func(w *world) {
			w.closed = ""
			w.install("1")
			w.desire("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, running("1"))
			w.closed = closed
			w.desire("3")
		}, "the update waits: " + closed},
		"the removal of that": {func(w *world) {
			w.closed = ""
			w.install("1")
			w.desire("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, running("1"))
			w.closed = closed
			w.remove()
		}, "the removal waits: " + closed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.closed = closed
			tt.act(w)
			w.transitions = nil
			before := w.last.Desired.ContentDigest()
			w.reconcile(time.Hour)
			w.expectWait(tt.want)
			w.expectTransitions()
			if w.last.Desired.ContentDigest() != before {
				t.Error("what the node is to run has changed")
			}
			w.closed = ""
			w.reconcile(time.Hour)
			w.expectWait("")
			if len(w.transitions) == 0 {
				t.Error("nothing follows the beginning of a window")
			}
		})
	}
}

// TestWindowDelaysNothingElse: what a node does not have up, what a policy lets through, and what has begun.
func TestWindowDelaysNothingElse(t *testing.T) {
	t.Parallel()
	anyTime := func(e *protocol.SiteEntry) { e.Policy.AnyTime = true }
	shut := func(w *world) { w.closed = closed; w.step(); w.transitions = nil }
	for name, tt := range map[string]struct {
		act  func(*world)
		want []string
	}{
		"an installation":               {func(w *world) { shut(w); w.desire("1") }, []string{"LO PENDING", "LO INSTALLING"}},
		"an update that may be anytime": {func(w *world) { w.install("1"); shut(w); w.desire("2", anyTime) }, []string{"LO UPDATING"}},
		"a move": {func(w *world) {
			w.install("1")
			shut(w)
			delete(w.desired, "web")
			w.moved = map[protocol.DeploymentName]bool{"web": true}
			w.step()
		}, []string{"LO DELETING"}},
		"a retry": {func(w *world) {
			w.desire("1")
			shut(w)
			w.report(lifecycle.Failed, protocol.ImageNotFound)
			w.reconcile(time.Hour)
		}, []string{"EN FAILED", "LO INSTALLING"}},
		"another version of what has failed": {func(w *world) {
			w.desire("1", attempts(1))
			w.report(lifecycle.Failed, protocol.ImageNotFound)
			shut(w)
			w.desire("2")
		}, []string{"LO INSTALLING"}},
		"the removal of what has failed": {func(w *world) {
			w.desire("1", attempts(1))
			w.report(lifecycle.Failed, protocol.ImageNotFound)
			shut(w)
			w.remove()
		}, []string{"LO DELETING"}},
		"an update that has begun, and its rollback": {func(w *world) {
			w.install("1")
			w.desire("2", attempts(1))
			shut(w)
			w.report(lifecycle.Failed, protocol.ImageNotFound)
			w.step()
		}, []string{"EN FAILED", "LO ROLLINGBACK"}},
		"the last attempt of an update that has begun": {func(w *world) {
			w.install("1")
			w.desire("2", attempts(1))
			shut(w)
			w.report(lifecycle.Failed, protocol.ProbeFailed, running("1"))
			w.step()
		}, []string{"EN FAILED", "LO ROLLINGBACK"}},
		"the return to what runs while the update pulls": {func(w *world) {
			w.install("1")
			w.desire("2")
			shut(w)
			w.desire("1")
		}, []string(nil)},
		"the return to what runs once the update has failed": {func(w *world) {
			w.install("1")
			w.desire("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, running("1"))
			shut(w)
			w.desire("1")
		}, []string{"LO UPDATING"}},
		"a removal that has begun": {func(w *world) { w.install("1"); w.remove(); shut(w); w.report(lifecycle.Deleted, "") }, []string{"EN DELETED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.act(w)
			w.expectTransitions(tt.want...)
			w.step()
			w.expectWait("")
		})
	}
	w := newWorld(t)
	shut(w)
	w.purges = []protocol.NodePurge{{Deployment: "old", Volume: "data"}}
	w.step()
	if len(w.last.Desired.Purges) != 1 {
		t.Error("a purge waits for a window: nothing uses those volumes")
	}
}

// running is what a node says of the version that it keeps up beside what it reports.
func running(version string) func(*protocol.DeploymentStatus) {
	return func(m *protocol.DeploymentStatus) { m.Running = digest(version) }
}

// pulling is what a node says of an update that it gets the images of.
func pulling(m *protocol.DeploymentStatus) { m.Phase, m.Running = protocol.Pulling, digest("1") }

// TestWindowDelaysTheNextAttempt: the version before runs again once an update has failed, and is not stopped outside of a window, however
// often the attempt would be due.
func TestWindowDelaysTheNextAttempt(t *testing.T) {
	t.Parallel()
	for _, code := range []protocol.Code{protocol.ProbeFailed, protocol.RegistryUnavailable} {
		w := newWorld(t)
		w.install("1")
		w.desire("2")
		w.report(lifecycle.Failed, code, running("1"))
		w.closed = closed
		w.step()
		w.transitions = nil
		for range 10 {
			w.reconcile(time.Hour)
			w.expectWait("the next attempt waits: " + closed)
		}
		w.expectTransitions()
		if d := w.rec.Deployments["web"]; d.Status.RetryMillis == 0 {
			t.Errorf("%s: the CO does not learn that an attempt follows", code)
		}
		w.closed = ""
		w.step()
		w.expect("2", 2, false)
		w.expectTransitions("LO UPDATING")
	}
}

// TestWindowEndsWhileItPulls: the node keeps what runs, and gets the update in the next window. What had given way already is followed up.
func TestWindowEndsWhileItPulls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2")
	w.closed = closed
	w.step()
	w.expect("2", 1, false) // the node has not said how far it is
	w.expectWait("")
	w.report(lifecycle.Updating, "", pulling)
	w.expect("1", 2, false)
	w.expectWait("the update waits: " + closed)
	w.report(lifecycle.Installed, "")
	w.reconcile(time.Hour)
	w.expect("1", 2, false)
	w.expectWait("the update waits: " + closed)
	w.expectTransitions("LO UPDATING", "EN INSTALLED")
	w.closed = ""
	w.step()
	w.expect("2", 2, false)
	w.report(lifecycle.Updating, "", func(m *protocol.DeploymentStatus) { m.Phase = protocol.Starting })
	w.closed = closed
	w.reconcile(time.Hour)
	w.expect("2", 2, false)
	w.expectWait("")
}

// TestWindowEndsAndTheNodeRefuses: what the node keeps up works, whatever it says of the assignment by which it is to keep it.
func TestWindowEndsAndTheNodeRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2")
	w.report(lifecycle.Updating, "", pulling)
	w.closed = closed
	w.step()
	w.expect("1", 2, false)
	w.report(lifecycle.Failed, protocol.SignatureInvalid, running("1"))
	w.transitions = nil
	for range 10 {
		w.reconcile(time.Hour)
		w.expectWait("the update waits: " + closed)
	}
	w.expectTransitions()
	w.closed = ""
	w.step()
	w.expect("2", 2, false)
}

// TestWindowEndsWhileTheNodeIsAway: how far it is by now is not known until it says so.
func TestWindowEndsWhileTheNodeIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2")
	w.report(lifecycle.Updating, "", pulling)
	w.presence(false, "agent-1")
	w.closed = closed
	w.step()
	w.expect("2", 1, false)
	w.presence(true, "agent-1")
	w.step()
	w.expect("2", 1, false)
	status := w.rec.Deployments["web"].Status
	status.Actor = lifecycle.EN
	w.whole(status)
	w.expect("1", 2, false)
	w.expectWait("the update waits: " + closed)
}

// TestWindowDelaysNoRepair: what has failed for long does not wait for a window to be replaced or removed, and a blip is no reason.
func TestWindowDelaysNoRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.closed = closed
	w.desire("2")
	w.report(lifecycle.Failed, protocol.CrashLoop, func(m *protocol.DeploymentStatus) { m.Recovering, m.Running = true, digest("1") })
	w.transitions = nil
	w.expectWait("the update waits: " + closed)
	if want := w.now.Add(brokenAfter); !w.last.NextAt.Equal(want) {
		t.Errorf("looked at again at %v, want %v", w.last.NextAt, want)
	}
	w.reconcile(brokenAfter)
	w.expectTransitions("LO UPDATING")
	w.expect("2", 1, false)
}

// TestWindowOfANodeThatIsAway: a node that is offline in the window keeps what it has when it is back outside of one, whatever was decided
// before the site had windows.
func TestWindowOfANodeThatIsAway(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"desired in the window": false, "assigned before the site had windows": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.install("1")
			w.windows = !before
			w.presence(false, "agent-1")
			w.desire("2")
			if before {
				w.expect("2", 1, false)
				w.windows = true
				w.step()
			}
			w.expect("1", 1, false)
			w.expectWait("the update waits: " + offline)
			if !w.last.Waits[0].Offline {
				t.Error("it does not say that the node is offline")
			}
			w.closed = closed
			w.reconcile(time.Hour)
			w.presence(true, "agent-1")
			w.step()
			w.expect("1", 1, false)
			w.expectWait("the update waits: " + closed)
			w.closed = ""
			w.step()
			w.expectTransitions("LO UPDATING")
		})
	}
	w := newWorld(t)
	w.install("1")
	w.windows = true
	w.presence(false, "agent-1")
	w.remove()
	w.expectWait("the removal waits: " + offline)
	w.expectTransitions()
	w.presence(true, "agent-1")
	w.step()
	w.expectTransitions("LO DELETING")
}

// TestWindowDelaysAChangeOfPlacement: what a person places elsewhere is not stopped outside of a window, and does not come to run beside what stays;
// a drain, and a node that takes the place of one that is away, wait for none.
func TestWindowDelaysAChangeOfPlacement(t *testing.T) {
	t.Parallel()
	placed := func(node protocol.NodeID) protocol.SiteEntry {
		return protocol.SiteEntry{Deployment: "web", Digest: digest("1"), Placement: protocol.Placement{Node: node}}
	}
	for name, tt := range map[string]struct {
		entry protocol.SiteEntry
		drain bool
		waits string
	}{
		"a change of the placement": {placed("n2"), false, "the move to another node waits: " + closed},
		"the same placement":        {placed("n1"), false, ""},
		"a drain":                   {placed("n2"), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.desire("1", func(e *protocol.SiteEntry) { e.Placement.Node = "n1" })
			w.report(lifecycle.Installed, "")
			w.closed = closed
			if tt.drain {
				w.rec.Restrict(nodes.Change{Do: command.Drain, Reason: "a new disk"}, nodes.Clock{Boot: "a"}, w.now)
			}
			delete(w.desired, "web")
			w.moved = map[protocol.DeploymentName]bool{"web": true}
			w.entries = map[protocol.DeploymentName]protocol.SiteEntry{"web": tt.entry}
			w.transitions = nil
			w.step()
			w.expectWait(tt.waits)
			if removed := len(w.last.Desired.Removals) == 1; removed != (tt.waits == "") {
				t.Errorf("removed: %t", removed)
			}
		})
	}
	w := newWorld(t)
	w.closed, w.stays = closed, true
	w.desire("2")
	w.expectWait("the installation waits: it is up on another node, which keeps it: " + closed)
	w.expect("", 0, false)
	w.stays = false
	w.step()
	w.expect("2", 1, false)
}
