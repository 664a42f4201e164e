package fleetdb_test

import (
	"strings"
	"testing"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestUnrecordedRuns has a node report containers of deployments that it has no record of: what runs is not DELETED, and is archived once the node has
// it no more, or is removed.
func TestUnrecordedRuns(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	j := &journal{epoch: "e"}
	unknown := func(node protocol.NodeID, names ...protocol.DeploymentName) {
		t.Helper()
		from := len(j.events) + 1
		j.add(protocol.InventoryChanged, node, protocol.Inventory{V: 1, Node: node, Unknown: names})
		testpart.Must[protocol.Ack](t)(j.send(ctx, s, from, len(j.events), 0))
	}
	check := func(when string, name protocol.DeploymentName, state lifecycle.State, nodes int, reason string) {
		t.Helper()
		d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", name))
		if d.State != state || d.Archived != (state == lifecycle.Deleted) || !strings.Contains(d.Reason, reason) {
			t.Errorf("%s, %s: %s, archived %t, reason %q; want %s with %q", when, name, d.State, d.Archived, d.Reason, state, reason)
		}
		if d.Installed != nodes || d.DesiredNodes != nodes {
			t.Errorf("%s, %s: at %d of %d nodes, want %d", when, name, d.Installed, d.DesiredNodes, nodes)
		}
		list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{Site: "home"}, fleet.Page{})
		listed := false
		for _, v := range list {
			listed = listed || v.Name == name
		}
		if err != nil || listed == d.Archived {
			t.Errorf("%s: listed are %+v (%v)", when, list, err)
		}
	}
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.add(protocol.NodeOnlineEvent, "n2", protocol.Presence{V: 1, Online: true})
	j.life("removed", "n1")
	j.status("removed", "n1", lifecycle.Deleting, lifecycle.LO)
	j.status("removed", "n1", lifecycle.Deleted, lifecycle.EN)
	j.life("set-back", "n1")
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
	check("before", "removed", lifecycle.Deleted, 0, "")
	check("before", "set-back", lifecycle.Installed, 1, "")

	unknown("n1", "set-back")
	from := len(j.events) + 1
	j.add(protocol.NodeHoldings, "n1", protocol.Holdings{V: 1})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, from, len(j.events), 0))
	check("the node lost its record", "set-back", lifecycle.Installed, 1, "node n1 has containers of it")
	unknown("n1", "set-back", "removed", "never-heard-of")
	check("later", "removed", lifecycle.Installed, 1, "node n1 has containers of it")
	check("later", "never-heard-of", lifecycle.Installed, 1, "node n1 has containers of it")

	if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestRemoval, Deployment: "set-back"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c1", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	check("once its removal is asked for", "set-back", lifecycle.Deleting, 1, "")
	if n, err := s.CheckCounters(ctx, 0); err != nil || n > 0 {
		t.Errorf("%d counters differ (%v)", n, err)
	}
	unknown("n1", "removed")
	check("once it is removed", "set-back", lifecycle.Deleted, 0, "")
	check("still there", "removed", lifecycle.Installed, 1, "node n1 has containers of it")
	unknown("n2", "removed")
	check("at two nodes", "removed", lifecycle.Installed, 2, "node n1 has containers of it")
	unknown("n2")
	unknown("n1")
	check("once the node has it no more", "removed", lifecycle.Deleted, 0, "")
	check("once the node has it no more", "never-heard-of", lifecycle.Deleted, 0, "")
}
