package fleetdb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestLostSiteKeepsTombstones has an LO that has lost its disk send a snapshot while one of
// its nodes is away that still has to remove a deployment: the tombstone stays until the
// node has reported.
func TestLostSiteKeepsTombstones(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	save := func(commit string, list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save("c1", want("a", "1", "c1"), want("d", "1", "c1"))
	j := &journal{epoch: "e"}
	for _, n := range []string{"n1", "n2"} {
		j.add(protocol.NodeOnlineEvent, protocol.NodeID(n), protocol.Presence{V: 1, Online: true})
		j.life("d", n)
	}
	removal := save("c2", want("a", "1", "c2"))
	j.status("d", "n1", lifecycle.Deleting, lifecycle.LO)
	j.status("d", "n1", lifecycle.Deleted, lifecycle.EN)
	j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: removal.Position, Held: removal.Held()})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))

	lost := &journal{epoch: "f"}
	lost.add(protocol.LOStarted, "", protocol.Presence{V: 1, Online: true})
	lost.add(protocol.SnapshotEvent, "", protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{{Node: "n1", Presence: protocol.Presence{Online: true}, Complete: true}}})
	lost.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: removal.Position, Held: removal.Held()})
	testpart.Must[protocol.Ack](t)(lost.send(ctx, s, 1, len(lost.events), 0))
	running := testpart.Must[[]protocol.NodeRunning](t)(s.Running(ctx, "home"))
	if diff := cmp.Diff([]protocol.NodeRunning{{Node: "n2", Deployments: []protocol.DeploymentName{"d"}}}, running); diff != "" {
		t.Errorf("what the site ran, after the snapshot: %s", diff)
	}
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n2")); n.Online || n.Problem == "" {
		t.Errorf("node n2: %+v, want it away, and unknown to the site", n)
	}
	names := func(list []protocol.Removal) (out []protocol.DeploymentName) {
		for _, r := range list {
			out = append(out, r.Deployment)
		}
		return out
	}
	if got := names(save("c3", want("a", "2", "c3")).Removals); !cmp.Equal(got, []protocol.DeploymentName{"d"}) {
		t.Errorf("tombstones %v after the site lost its record, want that of d", got)
	}

	at := len(lost.events)
	lost.add(protocol.NodeOnlineEvent, "n2", protocol.Presence{V: 1, Online: true})
	lost.add(protocol.NodeHoldings, "n2", protocol.Holdings{V: 1})
	testpart.Must[protocol.Ack](t)(lost.send(ctx, s, at+1, len(lost.events), 0))
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n2")); !n.Online && n.State == fleet.NodeOnline || n.Problem != "" {
		t.Errorf("node n2 is back: %+v", n)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); !d.Archived {
		t.Errorf("no node holds d any more, and it is not archived: %+v", d)
	}
	if got := names(save("c4", want("a", "3", "c4")).Removals); len(got) != 0 {
		t.Errorf("tombstones %v although every node has reported, want none", got)
	}

	// The disk of n2 is an older copy, which has d: nothing asks for its removal.
	at = len(lost.events)
	lost.life("d", "n2")
	testpart.Must[protocol.Ack](t)(lost.send(ctx, s, at+1, len(lost.events), 0))
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); d.Archived || d.State != lifecycle.Installed {
		t.Errorf("d is back on a node: %s, archived %t; want INSTALLED", d.State, d.Archived)
	}
}
