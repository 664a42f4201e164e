package nodes

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

func whole(held protocol.Held, statuses ...protocol.DeploymentStatus) protocol.NodeReport {
	return protocol.NodeReport{V: 1, Node: "n1", Agent: "a", Boot: "b", Seq: 9, Held: held, Statuses: statuses}
}

func at(epoch, generation uint64) protocol.Position {
	return protocol.Position{Epoch: epoch, Generation: generation}
}

// TestNodeReportTeaches has a node report to a record that knows nothing.
func TestNodeReportTeaches(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.Expected = []protocol.DeploymentName{"web"}
	out := r.ApplyNodeReport(whole(protocol.Held{Position: at(1, 7), Digest: "x"}, report(0, lifecycle.Installed)), noon)
	if !r.Complete || r.Expected != nil {
		t.Errorf("complete %t, expected %v: want complete, and nothing expected any more", r.Complete, r.Expected)
	}
	if r.Position != at(2, 8) || !out.Raised {
		t.Errorf("position %s, raised %t: want 2.8, one epoch and generation above the node's", r.Position, out.Raised)
	}
	d := r.Deployments["web"]
	if d == nil || d.Status.State != lifecycle.Installed || d.Seq != 9 || d.Agent != "a" {
		t.Fatalf("the record has %+v, want what the node reported", d)
	}
	if again := r.ApplyNodeReport(whole(r.Held(), report(0, lifecycle.Installed)), noon); len(again.Facts) > 0 || again.Raised {
		t.Errorf("the same report once more led to %+v", again)
	}
}

// TestNodeReportRaises is the table of positions of the record and of the node.
func TestNodeReportRaises(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		record      protocol.Held
		node        protocol.Held
		want        protocol.Position
		drop, ahead bool
	}{
		{"a new node", protocol.Held{}, protocol.Held{}, at(0, 0), false, false},
		{"the same", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{Position: at(1, 3), Digest: "x"}, at(1, 3), false, false},
		{"the node is behind", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{Position: at(1, 2), Digest: "y"}, at(1, 3), false, false},
		{"the node holds nothing", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{}, at(1, 3), false, false},
		{"the same position, other content", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{Position: at(1, 3), Digest: "y"}, at(2, 4), true, false},
		{"the node is ahead", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{Position: at(1, 9), Digest: "y"}, at(2, 10), true, false},
		{"a later epoch", protocol.Held{Position: at(1, 30), Digest: "x"}, protocol.Held{Position: at(4, 9), Digest: "y"}, at(5, 31), true, false},
		{"too far ahead", protocol.Held{Position: at(1, 3), Digest: "x"}, protocol.Held{Position: at(1002, 9), Digest: "y"}, at(1, 3), false, true},
		{"the last possible", protocol.Held{}, protocol.Held{Position: at(1, 1<<64-1)}, at(0, 0), false, true},
	} {
		r := New("n1")
		r.Agent = "a"
		r.Position, r.Digest = c.record.Position, c.record.Digest
		r.Deployments["web"] = &Deployment{
			Status: protocol.DeploymentStatus{State: lifecycle.Deleting}, Removal: Removal{Removing: true, Tombstone: at(1, 1)}, Assigned: Assignment{Position: at(1, 3)},
		}
		out := r.ApplyNodeReport(whole(c.node, report(0, lifecycle.Installed)), noon)
		if r.Position != c.want {
			t.Errorf("%s: position %s, want %s", c.name, r.Position, c.want)
		}
		if dropped := !r.Deployments["web"].Removing; dropped != c.drop {
			t.Errorf("%s: decisions dropped %t, want %t", c.name, dropped, c.drop)
		}
		if ahead := r.Ahead != ""; ahead != c.ahead || r.Complete == c.ahead {
			t.Errorf("%s: refused %t, complete %t, want refused %t", c.name, ahead, r.Complete, c.ahead)
		}
		if raised := slices.ContainsFunc(out.Facts, func(f Fact) bool { return f.Event.Kind == protocol.NodeEpochRaised }); raised != (c.drop || c.ahead) {
			t.Errorf("%s: an event says so %t, want %t", c.name, raised, c.drop || c.ahead)
		}
		if c.ahead {
			if again := r.ApplyNodeReport(whole(c.node), noon); len(again.Facts) > 0 {
				t.Errorf("%s: the next report led to %d events, want none", c.name, len(again.Facts))
			}
		}
	}
}

// TestNodeReportLacks has a node report less than the record has: its record was lost.
func TestNodeReportLacks(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.Agent = "a"
	for _, s := range lifecycle.States {
		r.Deployments[protocol.DeploymentName("in-"+string(s))] = &Deployment{Agent: "a", Seq: 3, Status: protocol.DeploymentStatus{State: s}}
	}
	r.ApplyNodeReport(whole(protocol.Held{}), noon)
	want := map[lifecycle.State]lifecycle.State{
		lifecycle.Pending: lifecycle.Pending, lifecycle.Deleting: lifecycle.Deleting, lifecycle.Deleted: lifecycle.Deleted,
		lifecycle.Installing: lifecycle.Pending, lifecycle.Installed: lifecycle.Pending, lifecycle.Updating: lifecycle.Pending,
		lifecycle.Failed: lifecycle.Pending, lifecycle.RollingBack: lifecycle.Pending,
	}
	got := map[lifecycle.State]lifecycle.State{}
	for _, s := range lifecycle.States {
		d := r.Deployments[protocol.DeploymentName("in-"+string(s))]
		got[s] = d.Status.State
		if d.Agent != "" || d.Seq != 0 {
			t.Errorf("%s: the record names report %d of agent %q, which the node does not know", s, d.Seq, d.Agent)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// TestNodeReportOfAnOldDisk has a node report that was put back from an old copy of its
// disk: its agent is the same, and counts its reports from an earlier number.
func TestNodeReportOfAnOldDisk(t *testing.T) {
	t.Parallel()
	status := func(digest protocol.Digest) protocol.DeploymentStatus {
		s := report(0, lifecycle.Installed)
		s.Digest = digest
		return s
	}
	r := New("n1")
	now := whole(protocol.Held{}, status("sha256:2"))
	now.Seq = 5000
	r.ApplyNodeReport(now, noon)
	old := whole(protocol.Held{}, status("sha256:1"))
	old.Seq = 2049
	r.ApplyNodeReport(old, noon)
	if got := r.Deployments["web"].Status.Digest; got != "sha256:1" {
		t.Errorf("the record has version %s, the node reported that it runs sha256:1", got)
	}
	next := report(2050, lifecycle.Deleted)
	next.Digest = "sha256:1"
	if out := r.ApplyReport(next, noon); out.Duplicate || r.State("web") != lifecycle.Deleted {
		t.Errorf("the next report: duplicate %t, state %s, want it folded in", out.Duplicate, r.State("web"))
	}
}

// TestNodeReportSaysHoldings has nodes report to records that are whole, and that are not:
// only then the CO has to hear everything that the node holds.
func TestNodeReportSaysHoldings(t *testing.T) {
	t.Parallel()
	known := func(r *Record) *Record {
		r.Agent, r.Complete, r.Waits = "a", true, []restriction.Wait{{Deployment: "old", Why: "the removal waits"}}
		r.Deployments["web"] = &Deployment{Agent: "a", Seq: 1, Status: protocol.DeploymentStatus{Deployment: "web", State: lifecycle.Installed, Digest: "d1", Attempt: 1}}
		r.Deployments["old"] = &Deployment{Status: protocol.DeploymentStatus{Deployment: "old", State: lifecycle.Deleted}}
		return r
	}
	web := []protocol.DeploymentName{"web"}
	unsaid := known(New("n1"))
	unsaid.Unsaid = true
	for name, c := range map[string]struct {
		record *Record
		held   protocol.Held
		want   []protocol.DeploymentName // nil: no event
	}{
		"a node that is not known":            {New("n1"), protocol.Held{}, web},
		"a whole record":                      {known(New("n1")), protocol.Held{}, nil},
		"one that a snapshot said nothing of": {unsaid, protocol.Held{}, web},
		"a record of before":                  {known(New("n1")), protocol.Held{Position: at(1, 3), Digest: "x"}, web},
	} {
		out := c.record.ApplyNodeReport(whole(c.held, report(0, lifecycle.Installed)), noon)
		var got []protocol.DeploymentName
		for _, f := range out.Facts {
			var h protocol.Holdings
			if f.Event.Kind == protocol.NodeHoldings && protocol.Unmarshal(f.Event.Body, &h) == nil {
				got = h.Deployments
				var m restriction.Report
				if err := restriction.Unmarshal(h.Restrictions, &m); err != nil || !slices.Equal(m.Waits, c.record.Waits) {
					t.Errorf("%s: waits %v (%v), want %v", name, m.Waits, err, c.record.Waits)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: holdings: %s", name, diff)
		}
		if again := c.record.ApplyNodeReport(whole(c.record.Held(), report(0, lifecycle.Installed)), noon); len(again.Facts) > 0 {
			t.Errorf("%s: the next report says %v, want nothing", name, again.Facts)
		}
	}
}
