package control

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestWindows has a site of two windows a week: an update waits for the next one, and for as long as nothing says what time it is.
func TestWindows(t *testing.T) {
	t.Parallel()
	clock, unsynced := nodes.Clock{Boot: "a", SinceBoot: time.Hour}, false
	m := desired(1, "web")
	m.Maintenance = &protocol.Maintenance{TimeZone: "Europe/Berlin", Windows: []protocol.Window{{Days: 1<<time.Saturday | 1<<time.Sunday, Start: 22 * 60, Minutes: 240}}}
	state := &desiredState{m: m}
	problems := 0
	j := eventJournal{openJournal(t)}
	s := openSite(t, j.Journal, openStore(t), state, func(o *Options) {
		o.Clock = func() nodes.Clock { return clock }
		o.Unsynced = func() bool { return unsynced }
		o.ProblemChanged = func(context.Context) { problems++ }
		o.Now = func() time.Time { return time.Date(2026, time.November, 23, 12, 0, 0, 0, time.UTC) } // a Monday
	})
	var sent protocol.NodeDesired
	l := NewLoop(s, func(_ context.Context, _ string, payload []byte) error {
		sent = protocol.NodeDesired{}
		return protocol.Unmarshal(payload, &sent)
	})
	at := func(text string) time.Time {
		now, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	announce(t, s, "n1")
	wednesday := at("2026-11-25T12:00:00+01:00")
	l.Reconcile(t.Context(), wednesday)
	first := sent.Assignments[0] // an installation waits for no window
	if err := s.acceptReport(t.Context(), running("n1", 2000, lifecycle.Installed, first), wednesday); err != nil {
		t.Fatal(err)
	}
	second := desired(2, "web")
	second.Deployments[0].Spec = []byte("another")
	second.Deployments[0].Digest = protocol.DigestOf(second.Deployments[0].Spec)
	second.Maintenance = m.Maintenance
	stored := m.Deployments[0] // the state of the test has the specs of what it names
	stored.Deployment, stored.Placement.Node = "stored", "n9"
	second.Deployments = append(second.Deployments, stored)
	if _, err := state.Offer(t.Context(), protocol.Marshal(second)); err != nil {
		t.Fatal(err)
	}
	s.reconcileAll()
	const saturday = "the site is outside of its maintenance windows until Sat 28 Nov 22:00 CET"
	expect := func(what string, now time.Time, waits string, next time.Time) {
		t.Helper()
		got := l.Reconcile(t.Context(), now)
		if !got.Equal(next) {
			t.Errorf("%s: it is looked at again at %v, want %v", what, got, next)
		}
		var want []restriction.Wait
		if waits != "" {
			want = []restriction.Wait{{Deployment: "web", Why: "the update waits: " + waits}}
			if waits == saturday {
				want[0].UntilMillis = at("2026-11-28T22:00:00+01:00").UnixMilli()
			}
		}
		if diff := cmp.Diff(want, s.Status()[0].Waits); diff != "" {
			t.Errorf("%s: waits (-want +got):\n%s", what, diff)
		}
		if updated := sent.Assignments[0].Digest == second.Deployments[0].Digest; updated != (waits == "") {
			t.Errorf("%s: updated %t", what, updated)
		}
		if shown := s.Snapshot().Nodes[0].Restrictions != nil; shown != (waits != "") {
			t.Errorf("%s: a snapshot says what waits: %t", what, shown)
		}
		if got := s.Closed(); got != waits {
			t.Errorf("%s: closed %q", what, got)
		}
	}
	expect("on Wednesday", wednesday, saturday, wednesday.Add(time.Minute))
	unsynced = true
	expect("by a clock that nothing keeps in step", wednesday.Add(time.Hour), "its maintenance windows count as closed: the clock of the site's machine is not synchronised, and the time of the CO is not known", wednesday.Add(time.Hour+time.Minute))
	if problems != 1 || s.Timeless() == "" {
		t.Errorf("it is %d problems that no window opens, %q", problems, s.Timeless())
	}
	clock.EstimateMillis = at("2026-11-28T21:59:00+01:00").UnixMilli()
	expect("a minute before, by the time of the CO", wednesday.Add(2*time.Hour), saturday, wednesday.Add(2*time.Hour+time.Minute))
	clock.EstimateMillis = at("2026-11-28T22:00:00+01:00").UnixMilli()
	expect("in the window", wednesday.Add(2*time.Hour+time.Minute), "", wednesday.Add(2*time.Hour+2*time.Minute))
	if problems != 2 || s.Timeless() != "" {
		t.Errorf("%d problems, %q, once the time is known", problems, s.Timeless())
	}
	if last := restrictions(t, j); len(last) != 1 || len(last[0].Waits) != 0 { // a later report takes the place of one that the CO does not have
		t.Errorf("the CO learns %+v", last)
	}
}

// moving has a site outside of its windows, on a Wednesday, with a deployment that runs on n1 and that a person has placed on n2 since.
func moving(t *testing.T) (s *Site, l *Loop, sent map[protocol.NodeID]protocol.NodeDesired, wednesday time.Time) {
	t.Helper()
	unsynced := false
	m := desired(1, "web")
	m.Deployments[0].Placement.Node = "n1"
	m.Maintenance = &protocol.Maintenance{TimeZone: "UTC", Windows: []protocol.Window{{Days: 1 << time.Saturday, Start: 22 * 60, Minutes: 240}}}
	state := &desiredState{m: m}
	wednesday = time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
	s = openSite(t, openJournal(t), openStore(t), state, func(o *Options) {
		o.Unsynced = func() bool { return unsynced }
		o.Now = func() time.Time { return wednesday }
	})
	sent = map[protocol.NodeID]protocol.NodeDesired{}
	l = NewLoop(s, func(_ context.Context, _ string, payload []byte) error {
		var d protocol.NodeDesired
		err := protocol.Unmarshal(payload, &d)
		sent[d.Node] = d
		return err
	})
	announce(t, s, "n1")
	announce(t, s, "n2")
	l.Reconcile(t.Context(), wednesday)
	if err := s.acceptReport(t.Context(), running("n1", 2000, lifecycle.Installed, sent["n1"].Assignments[0]), wednesday); err != nil {
		t.Fatal(err)
	}
	moved := desired(2, "web")
	moved.Deployments[0].Placement.Node, moved.Maintenance = "n2", m.Maintenance
	if _, err := state.Offer(t.Context(), protocol.Marshal(moved)); err != nil {
		t.Fatal(err)
	}
	s.reconcileAll()
	l.Reconcile(t.Context(), wednesday)
	if len(sent["n1"].Assignments) != 1 || len(sent["n1"].Removals) != 0 || len(sent["n2"].Assignments) != 0 {
		t.Errorf("outside of a window: %+v", sent)
	}
	return s, l, sent, wednesday
}

// TestAMoveWaitsForAWindow: outside of a window the node that a person has chosen does not begin a deployment that another one keeps until then.
func TestAMoveWaitsForAWindow(t *testing.T) {
	t.Parallel()
	s, l, sent, _ := moving(t)
	if list := s.Status(); len(list[0].Waits) != 1 || len(list[1].Waits) != 1 {
		t.Errorf("what waits is not shown: %+v", list)
	}
	l.Reconcile(t.Context(), time.Date(2026, time.November, 28, 22, 0, 0, 0, time.UTC))
	if len(sent["n1"].Removals) != 1 || len(sent["n2"].Assignments) != 1 {
		t.Errorf("in the window: %+v", sent)
	}
}

// TestAMoveFromANodeThatIsAway: the node that keeps a deployment until a window begins is offline for a moment, which changes nothing, and then for longer than
// a node is waited for.
func TestAMoveFromANodeThatIsAway(t *testing.T) {
	t.Parallel()
	s, l, sent, wednesday := moving(t)
	if err := s.acceptPresence(t.Context(), "n1", protocol.Presence{V: 1, Agent: "agent-n1"}, wednesday); err != nil {
		t.Fatal(err)
	}
	lost := wednesday.Add(s.opts.NodeLostAfter)
	s.reconcileAll()
	if next := l.Reconcile(t.Context(), wednesday.Add(time.Second)); len(sent["n2"].Assignments) != 0 || next.IsZero() || next.After(lost) {
		t.Errorf("after a second: %+v, looked at again at %s", sent["n2"], next)
	}
	s.reconcileAll()
	if l.Reconcile(t.Context(), lost); len(sent["n2"].Assignments) != 1 {
		t.Errorf("after %s: %+v", s.opts.NodeLostAfter, sent["n2"])
	}
}

// TestPhaseIsForgottenByARestart: how far a node is with an update is not known to an LO that starts anew, also while it counts the node as
// online: the node may have begun to replace what it had up.
func TestPhaseIsForgottenByARestart(t *testing.T) {
	t.Parallel()
	p := newPlant(t, desired(1, "web"), "n1")
	running := p.nodes["n1"].runs["web"]
	second := desired(2, "web")
	second.Deployments[0].Spec = []byte("another")
	second.Deployments[0].Digest = protocol.DigestOf(second.Deployments[0].Spec)
	if _, err := p.desired.Offer(t.Context(), protocol.Marshal(second)); err != nil {
		t.Fatal(err)
	}
	p.site.reconcileAll()
	p.loop.Reconcile(t.Context(), p.now)
	m := running
	m.State, m.Digest, m.Phase, m.Running = lifecycle.Updating, second.Deployments[0].Digest, protocol.Pulling, running.Digest
	p.report(p.nodes["n1"], m)
	p.site.reconcileAll()
	p.loop.Reconcile(t.Context(), p.now)
	if phase := p.site.known("n1").rec.Phase("web"); phase != protocol.Pulling {
		t.Fatalf("the node is %q, want pulling", phase)
	}
	// What is saved of the node has it.
	if err := p.site.acceptInventory(t.Context(), "n1", protocol.Inventory{V: protocol.Version, Node: "n1", Architecture: "amd64", Cores: 8}, p.now); err != nil {
		t.Fatal(err)
	}
	p.site.reconcileAll()
	p.loop.Reconcile(t.Context(), p.now)
	p.start()
	if n := p.site.known("n1"); !n.rec.Online() || n.rec.State("web") != lifecycle.Updating || n.rec.Phase("web") != "" {
		t.Errorf("online %t, %s, %q", n.rec.Online(), n.rec.State("web"), n.rec.Phase("web"))
	}
}
