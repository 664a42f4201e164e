package projection_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestRestrictions records what restricts a node, by events and by snapshots, and names in the audit what was done at the site alone.
func TestRestrictions(t *testing.T) {
	t.Parallel()
	hold := restriction.Restriction{Kind: restriction.Hold, Reason: "a batch runs\x00", Actor: "anna", SetMillis: 1}
	waits := []restriction.Wait{{Deployment: "web", Why: "the update waits"}}
	event := func(seq uint64, m restriction.Report) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.NodeRestrictions, Node: "gw-1", UnixMillis: 1_700_000_000_000, Body: protocol.Marshal(&m)}
	}
	snapshot := func(seq uint64, m *restriction.Report) protocol.Event {
		n := protocol.NodeSnapshot{Node: "gw-1"}
		if m != nil {
			n.Restrictions = protocol.Marshal(m)
		}
		return protocol.Event{Seq: seq, Kind: protocol.SnapshotEvent, Body: protocol.Marshal(&protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{n}})}
	}
	holdings := func(seq uint64, m []byte) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.NodeHoldings, Node: "gw-1", Body: protocol.Marshal(&protocol.Holdings{V: 1, Restrictions: m})}
	}
	held := restriction.Report{V: 1, Restrictions: []restriction.Restriction{hold}, Waits: waits}
	local, byCommand := held, held
	local.Change = &restriction.Change{Did: "hold", Reason: "a batch runs", Actor: "uid 1000", Local: true}
	byCommand.Change = &restriction.Change{Did: "hold", Reason: "a batch runs", Actor: "anna", Command: "c"}
	for name, tt := range map[string]struct {
		events []protocol.Event
		held   bool
		audit  int
		said   string // message of the last event
	}{
		"at the site":                          {[]protocol.Event{event(1, local)}, true, 1, "hold by uid 1000, at the machine of the site's LO: a batch runs"},
		"by a command":                         {[]protocol.Event{event(1, byCommand)}, true, 0, "hold by anna: a batch runs"},
		"what waits":                           {[]protocol.Event{event(1, held)}, true, 0, "1 deployments wait: web: the update waits"},
		"expired":                              {[]protocol.Event{event(1, byCommand), event(2, restriction.Report{V: 1, Change: &restriction.Change{Did: restriction.Expired, Reason: "held by anna: r"}})}, false, 0, "it has ended by itself: held by anna: r"},
		"nothing waits":                        {[]protocol.Event{event(1, byCommand), event(2, restriction.Report{V: 1})}, false, 0, "nothing waits any more"},
		"lost":                                 {[]protocol.Event{event(1, byCommand), event(2, restriction.Report{V: 1, Change: &restriction.Change{Did: restriction.Lost}})}, false, 0, "the site's LO has lost its record of the node: 0 restrictions of it are left"},
		"a snapshot with it":                   {[]protocol.Event{snapshot(1, &held)}, true, 0, "1 nodes, 0 deployment states"},
		"a snapshot without it":                {[]protocol.Event{event(1, byCommand), snapshot(2, nil)}, false, 0, "1 nodes, 0 deployment states"},
		"an LO that lost its record":           {[]protocol.Event{event(1, held), holdings(2, protocol.Marshal(&restriction.Report{V: 1}))}, false, 0, "the site's LO has lost its record of the node: 0 restrictions of it are left"},
		"an LO that has its record":            {[]protocol.Event{event(1, restriction.Report{V: 1}), holdings(2, protocol.Marshal(&held))}, true, 0, "nothing waits any more"},
		"an earlier LO that lost its record":   {[]protocol.Event{event(1, held), holdings(2, nil)}, true, 0, "1 deployments wait: web: the update waits"},
		"an LO that says what nobody can read": {[]protocol.Event{event(1, held), holdings(2, []byte{0x61, 0x78})}, true, 0, "1 deployments wait: web: the update waits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := projection.Decode(tt.events)
			changes := b.Fold(need(empty(), b.Needs()), now)
			var want restriction.Report
			if tt.held {
				clean := hold
				clean.Reason = "a batch runs\uFFFD"
				want.Restrictions, want.Waits = []restriction.Restriction{clean}, waits
			}
			if diff := cmp.Diff(want, changes.Nodes["gw-1"].Report); diff != "" {
				t.Errorf("what restricts the node (-want +got):\n%s", diff)
			}
			if len(changes.Locals) != tt.audit {
				t.Errorf("%d rows of the audit, want %d", len(changes.Locals), tt.audit)
			}
			if last := changes.Events[len(changes.Events)-1]; last.Message != tt.said {
				t.Errorf("the last event says %q, want %q", last.Message, tt.said)
			}
			if len(changes.Anomalies) != 0 {
				t.Errorf("anomalies: %+v", changes.Anomalies)
			}
		})
	}
	nobody := event(1, held)
	nobody.Node = ""
	if changes := projection.Decode([]protocol.Event{nobody}).Fold(empty(), now); len(changes.Anomalies) != 1 {
		t.Errorf("restrictions without a node are %d anomalies", len(changes.Anomalies))
	}
	// A node's presence does not end what restricts it.
	record := empty()
	record.Nodes["gw-1"] = fleet.Node{ID: "gw-1", Report: held}
	online := protocol.Event{Seq: 1, Kind: protocol.NodeOnlineEvent, Node: "gw-1", Body: protocol.Marshal(&protocol.Presence{V: 1, Online: true})}
	if got := projection.Decode([]protocol.Event{online}).Fold(record, now).Nodes["gw-1"]; len(got.Restrictions) != 1 {
		t.Error("a node that comes online is not held any more")
	}
}
