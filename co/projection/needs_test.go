package projection

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
	"github.com/colonyfleet/colony/protocol/wiretest"
)

// snapshotField names, for each kind of event that writes the rows of nodes and of their deployments, or what the site holds, the field of a
// protocol.Snapshot that has the same: a CO that has lost the event learns it from there.
var snapshotField = map[protocol.EventKind]string{
	protocol.LOStarted:        "", // the next start, or the next connection, says the version
	protocol.NodeOnlineEvent:  "Nodes.Presence",
	protocol.NodeOfflineEvent: "Nodes.Presence",
	protocol.InventoryChanged: "Nodes.Inventory",
	protocol.NameConflict:     "Nodes.Gateways",
	protocol.NodeRestrictions: "Nodes.Restrictions",
	protocol.NodeHoldings:     "Nodes.Complete",
	protocol.StatusEvent:      "Statuses",
	protocol.DesiredAdopted:   "Adopted",
	protocol.DesiredRefused:   "", // the LO reports it again with its next answer
	protocol.PlacementEvent:   "", // the LO reports it again with the next change
	protocol.DataLost:         "Lost",
	protocol.SnapshotEvent:    "Cause",
	// A CO that lost the answer to a removal publishes the removal again, and the LO answers again.
	protocol.NodeDecommissioned: "",
}

// TestNeedsHasEveryRow folds each kind of event, with every field set and with none, on a record that has everything and on one that has what
// Needs names. Both must come to the same: a row that Needs leaves out would be written with what the event does not say left empty.
func TestNeedsHasEveryRow(t *testing.T) {
	t.Parallel()
	for _, k := range wiretest.Constants(t, "../../protocol/journal.go", "EventKind") {
		kind := protocol.EventKind(k.Value)
		if slices.Contains(ofData, kind) || kind == protocol.Superseded || kind == protocol.AnomalyEvent {
			continue
		}
		writes, applied := false, false
		for _, full := range []bool{true, false} {
			e := eventOf(t, kind, full)
			if b := Decode([]protocol.Event{e}); b.reports[0].reason != "" {
				if full {
					t.Errorf("%s: the body that the test makes is refused: %s: give what it lacks a value in fill", kind, b.reports[0].reason)
				}
				continue
			}
			applied = true
			if _, reason := compareNeeds(e, returned); reason != "" {
				t.Errorf("%s of a node that was removed: %s", kind, reason)
			}
			whole, reason := compareNeeds(e, everything)
			if reason != "" {
				t.Errorf("%s with every field %t: %s", kind, full, reason)
			}
			before := everything().Site
			writes = writes || len(whole.Nodes)+len(whole.Statuses)+len(whole.RemovedNodes)+len(whole.RemovedStatuses)+len(whole.Placements) > 0 ||
				!reflect.DeepEqual(before, whole.Site)
		}
		if !applied {
			t.Errorf("%s: nothing was applied", kind)
		}
		field, decided := snapshotField[kind]
		if writes != decided {
			t.Errorf("%s: writes what a snapshot must say, too: %t, is in snapshotField: %t", kind, writes, decided)
		}
		if field != "" && !hasField(reflect.TypeFor[protocol.Snapshot](), strings.Split(field, ".")) {
			t.Errorf("%s: protocol.Snapshot has no field %s", kind, field)
		}
	}
	for _, typ := range []struct {
		of     reflect.Type
		prefix string
	}{{reflect.TypeFor[protocol.Snapshot](), ""}, {reflect.TypeFor[protocol.NodeSnapshot](), "Nodes."}} {
		for i := range typ.of.NumField() {
			name := typ.of.Field(i).Name
			if name != "V" && name != "Nodes" && name != "Node" && !slices.Contains(slices.Collect(maps.Values(snapshotField)), typ.prefix+name) {
				t.Errorf("no kind of event in snapshotField stands for the field %s%s of a snapshot", typ.prefix, name)
			}
		}
	}
}

// compareNeeds folds an event on a record, and on what Needs names of it, and returns what the whole record gives, and how the other differs.
func compareNeeds(e protocol.Event, record func() Record) (whole Changes, difference string) {
	whole = Decode([]protocol.Event{e}).Fold(record(), at)
	b := Decode([]protocol.Event{e})
	needs := b.Needs()
	part := b.Fold(needed(record(), needs), at)
	want := whole
	want.Nodes = maps.Clone(whole.Nodes)
	for id, n := range want.Nodes { // a row that is written without labels and inventory keeps those that it has
		if !needs.All && !needs.Machines[id] && part.Nodes[id].Inventory == nil {
			n.Inventory, n.Labels = nil, nil
			want.Nodes[id] = n
		}
	}
	if diff := cmp.Diff(want, part); diff != "" {
		return whole, "Needs leaves out what Fold uses (-everything +needed):\n" + diff
	}
	return whole, ""
}

// TestSnapshotWritesWhatEventsWrite has a node that the CO does not know learnt by the events of all kinds, and by a snapshot of the same
// values: each field of its row that an event fills, a snapshot fills, too.
func TestSnapshotWritesWhatEventsWrite(t *testing.T) {
	t.Parallel()
	const id = "n1"
	snapshot := Decode([]protocol.Event{eventOf(t, protocol.SnapshotEvent, true)}).Fold(Record{}, at).Nodes[id]
	for kind := range snapshotField {
		row, ok := Decode([]protocol.Event{eventOf(t, kind, true)}).Fold(Record{}, at).Nodes[id]
		if !ok {
			continue
		}
		got, want := reflect.ValueOf(snapshot), reflect.ValueOf(row)
		for i := range want.NumField() {
			if !want.Field(i).IsZero() && got.Field(i).IsZero() {
				t.Errorf("%s fills the field %s of the row of a node, and a snapshot does not", kind, want.Type().Field(i).Name)
			}
		}
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// everything returns the record of a site of three nodes with every field set.
func everything() Record {
	changed := at.Add(-time.Hour)
	r := Record{
		Site:  Site{ID: "s1", Version: "0.1.0", Gap: true, Incomplete: true, Desired: protocol.Position{Epoch: 1, Generation: 9}},
		Nodes: map[protocol.NodeID]fleet.Node{}, States: map[Key]lifecycle.State{},
		Decommissions:  map[protocol.NodeID]protocol.Position{"n1": {Epoch: 1, Generation: 1}},
		Decommissioned: map[protocol.NodeID]bool{"n4": true},
	}
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		r.Nodes[id] = fleet.Node{
			Site: "s1", ID: id, Online: true, ChangedAt: &changed, Version: "0.1.0", Problem: unknownToSite, Labels: map[string]string{"a": "b"},
			Inventory: &protocol.Inventory{V: 1, Node: id, Problem: "the disk is full"},
			Report:    restriction.Report{Restrictions: []restriction.Restriction{{Kind: restriction.Hold, Reason: "a batch runs"}, {Kind: restriction.Cordon, Reason: "repair"}}},
		}
		for _, d := range []protocol.DeploymentName{"a", "b"} {
			r.States[Key{d, id}] = lifecycle.Installed
		}
	}
	return r
}

// returned is the record of the same site after its node n1 was removed.
func returned() Record {
	r := everything()
	delete(r.Nodes, "n1")
	delete(r.Decommissions, "n1")
	r.Decommissioned["n1"] = true
	return r
}

// needed returns of a record what the CO reads from its database for the needs of a batch.
func needed(r Record, n Needs) Record {
	out := Record{Site: r.Site, Nodes: map[protocol.NodeID]fleet.Node{}, States: map[Key]lifecycle.State{}}
	if n.Joins {
		out.Decommissions, out.Decommissioned = r.Decommissions, r.Decommissioned
	}
	if n.All {
		out.Nodes, out.States = r.Nodes, r.States
		return out
	}
	for _, id := range n.Nodes {
		if row, ok := r.Nodes[id]; ok {
			if !n.Machines[id] {
				row.Labels, row.Inventory = nil, nil
			}
			out.Nodes[id] = row
		}
	}
	for _, k := range n.Statuses {
		if s, ok := r.States[k]; ok {
			out.States[k] = s
		}
	}
	return out
}

// eventOf returns an event of a kind about the node n1, whose body has every field set, or those alone without which it is refused.
func eventOf(t *testing.T, kind protocol.EventKind, full bool) protocol.Event {
	t.Helper()
	e := protocol.Event{Seq: 1, Kind: kind, UnixMillis: at.UnixMilli()}
	if kind != protocol.LOStarted && kind != protocol.SnapshotEvent {
		e.Node = "n1"
	}
	e.Body = protocol.Marshal(bodyOf(t, kind, full))
	return e
}

// bodyOf returns the message of a kind.
func bodyOf(t *testing.T, kind protocol.EventKind, full bool) any {
	t.Helper()
	message, _ := decode(&protocol.Event{Kind: kind, Body: protocol.Marshal(map[int]int{0: 1})})
	if message == nil {
		t.Fatalf("%s: decode makes no message", kind)
	}
	v := reflect.ValueOf(message).Elem()
	if full {
		fill(v)
	}
	v.FieldByName("V").SetUint(1)
	switch m := message.(type) {
	case *protocol.DeploymentStatus:
		m.Node, m.Deployment, m.State = "n1", "a", lifecycle.Installed
	case *protocol.PlacementReport:
		m.Deployment = "a"
	case *protocol.Decommissioned:
		m.Reason, m.Position = "", protocol.Position{Epoch: 1, Generation: 1}
	case *protocol.Enrolment:
		m.Code, m.Key = "", make([]byte, 32)
	case *command.Received:
		m.ID = wiretest.CommandID
	case *command.Result:
		m.ID, m.Node, m.State = wiretest.CommandID, "n1", command.States()[0]
	}
	return message
}

// fill sets every field of a message to a value that is not zero, and that names the node n1 or the deployment a where it names one.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case protocol.NodeID:
		v.SetString("n1")
		return
	case protocol.DeploymentName:
		v.SetString("a")
		return
	case lifecycle.State:
		v.SetString(string(lifecycle.Installed))
		return
	case cbor.RawMessage:
		report := restriction.Report{V: 1, Restrictions: []restriction.Restriction{{Kind: restriction.Hold, Reason: "repair"}}, Waits: []restriction.Wait{{Deployment: "a", Why: "held"}}}
		v.SetBytes(protocol.Marshal(&report))
		return
	}
	switch v.Kind() { //nolint:exhaustive // no message has the others
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "V" {
				fill(v.Field(i))
			} else if f.Name == "V" {
				v.Field(i).SetUint(1)
			}
		}
	default:
		panic(fmt.Sprintf("fill does not know what a %s may hold", v.Type()))
	}
}

// hasField reports whether a message, or the messages that one of its fields lists, have a field.
func hasField(typ reflect.Type, path []string) bool {
	for _, name := range path {
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		f, ok := typ.FieldByName(name)
		if !ok {
			return false
		}
		typ = f.Type
	}
	return true
}
