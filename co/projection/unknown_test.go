package projection_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// recorded is the record of a site with two nodes that run a and b.
func recorded() projection.Record {
	r := empty()
	for _, id := range []protocol.NodeID{"n1", "n2"} {
		r.Nodes[id] = fleet.Node{ID: id, Online: true, Version: "1"}
		for _, name := range []protocol.DeploymentName{"a", "b"} {
			r.States[projection.Key{Deployment: name, Node: id}] = lifecycle.Installed
		}
	}
	return r
}

func event(kind protocol.EventKind, node protocol.NodeID, body any) protocol.Event {
	return protocol.Event{Kind: kind, Node: node, Body: protocol.Marshal(body)}
}

// TestSnapshotOfAnIncompleteRecord has an LO send a snapshot whose record is not whole.
func TestSnapshotOfAnIncompleteRecord(t *testing.T) {
	t.Parallel()
	online := protocol.Presence{V: 1, Online: true, Version: "1"}
	installed := protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "a", State: lifecycle.Installed, Actor: lifecycle.EN}
	all := []projection.Key{{Deployment: "a", Node: "n1"}, {Deployment: "a", Node: "n2"}, {Deployment: "b", Node: "n1"}, {Deployment: "b", Node: "n2"}}
	for name, tt := range map[string]struct {
		snapshot protocol.Snapshot
		then     []protocol.Event
		keep     []projection.Key
		online   map[protocol.NodeID]bool
		unknown  []protocol.NodeID
	}{
		"a disk that was lost": {
			protocol.Snapshot{V: 1}, nil, all, map[protocol.NodeID]bool{"n1": false, "n2": false}, []protocol.NodeID{"n1", "n2"},
		},
		"a node that has not reported": {
			protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{{Node: "n1", Presence: online}}},
			nil, all,
			map[protocol.NodeID]bool{"n1": true, "n2": false},
			[]protocol.NodeID{"n2"},
		},
		"a node that has reported": {
			protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{{Node: "n1", Presence: online, Complete: true}}, Statuses: []protocol.DeploymentStatus{installed}},
			nil,
			[]projection.Key{all[0], all[1], all[3]},
			map[protocol.NodeID]bool{"n1": true, "n2": false},
			[]protocol.NodeID{"n2"},
		},
		"a node that reports later": {
			protocol.Snapshot{V: 1},
			[]protocol.Event{
				event(protocol.NodeOnlineEvent, "n2", online),
				event(protocol.NodeHoldings, "n2", protocol.Holdings{V: 1, Deployments: []protocol.DeploymentName{"b"}}),
			},
			[]projection.Key{all[0], all[2], all[3]},
			map[protocol.NodeID]bool{"n1": false, "n2": true},
			[]protocol.NodeID{"n1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := projection.Decode(append([]protocol.Event{event(protocol.SnapshotEvent, "", tt.snapshot)}, tt.then...)).Fold(recorded(), now)
			got := apply(recorded(), changes)
			want := map[projection.Key]lifecycle.State{}
			for _, k := range tt.keep {
				want[k] = lifecycle.Installed
			}
			if diff := cmp.Diff(want, got.States); diff != "" {
				t.Error(diff)
			}
			if len(changes.RemovedNodes) > 0 || len(changes.Anomalies) > 0 {
				t.Errorf("removed nodes %v, anomalies %v", changes.RemovedNodes, changes.Anomalies)
			}
			unknown := map[protocol.NodeID]bool{}
			for _, id := range tt.unknown {
				unknown[id] = true
			}
			for id, online := range tt.online {
				if n := got.Nodes[id]; n.Online != online || unknown[id] != strings.Contains(n.Problem, "lost its record") {
					t.Errorf("node %s: online %t, problem %q; want online %t, unknown to the site %t", id, n.Online, n.Problem, online, unknown[id])
				}
			}
		})
	}
}

// TestHoldingsWithoutANode is an event that can be about no node.
func TestHoldingsWithoutANode(t *testing.T) {
	t.Parallel()
	changes := projection.Decode([]protocol.Event{event(protocol.NodeHoldings, "", protocol.Holdings{V: 1})}).Fold(recorded(), now)
	if len(changes.Anomalies) != 1 || len(changes.RemovedStatuses) > 0 {
		t.Errorf("anomalies %v, removed %v: want one anomaly and nothing removed", changes.Anomalies, changes.RemovedStatuses)
	}
}

// TestSnapshotSaysWhatIsAdopted has the event of an adoption in a gap: the snapshot that closes the gap says it, too.
func TestSnapshotSaysWhatIsAdopted(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 3, Generation: generation} }
	for name, tt := range map[string]struct {
		snapshot protocol.Snapshot
		want     protocol.Position
	}{
		"an LO that says it":            {protocol.Snapshot{V: 1, Adopted: at(56)}, at(56)},
		"an LO of a release before 0.3": {protocol.Snapshot{V: 1}, at(55)},
	} {
		before := recorded()
		before.Site.Adopted = at(55)
		changes := projection.Decode([]protocol.Event{event(protocol.SnapshotEvent, "", tt.snapshot)}).Fold(before, now)
		if got := changes.Site.Adopted; got != tt.want {
			t.Errorf("%s: adopted is %s, want %s", name, got, tt.want)
		}
	}
}
