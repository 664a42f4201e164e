package control

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// TestNodesAhead gives an LO that has lost what it held a desired state of a CO that was
// restored: the nodes follow a later one. What to go on above is reported to the CO, once for each
// state that it sends, and the nodes get what it sends then.
func TestNodesAhead(t *testing.T) {
	t.Parallel()
	at := func(epoch, generation uint64) protocol.Position {
		return protocol.Position{Epoch: epoch, Generation: generation}
	}
	d := &desiredState{m: desired(50, "web")}
	j := openJournal(t)
	site := openSite(t, j, openStore(t), d)
	published := map[protocol.NodeID]int{}
	l := NewLoop(site, func(_ context.Context, _ string, payload []byte) error {
		var m protocol.NodeDesired
		if err := protocol.Unmarshal(payload, &m); err != nil {
			return err
		}
		published[m.Node]++
		return nil
	})
	connect(t, site, "n1")
	connect(t, site, "n2")
	reportAll(t, site, "n1", protocol.Held{Position: at(1, 7), Digest: "x", Site: at(1, 57)})
	reportAll(t, site, "n2", protocol.Held{Position: at(1, 9), Digest: "y", Site: at(1, 56)})
	now := time.Now()
	reconcile := func(generation uint64) {
		d.m.Position.Generation = generation
		for range 3 {
			site.reconcileAll()
			now = now.Add(time.Minute)
			l.Reconcile(t.Context(), now)
		}
	}
	reported := func() (m protocol.Adopted) { // last, for a later one takes the place of an earlier one
		for _, e := range events(t, j, protocol.DesiredRefused) {
			if err := protocol.Unmarshal(e.Body, &m); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	reconcile(50)
	if m := reported(); m.Position != at(1, 50) || m.Held != (protocol.Held{Position: at(1, 57)}) {
		t.Errorf("the CO, which sent %s, got that the site holds %+v: want 1.50 and 1.57", m.Position, m.Held)
	}
	if l.state.Adopted != at(1, 50) || len(published) > 0 {
		t.Errorf("adopted %s, published %v: want 1.50 and nothing for the nodes", l.state.Adopted, published)
	}
	if got := site.Snapshot().Adopted; got != at(1, 50) {
		t.Errorf("a snapshot says that %s is adopted, want 1.50", got)
	}
	if last := lastOf(t, j, protocol.DesiredAdopted, protocol.DesiredRefused); last != protocol.DesiredRefused {
		t.Errorf("the last that the CO learns of what the site holds is by %s, want by %s", last, protocol.DesiredRefused)
	}
	once := j.Last()
	reconcile(50)
	if got := j.Last(); got != once {
		t.Errorf("%d events more where nothing changed, want none", got-once)
	}
	reconcile(56) // for n1 it is still too early
	if m := reported(); m.Position != at(1, 56) || m.Held.Position != at(1, 57) || published["n1"] > 0 || published["n2"] == 0 {
		t.Errorf("published %v, want for n2 only; reported %s holds %s, want 1.56 holds 1.57", published, m.Position, m.Held.Position)
	}
	reconcile(58)
	if m := reported(); m.Position != at(1, 56) || published["n1"] == 0 {
		t.Errorf("published %v, want for n1 as well; reported once more %s", published, m.Position)
	}
}

// lastOf returns the kind of the last of the journal's events of some kinds.
func lastOf(t *testing.T, j *journal.Journal, kinds ...protocol.EventKind) (last protocol.EventKind) {
	t.Helper()
	_, bodies, err := j.Bodies(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bodies {
		var e protocol.Event
		if err := protocol.Unmarshal(b, &e); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(kinds, e.Kind) {
			last = e.Kind
		}
	}
	return last
}
