package control

import (
	"reflect"
	"testing"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestSnapshotHasEveryField takes a snapshot of a site that knows everything of a node: a field that is empty then is one that Snapshot forgets.
// Lost and Cause are of the uplink that sends it.
func TestSnapshotHasEveryField(t *testing.T) {
	t.Parallel()
	site := openSite(t, openJournal(t), openStore(t), &desiredState{})
	rec := nodes.New("n1")
	rec.Agent, rec.Complete, rec.ChangedMillis = "a1", true, 1
	rec.Presence = protocol.Presence{V: protocol.Version, Online: true, Agent: "a1", Version: "0.3.0"}
	rec.Inventory = &protocol.Inventory{V: protocol.Version, Node: "n1"}
	rec.Restrictions = []nodes.Restriction{{Restriction: restriction.Restriction{Kind: restriction.Hold, Reason: "repair"}}}
	rec.Deployments = map[protocol.DeploymentName]*nodes.Deployment{
		"web": {Status: protocol.DeploymentStatus{Node: "n1", Deployment: "web", State: lifecycle.Installed}},
	}
	n := newNode(rec)
	n.reported = true
	site.nodes["n1"] = n
	site.adopted.Store(&protocol.Position{Epoch: 1, Generation: 2})
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.1"} { // two gateways that replace each other
		g := protocol.Gateway{Agent: "a" + address, Address: address}
		if _, err := site.names.Admit("n1", g, protocol.Gateway{}, false, site.began); err != nil {
			t.Fatalf("gateway %s is not admitted: %v", address, err)
		}
	}
	m := site.Snapshot()
	m.Lost, m.Cause = 1, "the journal was damaged"
	if len(m.Nodes) != 1 {
		t.Fatalf("%d nodes, want 1", len(m.Nodes))
	}
	for _, part := range []any{m, m.Nodes[0]} {
		v := reflect.ValueOf(part)
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("a snapshot does not say %s.%s", v.Type().Name(), v.Type().Field(i).Name)
			}
		}
	}
}
