package control

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// restrictions are the reports in the journal.
func restrictions(t *testing.T, j Journal) (out []restriction.Report) {
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
		if e.Kind != protocol.NodeRestrictions {
			continue
		}
		var m restriction.Report
		if err := restriction.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func restrict(t *testing.T, s *Site, id protocol.NodeID, do command.Kind, lasts time.Duration) {
	t.Helper()
	if _, err := s.Restrict(t.Context(), id, nodes.Change{Do: do, Reason: "new disk", Actor: "anna", For: lasts}); err != nil {
		t.Fatal(err)
	}
}

// running is a node's status of web.
func running(id protocol.NodeID, seq uint64, state lifecycle.State, of protocol.Assignment) protocol.DeploymentStatus {
	return protocol.DeploymentStatus{
		V: 1, Node: id, Deployment: "web", Agent: "agent-" + string(id), Seq: seq, Actor: lifecycle.EN, State: state, Digest: of.Digest, Attempt: of.Attempt,
	}
}

// TestDrainStartsElsewhereFirst drains the node of a replica: it goes once the other node is healthy.
func TestDrainStartsElsewhereFirst(t *testing.T) {
	t.Parallel()
	m := desired(1, "web")
	m.Deployments[0].Placement.Replicas = 1
	j := eventJournal{openJournal(t)}
	s := openSite(t, j.Journal, openStore(t), &desiredState{m: m})
	sent := map[string]protocol.NodeDesired{}
	l := NewLoop(s, func(_ context.Context, name string, payload []byte) error {
		var m protocol.NodeDesired
		err := protocol.Unmarshal(payload, &m)
		sent[string(m.Node)] = m
		return err
	})
	now := s.began.Add(2 * time.Hour) // nothing is waited for any more
	announce(t, s, "n1")
	announce(t, s, "n2")
	l.Reconcile(t.Context(), now)
	first := sent["n1"].Assignments[0]
	accept := func(st protocol.DeploymentStatus) {
		t.Helper()
		if err := s.acceptReport(t.Context(), st, now); err != nil {
			t.Fatal(err)
		}
		l.Reconcile(t.Context(), now)
	}
	accept(running("n1", 2000, lifecycle.Installed, first))
	restrict(t, s, "n1", command.Drain, 0)
	l.Reconcile(t.Context(), now)
	if len(sent["n2"].Assignments) != 1 || len(sent["n1"].Removals) != 0 {
		t.Fatalf("n2 is assigned %d, n1 is to remove %d; want the replica begun on n2, and kept on n1", len(sent["n2"].Assignments), len(sent["n1"].Removals))
	}
	want := []restriction.Wait{{Deployment: "web", Why: "it moves once it is healthy on node n2, where it is INSTALLING"}}
	if diff := cmp.Diff(want, s.Status()[0].Waits); diff != "" {
		t.Errorf("what waits (-want +got):\n%s", diff)
	}
	accept(running("n2", 2000, lifecycle.Failed, sent["n2"].Assignments[0]))
	if len(sent["n1"].Removals) != 0 {
		t.Error("the replica is removed from n1 though it failed on n2")
	}
	accept(running("n2", 2001, lifecycle.Installed, sent["n2"].Assignments[0]))
	if len(sent["n1"].Removals) != 1 {
		t.Error("the replica is healthy on n2, and stays on n1")
	}
	if waits := s.Status()[0].Waits; len(waits) != 0 {
		t.Errorf("%v waits once it has moved", waits)
	}
	restrict(t, s, "n1", command.Uncordon, 0)
	l.Reconcile(t.Context(), now)
	if len(sent["n1"].Assignments) != 0 {
		t.Error("the replica came back when the drain was over")
	}
	var did []string
	for _, m := range restrictions(t, j) {
		if m.Change != nil {
			did = append(did, m.Change.Did)
		}
	}
	if diff := cmp.Diff([]string{"drain", "uncordon"}, did); diff != "" {
		t.Errorf("what the CO learns (-want +got):\n%s", diff)
	}
}

// TestRestrictionsOutliveARestart holds a node, and starts the LO anew: with its record, with the journal alone, and after the time that
// the hold was set for.
func TestRestrictionsOutliveARestart(t *testing.T) {
	t.Parallel()
	clock := nodes.Clock{Boot: "a", SinceBoot: time.Hour}
	for name, lost := range map[string]bool{"with its record": false, "with the journal alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, dir := openJournal(t), t.TempDir()
			d := &desiredState{m: desired(1, "web")}
			open := func(at nodes.Clock) (*Site, *Loop) {
				t.Helper()
				st, err := store.Open(disk.OS, dir, logger(t))
				if err != nil {
					t.Fatal(err)
				}
				s, err := Open(t.Context(), Options{
					Site: "s1", Journal: eventJournal{j}, Store: st, Desired: d, NodeLostAfter: time.Minute, PresenceGrace: time.Hour, Logger: logger(t),
					Clock: func() nodes.Clock { return at },
				})
				if err != nil {
					t.Fatal(err)
				}
				return s, NewLoop(s, func(context.Context, string, []byte) error { return nil })
			}
			s, _ := open(clock)
			announce(t, s, "n1")
			restrict(t, s, "n1", command.Hold, 2*time.Hour)
			if lost {
				if err := os.Remove(filepath.Join(dir, "nodes", "n1.json")); err != nil {
					t.Fatal(err)
				}
			}
			s, l := open(nodes.Clock{Boot: "a", SinceBoot: 2 * time.Hour})
			l.Reconcile(t.Context(), s.began)
			if r := s.Status()[0].Restrictions; len(r) != 1 || r[0].Reason != "new disk" || r[0].Actor != "anna" {
				t.Fatalf("after a restart %+v restricts the node, want the hold", r)
			}
			if s.Snapshot().Nodes[0].Restrictions == nil {
				t.Error("a snapshot does not have the hold")
			}
			announce(t, s, "n1")
			l.Reconcile(t.Context(), s.began)
			if s.node("n1").rec.Runs("web") {
				t.Error("a deployment begins on a node that is held")
			}
			s, l = open(nodes.Clock{Boot: "a", SinceBoot: 5 * time.Hour})
			announce(t, s, "n1")
			l.Reconcile(t.Context(), s.began)
			if r := s.Status()[0].Restrictions; len(r) != 0 || !s.node("n1").rec.Runs("web") {
				t.Errorf("after its time %+v restricts the node, which runs web: %t", r, s.node("n1").rec.Runs("web"))
			}
		})
	}
}

// TestDamagedRecordLosesRestrictions: the CO learns that the site knows of none.
func TestDamagedRecordLosesRestrictions(t *testing.T) {
	t.Parallel()
	j, dir := openJournal(t), t.TempDir()
	st, err := store.Open(disk.OS, dir, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	s := openSite(t, j, st, nil)
	announce(t, s, "n1")
	restrict(t, s, "n1", command.Cordon, 0)
	if err := j.Trim(j.Last()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "nodes", "n1.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), "cordon", "kordon", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	openSite(t, j, st, nil)
	all := restrictions(t, eventJournal{j})
	if len(all) != 1 || len(all[0].Restrictions) != 0 || all[0].Change == nil || all[0].Change.Did != restriction.Lost {
		t.Errorf("after its record was damaged the CO learns %+v, want that nothing restricts the node, as the record was lost", all)
	}
}

func TestRestrictUnknownNode(t *testing.T) {
	t.Parallel()
	s := openSite(t, openJournal(t), openStore(t), nil)
	if _, err := s.Restrict(t.Context(), "n9", nodes.Change{Do: command.Cordon, Reason: "r"}); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a node that the site does not have: %v, want an error of kind not_found", err)
	}
	if s.known("n9") != nil {
		t.Error("it has it now")
	}
}
