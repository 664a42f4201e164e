package reconciler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// world is one node under a hand-driven clock.
type world struct {
	t           *testing.T
	now         time.Time
	rec         *nodes.Record
	desired     map[protocol.DeploymentName]protocol.SiteEntry
	removals    map[protocol.DeploymentName]protocol.Removal
	missing     map[protocol.Digest]bool
	held        string
	closed      string
	windows     bool // the site has maintenance windows, also where closed is empty
	moved       map[protocol.DeploymentName]bool
	entries     map[protocol.DeploymentName]protocol.SiteEntry // of the site
	stays       bool                                           // another node keeps the deployment
	purges      []protocol.NodePurge
	follows     protocol.Position
	last        Output
	seq         uint64
	transitions []string

	// journal holds the facts of each call, records the record as it is after them.
	records [][]byte
	journal [][]nodes.Fact
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, now: time.UnixMilli(1_700_000_000_000), rec: nodes.New("n1"),
		desired: map[protocol.DeploymentName]protocol.SiteEntry{}, missing: map[protocol.Digest]bool{},
		removals: map[protocol.DeploymentName]protocol.Removal{},
	}
	w.presence(true, "agent-1")
	w.whole()
	return w
}

// remove removes the deployment from the site.
func (w *world) remove() {
	w.t.Helper()
	delete(w.desired, "web")
	w.removals["web"] = protocol.Removal{Deployment: "web", Position: protocol.Position{Epoch: 1, Generation: 1}}
	w.step()
}

// whole is the node's report of everything that it holds: the given statuses.
func (w *world) whole(statuses ...protocol.DeploymentStatus) nodes.Outcome {
	w.t.Helper()
	w.seq++
	m := protocol.NodeReport{V: 1, Node: "n1", Agent: w.rec.Agent, Seq: w.seq, Statuses: statuses, Held: w.last.Desired.Held()}
	if w.last.Desired.Position.IsZero() {
		m.Held = protocol.Held{}
	}
	out := w.rec.ApplyNodeReport(m, w.now)
	w.collect(out.Facts)
	w.step()
	return out
}

func (w *world) expectRemoval(want ...protocol.NodeRemoval) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.last.Desired.Removals); diff != "" {
		w.t.Errorf("removals (-want +got):\n%s", diff)
	}
}

func digest(version string) protocol.Digest {
	if version == "" {
		return ""
	}
	return protocol.DigestOf([]byte(version))
}

func (w *world) presence(online bool, agent string) {
	out := w.rec.ApplyPresence(protocol.Presence{Online: online, Agent: agent}, w.now)
	w.collect(out.Facts)
}

func (w *world) desire(version string, change ...func(*protocol.SiteEntry)) {
	e := protocol.SiteEntry{Deployment: "web", Digest: digest(version), Policy: protocol.Policy{Attempts: 2, BackoffMillis: 1000}}
	for _, c := range change {
		c(&e)
	}
	w.desired["web"] = e
	delete(w.removals, "web")
	w.step()
}

func (w *world) step() {
	w.t.Helper()
	w.last = Step(w.rec, Input{
		Now: w.now, Desired: w.desired, Removals: w.removals, Held: w.held, Windows: w.windows || w.closed != "", Closed: w.closed, Moved: w.moved, Entries: w.entries, Stays: func(protocol.DeploymentName) bool { return w.stays }, Purges: w.purges, Follows: w.follows, LostAfter: time.Minute, Jitter: rand.New(rand.NewPCG(1, 2)),
		Specs: func(d protocol.Digest) (Spec, bool) {
			return Spec{Bytes: []byte(d), App: "app"}, d != "" && !w.missing[d]
		},
	})
	for _, err := range w.last.Faults {
		w.t.Error(err)
	}
	w.collect(w.last.Facts)
}

// reconcile lets time go by and steps.
func (w *world) reconcile(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.step()
}

func (w *world) collect(facts []nodes.Fact) {
	w.t.Helper()
	w.journal, w.records = append(w.journal, facts), append(w.records, w.record())
	for _, f := range facts {
		if f.Event.Kind != protocol.StatusEvent {
			continue
		}
		var m protocol.DeploymentStatus
		if err := protocol.Unmarshal(f.Event.Body, &m); err != nil {
			w.t.Fatal(err)
		}
		if err := lifecycle.Check(m.From, m.State, m.Actor); err != nil {
			w.t.Error(err)
		}
		if m.From != m.State {
			w.transitions = append(w.transitions, string(m.Actor)+" "+string(m.State))
		}
	}
}

// report is the node's report on its assignment.
func (w *world) report(state lifecycle.State, code protocol.Code, change ...func(*protocol.DeploymentStatus)) {
	w.t.Helper()
	w.seq++
	m := protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: w.rec.Agent, Seq: w.seq, Position: w.last.Desired.Position,
		State: state, Actor: lifecycle.EN, Code: code,
	}
	if a, ok := w.assignment(); ok {
		m.Digest, m.Attempt = a.Digest, a.Attempt
	}
	for _, c := range change {
		c(&m)
	}
	w.collect(w.rec.ApplyReport(m, w.now).Facts)
	w.step()
}

func (w *world) assignment() (protocol.Assignment, bool) {
	for _, a := range w.last.Desired.Assignments {
		if a.Deployment == "web" {
			return a, true
		}
	}
	return protocol.Assignment{}, false
}

func (w *world) expect(version string, attempt uint32, rollback bool) {
	w.t.Helper()
	a, ok := w.assignment()
	if !ok && version == "" {
		return
	}
	if a.Digest != digest(version) || a.Attempt != attempt || a.Rollback != rollback {
		w.t.Errorf("assignment %s attempt %d rollback %t; want version %s attempt %d rollback %t", a.Digest.Short(), a.Attempt, a.Rollback, version, attempt, rollback)
	}
}

func (w *world) expectTransitions(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.transitions); diff != "" {
		w.t.Errorf("transitions (-want +got):\n%s", diff)
	}
	w.transitions = nil
}

func (w *world) install(version string) {
	w.t.Helper()
	w.desire(version)
	w.report(lifecycle.Installed, "")
	w.transitions = nil
}

func retrying(n uint32) func(*protocol.SiteEntry) { return func(e *protocol.SiteEntry) { e.Retry = n } }
func rollback(e *protocol.SiteEntry)              { e.Rollback = true }
func noRollback(e *protocol.SiteEntry)            { e.Policy.NoRollback = true }
func attempts(n uint32) func(*protocol.SiteEntry) {
	return func(e *protocol.SiteEntry) { e.Policy.Attempts = n }
}

func TestInstallAndRemove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1")
	w.expect("1", 1, false)
	w.expectTransitions("LO PENDING", "LO INSTALLING")
	w.report(lifecycle.Installed, "")
	generation := w.last.Desired.Position
	w.step()
	if w.last.Changed || w.last.Reassigned {
		t.Errorf("a step with nothing to do: record changed %t, reassigned %t, want neither", w.last.Changed, w.last.Reassigned)
	}
	if got := w.last.Desired.Position; got != generation {
		t.Errorf("a step with nothing to do: position %s, want %s", got, generation)
	}
	w.remove()
	w.expect("", 0, false)
	w.report(lifecycle.Deleted, "")
	w.expectTransitions("EN INSTALLED", "LO DELETING", "EN DELETED")
	w.desire("1")
	w.expect("1", 2, false)
	w.expectTransitions("LO PENDING", "LO INSTALLING")
}

func TestRetryBacksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1", attempts(3))
	w.report(lifecycle.Failed, protocol.ImageNotFound)
	w.expect("1", 1, false)
	first := w.last.NextAt.Sub(w.now)
	if first < 500*time.Millisecond || first > time.Second {
		t.Errorf("first retry after %s, want between half and the whole of 1 s", first)
	}
	w.reconcile(first - time.Millisecond)
	w.expect("1", 1, false)
	w.reconcile(time.Millisecond)
	w.expect("1", 2, false)
	w.report(lifecycle.Failed, protocol.ImageNotFound)
	if second := w.last.NextAt.Sub(w.now); second < time.Second || second > 2*time.Second {
		t.Errorf("second retry after %s, want between 1 s and 2 s", second)
	}
	w.reconcile(2 * time.Second)
	w.expect("1", 3, false)
	w.report(lifecycle.Failed, protocol.ImageNotFound)
	w.reconcile(time.Hour)
	w.expect("1", 3, false)
	if !w.last.NextAt.IsZero() {
		t.Errorf("given up, but a wake-up at %s", w.last.NextAt)
	}
	w.expectTransitions("LO PENDING", "LO INSTALLING", "EN FAILED", "LO INSTALLING", "EN FAILED", "LO INSTALLING", "EN FAILED")
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	jitter := rand.New(rand.NewPCG(1, 1))
	for n, most := range map[uint32]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		for range 100 {
			if got := Backoff(10*time.Second, n, jitter); got < most/2 || got > most {
				t.Fatalf("wait after attempt %d: %s, want %s to %s", n, got, most/2, most)
			}
		}
	}
}

// A version that was given up on a node stays refused there where the LO has lost its record of the node: the node's report says it.
func TestRefusalOutlivesTheRecord(t *testing.T) {
	t.Parallel()
	for name, statuses := range map[string][]func(*world){
		"after the loss":                    {func(*world) {}},
		"while the node is held":            {func(w *world) { w.held = "held: work" }, func(w *world) { w.held = "" }},
		"while the site is out of a window": {func(w *world) { w.closed = "closed" }, func(w *world) { w.closed = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.install("1")
			w.desire("2", attempts(1))
			w.report(lifecycle.Failed, protocol.StartFailed)
			w.report(lifecycle.Installed, "")
			held := w.rec.Deployments["web"].Status
			w.transitions = nil

			w.rec = nodes.New("n1")
			w.presence(true, "agent-1")
			for _, change := range statuses {
				change(w)
				w.whole(held)
				w.reconcile(time.Hour)
			}
			w.expect("1", 2, true)
			w.expectTransitions("LO PENDING", "LO INSTALLING", "EN INSTALLED") // as it is learned
			w.desire("2", attempts(1), retrying(1))
			w.expect("2", 1, false)
		})
	}
}

// TestRefusalOutlivesTheRecordHoweverTheVersionDoes has the LO lose its record of a node, or be set back to one of before the update, once the node
// gave a version up, in each state in which the version before it can be by then: it goes on, and the one that was given up is not tried anew.
func TestRefusalOutlivesTheRecordHoweverTheVersionDoes(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]func(w *world) protocol.DeploymentStatus{
		"works": func(w *world) protocol.DeploymentStatus {
			w.report(lifecycle.Installed, "", refuses("2"))
			return w.rec.Deployments["web"].Status
		},
		"is being recovered": func(w *world) protocol.DeploymentStatus {
			w.report(lifecycle.Installed, "", refuses("2"))
			w.report(lifecycle.Failed, protocol.ProbeFailed, refuses("2"), func(m *protocol.DeploymentStatus) { m.Recovering = true })
			return w.rec.Deployments["web"].Status
		},
		"is on its way": func(w *world) protocol.DeploymentStatus {
			w.report(lifecycle.RollingBack, "", refuses("2"))
			return w.rec.Deployments["web"].Status
		},
		"does not come up": func(w *world) protocol.DeploymentStatus {
			w.report(lifecycle.RollingBack, "", refuses("2"))
			w.report(lifecycle.Failed, protocol.StartFailed, refuses("2"))
			m := w.rec.Deployments["web"].Status
			m.Actor = lifecycle.EN // the LO's own status says that it is given up
			return m
		},
	} {
		for _, lost := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lost %t", name, lost), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.install("1")
				before := w.record()
				w.desire("2", attempts(1))
				w.report(lifecycle.Failed, protocol.StartFailed)
				w.expect("1", 2, true)
				held := now(w)

				if w.restart(before); lost {
					w.rec = nodes.New("n1")
				}
				w.presence(true, "agent-1")
				w.whole(held)
				if d := w.rec.Deployments["web"]; d.Refused.Digest != digest("2") || d.Assigned.Digest != digest("1") {
					t.Errorf("refused %s, assigned %s: want 2 refused and 1 assigned", d.Refused.Digest.Short(), d.Assigned.Digest.Short())
				}
				for range 2 {
					w.reconcile(time.Hour) // where it does not come up, it is tried again
					if a, _ := w.assignment(); a.Digest != digest("1") {
						t.Errorf("%s is assigned, want the version that is there", a.Digest.Short())
					}
					w.report(lifecycle.Installed, "", refuses("2"))
				}
				w.desire("2", attempts(1), retrying(1))
				if a, _ := w.assignment(); a.Digest != digest("2") {
					t.Errorf("a person asked for a retry, and %s is assigned", a.Digest.Short())
				}
			})
		}
	}
}

// TestRefusalIsLearnedOfAnAgentThatDidNotSayIt has an agent say only once it is another release that it gave up a version, of what stands as it did.
func TestRefusalIsLearnedOfAnAgentThatDidNotSayIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.report(lifecycle.Installed, "")
	w.report(lifecycle.Failed, protocol.ProbeFailed, func(m *protocol.DeploymentStatus) { m.Recovering = true })
	held := w.rec.Deployments["web"].Status
	held.Refused = digest("2")
	w.rec.Position, w.rec.Digest = protocol.Position{Epoch: 1, Generation: 1}, digest("x") // set back
	w.whole(held)
	w.expect("1", 2, true)
}

// TestReasonOfARefusalStays has a node recover the version that it returned to: the LO still says why the other one is refused.
func TestReasonOfARefusalStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.report(lifecycle.Installed, protocol.StartFailed, refuses("2"))
	w.report(lifecycle.Failed, protocol.ProbeFailed, refuses("2"), func(m *protocol.DeploymentStatus) { m.Recovering = true })
	w.report(lifecycle.Installed, "", refuses("2"))
	if m := w.rec.Deployments["web"].Status; m.Refused != digest("2") || m.Code != protocol.StartFailed {
		t.Errorf("recorded %s refused, %q: want 2, start_failed", m.Refused.Short(), m.Code)
	}
}

// TestAssignmentSaysWhatIsRefused returns to the version before: as long as it is assigned in the place of the one that was given up, the assignment
// says so, for a node that loses its record.
func TestAssignmentSaysWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	expect := func(version, refused string) {
		t.Helper()
		if a, _ := w.assignment(); a.Digest != digest(version) || a.Refused != digest(refused) {
			t.Errorf("assigned %s, refused %q: want %s, refused %q", a.Digest.Short(), a.Refused, version, digest(refused))
		}
	}
	w.install("1")
	w.desire("2", attempts(1))
	expect("2", "")
	w.report(lifecycle.Failed, protocol.StartFailed)
	expect("1", "2")
	w.report(lifecycle.Installed, protocol.StartFailed, refuses("2"))
	w.restart(w.record())
	w.reconcile(time.Hour)
	expect("1", "2")
	held := w.rec.Deployments["web"].Status
	w.rec = nodes.New("n1")
	w.presence(true, "agent-1")
	w.whole(held)
	expect("1", "2")
	w.desire("2", attempts(1), retrying(1), noRollback)
	expect("2", "")
	w.report(lifecycle.Failed, protocol.StartFailed)
	expect("2", "")
}

// refuses has a report say that a version was given up.
func refuses(version string) func(*protocol.DeploymentStatus) {
	return func(m *protocol.DeploymentStatus) { m.Refused = digest(version) }
}

func TestAutoRollbackRefusesUntilChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expect("1", 2, true)
	w.report(lifecycle.Installed, "")
	w.expectTransitions("LO UPDATING", "EN FAILED", "LO ROLLINGBACK", "EN INSTALLED")
	d := w.rec.Deployments["web"]
	if got := d.Refused.Digest; got != digest("2") {
		t.Errorf("refused version %s, want 2", got.Short())
	}
	if got := d.Status.Refused; got != digest("2") {
		t.Errorf("refused version in the status %s, want 2", got.Short())
	}
	if got := d.Status.Code; got != protocol.StartFailed {
		t.Errorf("code of the status %s, want %s", got, protocol.StartFailed)
	}
	w.reconcile(time.Hour)
	w.expect("1", 2, true) // no flapping

	w.desire("2", attempts(1), retrying(1))
	w.expect("2", 2, false)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expect("1", 3, true)
	w.report(lifecycle.Installed, "")
	w.desire("3", attempts(1))
	w.expect("3", 1, false)
	w.report(lifecycle.Installed, "")
	w.expectTransitions("LO UPDATING", "EN FAILED", "LO ROLLINGBACK", "EN INSTALLED", "LO UPDATING", "EN INSTALLED")
}

func TestNoRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(1), noRollback)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.reconcile(time.Hour)
	w.expect("2", 1, false)
	w.expectTransitions("LO UPDATING", "EN FAILED")
	w.desire("2", attempts(1)) // the policy is no part of the version
	w.expect("1", 2, true)
}

func TestRollbackFailsToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.reconcile(24 * time.Hour)
	w.expect("1", 2, true)
	w.expectTransitions("LO UPDATING", "EN FAILED", "LO ROLLINGBACK", "EN FAILED")
	w.desire("3")
	w.expect("3", 1, false)
	w.expectTransitions("LO UPDATING")
}

// A version that was INSTALLED and failed later is not returned to, until it is INSTALLED again.
func TestRollbackPassesOverWhatFailed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code protocol.Code
		want string
	}{
		"a version that crashed":          {protocol.CrashLoop, "1"},
		"a version whose check failed":    {protocol.ProbeFailed, "1"},
		"a version whose node had faults": {protocol.EngineUnavailable, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.install("1")
			w.desire("2", attempts(1), noRollback)
			w.report(lifecycle.Installed, "")
			w.report(lifecycle.Failed, c.code)
			w.desire("3", attempts(1))
			w.report(lifecycle.Failed, protocol.StartFailed)
			a, ok := w.assignment()
			if !ok || a.Digest != digest(c.want) || !a.Rollback {
				t.Errorf("assignment %s, rollback %t, want version %s", a.Digest.Short(), a.Rollback, c.want)
			}
		})
	}
}

func TestRollbackNeedsItsSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.missing[digest("1")] = true
	w.desire("2", attempts(1))
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expect("2", 1, false)
	w.expectTransitions("LO UPDATING", "EN FAILED")
}

func TestManualRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.install("2")
	w.desire("1", rollback)
	w.expect("1", 2, true)
	w.report(lifecycle.Installed, "")
	w.reconcile(time.Hour)
	w.expectTransitions("LO ROLLINGBACK", "EN INSTALLED")
	w.desire("1") // the flag alone changes nothing that runs
	w.expect("1", 2, true)
	w.expectTransitions()
}

func TestCrashLoop(t *testing.T) {
	t.Parallel()
	t.Run("soon after the start counts on", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.install("1")
		w.desire("2")
		w.report(lifecycle.Installed, "")
		w.reconcile(time.Minute)
		w.report(lifecycle.Failed, protocol.CrashLoop)
		w.reconcile(time.Second)
		w.report(lifecycle.Installed, "")
		w.reconcile(time.Minute)
		w.report(lifecycle.Failed, protocol.CrashLoop)
		w.expect("1", 2, true)
	})
	t.Run("long after the start begins anew", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.install("1")
		w.desire("2", attempts(1))
		w.report(lifecycle.Installed, "")
		w.reconcile(time.Hour)
		w.report(lifecycle.Failed, protocol.CrashLoop)
		w.expect("2", 1, false)
		w.reconcile(time.Second)
		w.expect("2", 2, false)
		w.expectTransitions("LO UPDATING", "EN INSTALLED", "EN FAILED", "LO UPDATING")
	})
}

func TestNodeLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1")
	w.presence(false, "agent-1")
	w.step()
	if got := w.last.NextAt.Sub(w.now); got != time.Minute {
		t.Errorf("wake after %s, want the grace of 1 m", got)
	}
	w.reconcile(59 * time.Second)
	if s := w.rec.State("web"); s != lifecycle.Installing {
		t.Fatalf("state %s within the grace", s)
	}
	w.reconcile(time.Second)
	st := w.rec.Deployments["web"].Status
	if st.State != lifecycle.Failed || st.Code != protocol.NodeLost {
		t.Errorf("state %s with code %s, want FAILED with node_lost", st.State, st.Code)
	}
	if !strings.Contains(st.Message, "n1") {
		t.Errorf("message %q, want it to name node n1", st.Message)
	}
	w.reconcile(time.Hour)
	w.expect("1", 1, false)
	w.presence(true, "agent-1")
	w.step()
	w.expect("1", 1, false) // it goes on with what it has
	w.report(lifecycle.Installed, "")
	w.expectTransitions("LO PENDING", "LO INSTALLING", "LO FAILED", "LO INSTALLING", "EN INSTALLED")

	w.presence(false, "agent-1")
	w.reconcile(24 * time.Hour)
	w.expectTransitions() // what is INSTALLED stays so
}

func TestOfflineNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.presence(false, "agent-1")
	w.desire("2")
	w.expect("2", 1, false) // it gets the assignment when it comes back
	w.reconcile(time.Hour)
	w.expectTransitions()
	w.presence(true, "agent-1")
	w.step()
	w.expectTransitions("LO UPDATING")

	v := newWorld(t)
	v.presence(false, "agent-1")
	v.desire("1")
	v.reconcile(time.Hour)
	v.expectTransitions("LO PENDING")
	v.presence(true, "agent-1")
	v.step()
	v.expectTransitions("LO INSTALLING")
}

func TestAgentInstalledAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.presence(true, "agent-2")
	w.whole()
	w.expectTransitions("LO PENDING", "LO INSTALLING")
	w.expect("1", 1, false)
	w.seq = 0 // it counts from the beginning
	w.report(lifecycle.Installed, "")
	w.expectTransitions("EN INSTALLED")

	w.remove()
	w.presence(true, "agent-3")
	w.whole()
	w.expectTransitions("LO DELETING")
	w.expectRemoval(protocol.NodeRemoval{Deployment: "web", Site: protocol.Position{Epoch: 1, Generation: 1}})
	w.seq = 0
	w.report(lifecycle.Deleted, "") // the node answers also for what it does not hold
	w.expectTransitions("EN DELETED")
	w.expectRemoval()
}

func TestRemovedBeforeBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.presence(false, "agent-1")
	w.desire("1")
	w.remove()
	w.reconcile(time.Hour)
	w.expectTransitions("LO PENDING", "LO DELETING") // no agent can confirm the removal
	w.presence(true, "agent-1")
	w.reconcile(time.Second)
	w.report(lifecycle.Deleted, "")
	w.expectTransitions("EN DELETED")
}

func TestRemovalFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.remove()
	w.report(lifecycle.Failed, protocol.EngineUnavailable)
	w.reconcile(time.Hour)
	w.expectTransitions("LO DELETING", "EN FAILED") // the node tries on by itself
	w.report(lifecycle.Deleted, "")
	w.expectTransitions("LO DELETING", "EN DELETED")
}

func TestDeployedAgainBeforeRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.remove()
	old := w.last.Desired.Position
	w.desire("1")
	w.expectTransitions("LO DELETING", "LO PENDING", "LO INSTALLING")
	w.expect("1", 2, false)
	// The end of the removal was on its way.
	w.seq++
	out := w.rec.ApplyReport(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: "agent-1", Seq: w.seq, Position: old, State: lifecycle.Deleted, Actor: lifecycle.EN, Digest: digest("1"), Attempt: 1,
	}, w.now)
	if !out.Stale {
		t.Errorf("outcome %+v: want stale", out)
	}
}

func TestReportsOfAnOlderDesired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1")
	old, generation := digest("1"), w.last.Desired.Position
	w.desire("2")
	w.seq++
	out := w.rec.ApplyReport(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: "agent-1", Seq: w.seq, Position: generation, State: lifecycle.Installed, Actor: lifecycle.EN, Digest: old, Attempt: 1,
	}, w.now)
	if !out.Stale || len(out.Facts) > 0 || w.rec.State("web") != lifecycle.Updating {
		t.Errorf("outcome %+v, state %s", out, w.rec.State("web"))
	}
	// It was healthy, though, and so is a version to return to.
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.reconcile(time.Second)
	w.report(lifecycle.Failed, protocol.StartFailed)
	w.expect("1", 2, true)
}

// TestMissingSpec takes away the spec of the version that a deployment was rolled back to,
// as a damaged file does. Only that assignment is left out: the node keeps the deployment,
// and gets what is decided about the others.
func TestMissingSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1")
	w.report(lifecycle.Installed, "")
	w.desire("2")
	for range 2 {
		w.report(lifecycle.Failed, protocol.StartFailed)
		w.reconcile(time.Second)
	}
	w.expect("1", 2, true)
	before := w.last.Desired.Position
	w.missing[digest("1")] = true
	w.desired["other"] = protocol.SiteEntry{Deployment: "other", Digest: digest("3")}
	w.step()
	if held := w.last.Withheld; len(held) != 1 || !strings.Contains(held[0].Error(), "web") {
		t.Errorf("withheld %v: want web only", held)
	}
	if got := w.last.Desired; len(got.Assignments) != 1 || got.Assignments[0].Deployment != "other" || len(got.Removals) > 0 || !got.Position.After(before) {
		t.Errorf("the node gets %+v: want other assigned, nothing removed, at a position after %s", got, before)
	}
	delete(w.desired, "other")
	w.removals["other"] = protocol.Removal{Deployment: "other"}
	w.step()
	if got := w.last.Desired; len(got.Removals) != 1 || got.Removals[0].Deployment != "other" {
		t.Errorf("the node gets %+v: want other removed", got)
	}
}

// TestClockSetBack sets the LO's clock back by days while something is waited for: the
// wait takes as long as it is meant to.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	const days = 72 * time.Hour
	t.Run("retry", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.desire("v1")
		w.report(lifecycle.Failed, protocol.StartFailed)
		w.step()
		w.reconcile(-days)
		if wait := w.last.NextAt.Sub(w.now); wait <= 0 || wait > time.Second {
			t.Errorf("the retry is due in %s: want within the policy's second", wait)
		}
		w.reconcile(time.Second)
		w.expect("v1", 2, false)
	})
	t.Run("node lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.desire("v1")
		w.presence(false, "")
		w.step()
		w.reconcile(-days)
		w.reconcile(time.Minute)
		if state := w.rec.State("web"); state != lifecycle.Failed {
			t.Errorf("a minute later the install on the offline node is %s: want %s", state, lifecycle.Failed)
		}
	})
}

// TestMinHealthy gives the node the minimum time of the policy.
func TestMinHealthy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("1")
	w.desire("1", func(e *protocol.SiteEntry) { e.Policy.MinHealthyMillis = 30_000 })
	w.reconcile(0)
	if got := w.last.Desired.Assignments; len(got) != 1 || got[0].MinHealthyMillis != 30_000 || got[0].Attempt != 1 {
		t.Errorf("assignments %+v, want attempt 1 with 30 s", got)
	}
}

// TestTombstoneOfBefore has a tombstone that comes back with a CO whose database was restored: what was desired later, also with the
// same content, stays as it is.
func TestTombstoneOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(generation uint64) func(*protocol.SiteEntry) {
		return func(e *protocol.SiteEntry) { e.Position = protocol.Position{Epoch: 1, Generation: generation} }
	}
	w.desire("v1", at(1))
	w.report(lifecycle.Installed, "")
	w.desire("v1", at(4))
	tombstone := func(generation uint64) {
		t.Helper()
		delete(w.desired, "web")
		w.removals["web"] = protocol.Removal{Deployment: "web", Volumes: true, Position: protocol.Position{Epoch: 1, Generation: generation}, Signature: []byte(fmt.Sprintf("of %d", generation))}
		w.step()
	}
	tombstone(3)
	w.expectRemoval()
	w.expectWait("its removal is of 1.3, and what runs was desired later, at 1.4")
	if got := w.last.Desired.Assignments; len(got) != 1 || got[0].Site != (protocol.Position{Epoch: 1, Generation: 4}) {
		t.Errorf("assigned is %+v", got)
	}
	if got := w.rec.State("web"); got != lifecycle.Installed {
		t.Errorf("web is %s", got)
	}
	tombstone(5)
	w.expectWait("")
	later := protocol.NodeRemoval{Deployment: "web", Volumes: true, Site: protocol.Position{Epoch: 1, Generation: 5}, Signature: []byte("of 5")}
	w.expectRemoval(later)
	tombstone(3) // it is being removed already, by the later one
	w.expectRemoval(later)
	if got := w.rec.State("web"); got != lifecycle.Deleting {
		t.Errorf("web is %s", got)
	}
	w.report(lifecycle.Deleted, "", func(m *protocol.DeploymentStatus) { m.Site = protocol.Position{Epoch: 1, Generation: 5} })
	tombstone(3)
	w.expectWait("")
	w.expectRemoval()

	lost := newWorld(t) // an LO whose record is lost learns from the node what it follows
	lost.whole(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: lost.rec.Agent, Seq: 1, Actor: lifecycle.EN, State: lifecycle.Installed, Digest: digest("v1"), Attempt: 1,
		Site: protocol.Position{Epoch: 1, Generation: 4},
	})
	lost.removals["web"] = protocol.Removal{Deployment: "web", Volumes: true, Position: protocol.Position{Epoch: 1, Generation: 3}}
	lost.step()
	lost.expectRemoval()
	lost.expectWait("its removal is of 1.3, and what runs was desired later, at 1.4")
}
