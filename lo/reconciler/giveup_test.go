package reconciler

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// givenUp returns the statuses of the last step that say that nothing more will
// be tried.
func (w *world) givenUp() (out []protocol.DeploymentStatus) {
	w.t.Helper()
	for _, f := range w.last.Facts {
		var m protocol.DeploymentStatus
		if f.Event.Kind != protocol.StatusEvent {
			continue
		}
		if err := protocol.Unmarshal(f.Event.Body, &m); err != nil {
			w.t.Fatal(err)
		}
		if m.State == lifecycle.Failed && m.Actor == lifecycle.LO && m.Refused != "" {
			out = append(out, m)
		}
	}
	return out
}

// expectGivenUp checks that the last step gave version up, which failed with
// code, and that no later one says so again.
func (w *world) expectGivenUp(version string, code protocol.Code) {
	w.t.Helper()
	reported := w.givenUp()
	if len(reported) != 1 {
		w.t.Fatalf("the step says %+v, want once that %s is given up", reported, version)
	}
	if m := reported[0]; m.Refused != digest(version) || m.Code != code || m.From != lifecycle.Failed || m.Digest == "" {
		w.t.Errorf("given up with %+v; want version %s, code %s, from FAILED", m, digest(version).Short(), code)
	}
	if !w.last.NextAt.IsZero() {
		w.t.Errorf("given up, but a wake-up at %s", w.last.NextAt)
	}
	w.expectQuiet()
}

// expectQuiet checks that nothing is given up or tried, whatever time it is,
// whether the node is there or not, and after a restart.
func (w *world) expectQuiet() {
	w.t.Helper()
	generation := w.last.Desired.Position
	check := func(when string) {
		w.t.Helper()
		if reported := w.givenUp(); len(reported) > 0 || len(w.last.Transitions) > 0 || w.last.Reassigned || w.last.Desired.Position != generation {
			w.t.Errorf("%s: given up again, or something tried: %+v", when, w.last)
		}
	}
	w.step()
	check("at once")
	w.reconcile(24 * time.Hour)
	check("a day later")
	w.presence(false, w.rec.Agent)
	w.reconcile(time.Hour)
	check("node offline")
	w.presence(true, w.rec.Agent)
	w.step()
	check("node back")
	w.restart(w.record())
	w.step()
	check("after a restart")
}

// record returns the record as it is stored.
func (w *world) record() []byte {
	w.t.Helper()
	b, err := json.Marshal(w.rec)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// restart goes on from a stored record.
func (w *world) restart(stored []byte) {
	w.t.Helper()
	rec := nodes.New("n1")
	if err := json.Unmarshal(stored, rec); err != nil {
		w.t.Fatal(err)
	}
	w.rec = rec
}

// fail reports that the assignment failed, and checks that this is not the end.
func (w *world) fail(code protocol.Code) {
	w.t.Helper()
	w.report(lifecycle.Failed, code)
	if reported := w.givenUp(); len(reported) > 0 {
		w.t.Errorf("given up while there is something to try: %+v", reported)
	}
}

// A version that was healthy for the minimum time is the node's to bring up again.
func TestRecoveringVersionIsLeftToTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.install("2")
	w.report(lifecycle.Failed, protocol.CrashLoop, func(m *protocol.DeploymentStatus) { m.Recovering = true })
	w.expectQuiet()
	w.expect("2", 1, false)
	w.report(lifecycle.Installed, "")
	w.expectQuiet()
	w.expectTransitions("EN FAILED", "EN INSTALLED")
}

// presumed has a node report that it recovers a version which it has no record of, and found running.
func presumed(m *protocol.DeploymentStatus) { m.Recovering, m.Presumed = true, true }

// TestPresumedVersionThatNeverWorked has a node lose its record while a version comes up that does not work: the node takes it for one that was
// healthy, and the LO, which knows that it was not, follows the policy.
func TestPresumedVersionThatNeverWorked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(2))
	w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
	w.restart(w.record())
	w.reconcile(time.Minute)
	w.expect("2", 2, false)
	w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
	w.expect("1", 2, true)
	w.report(lifecycle.Installed, "")
	w.expectQuiet()

	w.desire("3", attempts(1), noRollback)
	w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
	w.expectGivenUp("3", protocol.ProbeFailed)
	w.report(lifecycle.Installed, "") // the node brought it up after all
	w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
	w.expect("3", 1, false)
	w.expectQuiet()
}

// TestPresumedVersionThatMayHaveWorked has a node lose its record of a version that does not work, where the LO does not know that it never did: it is
// left to the node.
func TestPresumedVersionThatMayHaveWorked(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(w *world){
		"the LO has seen it healthy": func(w *world) {
			w.install("1")
			w.install("2")
			w.install("3")
			w.install("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
		},
		"the LO has seen nothing healthy": func(w *world) {
			w.desire("2", attempts(1))
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
		},
		"the LO has lost its record": func(w *world) {
			w.install("1")
			w.install("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
			held := w.rec.Deployments["web"].Status
			w.rec = nodes.New("n1")
			w.presence(true, "agent-1")
			w.whole(held)
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
		},
		"the LO was set back": func(w *world) {
			w.install("1")
			old := w.record()
			w.install("2")
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
			held := w.rec.Deployments["web"].Status
			w.restart(old)
			w.presence(true, "agent-1")
			w.whole(held)
			w.report(lifecycle.Failed, protocol.ProbeFailed, presumed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before(w)
			a, _ := w.assignment()
			if a.Digest != digest("2") {
				t.Errorf("%s is assigned, want the version that may have been healthy", a.Digest.Short())
			}
			w.expectQuiet()
		})
	}
}

// giveUps are the ways to an end; each leaves the world just after the step that
// gives version 2 up, because of code.
var giveUps = []struct {
	name string
	code protocol.Code
	end  func(w *world)
}{
	{"first install, no version to return to", protocol.ImageNotFound, func(w *world) {
		w.desire("2", attempts(1))
		w.report(lifecycle.Failed, protocol.ImageNotFound)
	}},
	{"attempts used up", protocol.StartFailed, func(w *world) {
		w.desire("2", attempts(3))
		for range 2 {
			w.fail(protocol.StartFailed)
			w.reconcile(100 * time.Millisecond) // the retry is planned, not made
			if reported := w.givenUp(); len(reported) > 0 {
				w.t.Errorf("given up before the retry: %+v", reported)
			}
			w.reconcile(time.Minute)
		}
		w.report(lifecycle.Failed, protocol.StartFailed)
	}},
	{"no rollback by policy", protocol.StartFailed, func(w *world) {
		w.install("1")
		w.desire("2", attempts(1), noRollback)
		w.report(lifecycle.Failed, protocol.StartFailed)
	}},
	{"the earlier version's spec is removed", protocol.StartFailed, func(w *world) {
		w.install("1")
		w.missing[digest("1")] = true
		w.desire("2", attempts(1))
		w.report(lifecycle.Failed, protocol.StartFailed)
	}},
	{"the rollback failed", protocol.EngineUnavailable, func(w *world) {
		w.install("1")
		w.desire("2", attempts(1))
		w.fail(protocol.StartFailed)
		w.expect("1", 2, true)
		w.report(lifecycle.Failed, protocol.EngineUnavailable)
	}},
	{"a rollback by hand failed", protocol.StartFailed, func(w *world) {
		w.install("2")
		w.install("1")
		w.desire("2", rollback)
		w.expect("2", 2, true)
		w.report(lifecycle.Failed, protocol.StartFailed)
	}},
	{"the version returned to crashes until used up", protocol.CrashLoop, func(w *world) {
		w.install("1")
		w.desire("2", attempts(2))
		w.fail(protocol.StartFailed)
		w.reconcile(time.Minute)
		w.fail(protocol.StartFailed)
		w.expect("1", 2, true)
		w.report(lifecycle.Installed, "")
		w.fail(protocol.CrashLoop)
		w.reconcile(time.Minute)
		w.expect("1", 3, false)
		w.report(lifecycle.Failed, protocol.CrashLoop)
	}},
}

func TestGivesUpOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range giveUps {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.end(w)
			w.expectGivenUp("2", tt.code)
		})
	}
}

// TestRegistryAway has no registry answer for long: attempts go on, ever more slowly, count for none, and lead to no rollback; what
// counts is what the version does once it can be had. So it is in a rollback.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(2))
	attempt := uint32(1)
	for range 20 {
		w.fail(protocol.RegistryUnavailable)
		w.reconcile(maxBackoff)
		attempt++
		w.expect("2", attempt, false)
	}
	w.fail(protocol.RegistryUnavailable)
	w.reconcile(maxBackoff/2 - time.Second)
	w.expect("2", attempt, false) // it is not due yet
	w.reconcile(maxBackoff)
	w.expect("2", attempt+1, false)
	w.restart(w.record())
	w.fail(protocol.StartFailed)
	w.reconcile(maxBackoff)
	w.expect("2", attempt+2, false) // the second attempt that counts
	w.fail(protocol.StartFailed)
	w.expect("1", 2, true)
	for n := range uint32(5) {
		w.fail(protocol.RegistryUnavailable)
		w.reconcile(maxBackoff)
		w.expect("1", 3+n, true)
	}
	if reported := w.givenUp(); len(reported) > 0 {
		t.Errorf("given up: %+v", reported)
	}
	w.report(lifecycle.Installed, "")
	w.expect("1", 7, true)
}

func TestGivingUpEnds(t *testing.T) {
	t.Parallel()
	changes := []struct {
		name    string
		version string
		change  func(*protocol.SiteEntry)
	}{
		{"a new digest", "3", func(*protocol.SiteEntry) {}},
		{"a retry", "2", retrying(1)},
	}
	for _, tt := range giveUps {
		for _, c := range changes {
			for _, online := range []bool{true, false} {
				name := tt.name + ", then " + c.name
				if !online {
					name += " while offline"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					tt.end(w)
					w.expectGivenUp("2", tt.code)
					w.presence(online, w.rec.Agent)
					w.desire(c.version, c.change, attempts(1), noRollback)
					if reported := w.givenUp(); len(reported) > 0 {
						t.Errorf("given up again: %+v", reported)
					}
					w.presence(true, w.rec.Agent)
					w.step()
					d := w.rec.Deployments["web"]
					if a, _ := w.assignment(); a.Digest != digest(c.version) || d.Status.Refused != "" || d.Refused.Digest != "" || d.Status.State == lifecycle.Failed {
						t.Fatalf("assignment %+v, deployment %+v: want version %s tried and nothing refused", a, d, c.version)
					}
					w.report(lifecycle.Failed, protocol.ImageNotFound)
					w.expectGivenUp(c.version, protocol.ImageNotFound)
				})
			}
		}
	}
}

// TestGivenUpIsShownAfterTheNodesReport: a node that repeats its failure puts
// its own status in place of the LO's, so the LO reports it once more.
func TestGivenUpIsShownAfterTheNodesReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expectGivenUp("2", protocol.StartFailed)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expectGivenUp("2", protocol.StartFailed)
	w.expect("2", 1, false)
}

// TestGivenUpSurvivesAKill: the LO is killed after the journal took the facts
// and before the record was stored, at any of the steps on the way.
func TestGivenUpSurvivesAKill(t *testing.T) {
	t.Parallel()
	for _, tt := range giveUps {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.end(w)
			reported := w.givenUp()
			if len(reported) != 1 {
				t.Fatalf("the step says %+v, want once that it is given up", reported)
			}
			for at, stored := range w.records {
				// The journal is played from its beginning or from where the record stands.
				for _, from := range []int{0, at + 1} {
					v := *w
					v.restart(stored)
					for _, facts := range w.journal[from:] {
						for _, f := range facts {
							v.rec.Replay(f.Event)
						}
					}
					v.expectStillGivenUp(w, len(w.records)-1-at)
				}
			}
		})
	}
}

// expectStillGivenUp checks a record that was stored some steps before before's
// end and to which the journal was played.
func (w *world) expectStillGivenUp(before *world, steps int) {
	w.t.Helper()
	d := w.rec.Deployments["web"]
	if d.Status.State != lifecycle.Failed || d.Status.Refused != digest("2") {
		w.t.Errorf("stored %d steps before the end: status %+v, want FAILED with what is refused", steps, d.Status)
	}
	if d.Desired != before.rec.Deployments["web"].Desired {
		return // stored before the desired version changed: another attempt is right
	}
	for _, later := range []time.Duration{0, 24 * time.Hour} {
		w.reconcile(later)
		if len(w.last.Transitions) > 0 {
			w.t.Errorf("stored %d steps before the end, %s later: the step makes %+v, want nothing", steps, later, w.last.Transitions)
		}
	}
}

// TestNodesWordIsNoGivingUp: a failure that names the refused version, too, is
// followed by the retries that are left.
func TestNodesReportIsNoGivingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("2", attempts(2))
	w.seq++
	w.collect(w.rec.ApplyReport(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: w.rec.Agent, Seq: w.seq, Position: w.last.Desired.Position,
		State: lifecycle.Failed, Actor: lifecycle.EN, Code: protocol.StartFailed, Digest: digest("2"), Attempt: 1, Refused: digest("2"),
	}, w.now).Facts)
	w.step()
	w.reconcile(time.Minute)
	w.expect("2", 2, false)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expectGivenUp("2", protocol.StartFailed)
}
