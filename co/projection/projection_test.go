package projection_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func empty() projection.Record {
	return projection.Record{Nodes: map[protocol.NodeID]fleet.Node{}, States: map[projection.Key]lifecycle.State{}}
}

// apply changes a record as the database would.
func apply(r projection.Record, c projection.Changes) projection.Record {
	r.Site = c.Site
	for k := range c.RemovedNodes {
		delete(r.Nodes, k)
	}
	for k := range c.RemovedStatuses {
		delete(r.States, k)
	}
	for k, v := range c.Nodes {
		r.Nodes[k] = v
	}
	for k, v := range c.Statuses {
		r.States[k] = v.State
	}
	return r
}

// need keeps of a record only what the batch says that it needs.
func need(r projection.Record, n projection.Needs) projection.Record {
	out := empty()
	out.Site = r.Site
	for _, id := range n.Nodes {
		if v, ok := r.Nodes[id]; ok {
			out.Nodes[id] = v
		}
	}
	for _, k := range n.Statuses {
		if v, ok := r.States[k]; ok {
			out.States[k] = v
		}
	}
	if n.All {
		for k, v := range r.Nodes {
			out.Nodes[k] = v
		}
		for k, v := range r.States {
			out.States[k] = v
		}
	}
	return out
}

func genStatus(t *rapid.T) protocol.DeploymentStatus {
	return protocol.DeploymentStatus{
		V: 1, Node: protocol.NodeID(rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")),
		Deployment: protocol.DeploymentName(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "deployment")),
		State:      rapid.SampledFrom(lifecycle.States).Draw(t, "state"),
		Actor:      rapid.SampledFrom([]lifecycle.Actor{lifecycle.LO, lifecycle.EN}).Draw(t, "actor"),
	}
}

func genEvent(t *rapid.T) protocol.Event {
	node := protocol.NodeID(rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "of"))
	switch kind := rapid.SampledFrom([]protocol.EventKind{
		protocol.StatusEvent, protocol.StatusEvent, protocol.StatusEvent, protocol.NodeOnlineEvent, protocol.NodeOfflineEvent,
		protocol.SnapshotEvent, protocol.Superseded, protocol.DesiredAdopted, "novel",
	}).Draw(t, "kind"); kind {
	case protocol.StatusEvent:
		s := genStatus(t)
		return protocol.Event{Kind: kind, Node: s.Node, Body: protocol.Marshal(s)}
	case protocol.SnapshotEvent:
		s := protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{{Node: node, Presence: protocol.Presence{Online: true}}}}
		s.Statuses = append(s.Statuses, genStatus(t))
		return protocol.Event{Kind: kind, Body: protocol.Marshal(s)}
	case protocol.DesiredAdopted:
		return protocol.Event{Kind: kind, Body: protocol.Marshal(protocol.Adopted{V: 1, Position: protocol.Position{Epoch: rapid.Uint64().Draw(t, "epoch"), Generation: rapid.Uint64().Draw(t, "generation")}})}
	default:
		return protocol.Event{Kind: kind, Node: node, Body: protocol.Marshal(protocol.Presence{V: 1})}
	}
}

// However the events are cut into batches, the record and the events are the same.
func TestCutsDoNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(genEvent), 0, 30).Draw(t, "events")
		whole := projection.Decode(events).Fold(empty(), now)
		record, said := empty(), []fleet.Event(nil)
		for rest := events; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			b := projection.Decode(rest[:n])
			c := b.Fold(need(record, b.Needs()), now)
			record, said, rest = apply(record, c), append(said, c.Events...), rest[n:]
		}
		if diff := cmp.Diff(apply(empty(), whole), record); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(whole.Events, said); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Each recorded move is one of the table's, or came with a snapshot; every event
// but the superseded one makes an event.
func TestOnlyLegalTransitions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(genEvent), 0, 30).Filter(func(list []protocol.Event) bool {
			for _, e := range list {
				if e.Kind == protocol.SnapshotEvent {
					return false
				}
			}
			return true
		}).Draw(t, "events")
		c := projection.Decode(events).Fold(empty(), now)
		at := map[string]lifecycle.State{}
		for _, m := range c.Transitions {
			key := fmt.Sprint(m.Deployment, m.Node)
			if m.From != at[key] || m.From == m.To || lifecycle.Check(m.From, m.To, m.Actor) != nil {
				t.Fatalf("move %+v from %s", m, at[key])
			}
			at[key] = m.To
		}
		want := 0
		for _, e := range events {
			if e.Kind != protocol.Superseded {
				want++
			}
		}
		if len(c.Events) != want {
			t.Fatalf("%d events, want %d", len(c.Events), want)
		}
	})
}

// TestNameConflict records which gateways use the name of a node, by an event and by a
// snapshot, and that a single one does again.
func TestNameConflict(t *testing.T) {
	t.Parallel()
	two := []protocol.Gateway{{Agent: "a", Address: "10.0.0.5"}, {Agent: "b", Address: "10.0.0.6"}}
	conflict := func(seq uint64, gateways []protocol.Gateway) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.NameConflict, Node: "gw-1", Body: protocol.Marshal(&protocol.NodeGateways{V: 1, Gateways: gateways})}
	}
	snapshot := func(seq uint64, gateways []protocol.Gateway) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.SnapshotEvent, Body: protocol.Marshal(&protocol.Snapshot{V: 1, Nodes: []protocol.NodeSnapshot{
			{Node: "gw-1", Presence: protocol.Presence{Online: true}, Gateways: gateways},
		}})}
	}
	for name, tt := range map[string]struct {
		events  []protocol.Event
		problem bool
	}{
		"reported":                {[]protocol.Event{conflict(1, two)}, true},
		"settled":                 {[]protocol.Event{conflict(1, two), conflict(2, nil)}, false},
		"in a snapshot":           {[]protocol.Event{snapshot(1, two)}, true},
		"settled by a snapshot":   {[]protocol.Event{conflict(1, two), snapshot(2, nil)}, false},
		"an event without a node": {[]protocol.Event{{Seq: 1, Kind: protocol.NameConflict, Body: conflict(1, two).Body}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := projection.Decode(tt.events).Fold(empty(), now)
			problem := changes.Nodes["gw-1"].Problem
			if tt.problem != (problem != "") || tt.problem && (!strings.Contains(problem, "agent a at 10.0.0.5") || !strings.Contains(problem, "agent b at 10.0.0.6")) {
				t.Errorf("the problem of the node is %q, want one that names both gateways: %t", problem, tt.problem)
			}
			if name == "an event without a node" && len(changes.Anomalies) != 1 {
				t.Errorf("%d anomalies, want 1", len(changes.Anomalies))
			}
		})
	}
}

// TestNodeProblem reports a full disk of a node, its end, and a damaged file.
func TestNodeProblem(t *testing.T) {
	t.Parallel()
	inventory := func(seq uint64, problem string) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.InventoryChanged, Node: "gw-1", Body: protocol.Marshal(&protocol.Inventory{V: 1, Node: "gw-1", Problem: problem})}
	}
	event := func(seq uint64, node protocol.NodeID, l protocol.Loss) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.StateDamaged, Node: node, Body: protocol.Marshal(&l)}
	}
	damaged := func(seq uint64, node protocol.NodeID, class string) protocol.Event {
		return event(seq, node, protocol.Loss{V: 1, Class: class, Records: 2})
	}
	record := empty()
	record.Site.ID = "s1"
	changes := projection.Decode([]protocol.Event{
		inventory(1, ""), inventory(2, "the disk is full"), inventory(3, "the disk is full"), inventory(4, ""),
		damaged(5, "gw-1", "en/deployment web"), damaged(6, "", "lo/site"), damaged(7, "", "broker/sessions segment 3"),
		event(11, "", protocol.Loss{V: 1, Class: "broker/sessions checkpoint 7"}), event(12, "", protocol.Loss{V: 1, Class: "broker/sessions segment 8", Records: 1, Uncounted: true}),
		damaged(8, "", "identity/files issuer.key"), damaged(9, "gw-1", "identity/files machine.key"), damaged(10, "gw-1", "identity/files machine.crt"),
		damaged(13, "", "lo/data/retained missing"), damaged(14, "gw-1", "en/deployment missing"),
	}).Fold(record, now)
	var got []string
	for _, e := range changes.Events {
		if e.Kind != string(protocol.InventoryChanged) {
			got = append(got, e.Kind+" "+string(e.Node)+": "+e.Message)
		}
	}
	want := []string{
		"node_problem gw-1: the disk is full", "node_problem gw-1: " + fleet.NoProblem,
		"state_damaged gw-1: the node's file of en/deployment web was damaged and set aside; it is learnt anew; check the disk of the node",
		"state_damaged : the site's file of lo/site was damaged and set aside; it is learnt anew; check the disk of the site",
		"state_damaged : the site's file of broker/sessions segment 3 was damaged: what could be read of it is there, 2 records or more are lost to the clients that have sessions at the broker; check the disk of the site",
		"state_damaged : the site's file of broker/sessions checkpoint 7 was damaged: nothing of the sessions of its broker is lost; check the disk of the site",
		"state_damaged : the site's file of broker/sessions segment 8 was damaged: what else could be read is there, how much is lost to the clients that have sessions at the broker is not known; check the disk of the site",
		"state_damaged : the site's file of identity/files issuer.key was damaged and set aside; the LO makes another key for the authority of its site, which the CO certifies with a join token alone: " +
			"make one with colony site add s1, and write it to the file of identity.tokenFile; until then no node enrols or renews, and the certificates that nodes have count on; check the disk of the site",
		"state_damaged gw-1: the node's file of identity/files machine.key was damaged and set aside; the machine makes another key: give it a join token of colony node token s1 --replace; check the disk of the node",
		"state_damaged gw-1: the node's file of identity/files machine.crt was damaged and set aside; the machine asks for another certificate with the same key; where it is refused (machine_refused), " +
			"give it a join token of colony node token s1; check the disk of the node",
		"state_damaged : the site's lo/data/retained is missing, although it was begun; the retained messages of its broker are gone until their publishers send them again; check the disk of the site",
		"state_damaged gw-1: the node's file of en/deployment missing was damaged and set aside; it is learnt anew; check the disk of the node",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestOneEventOfAFailure follows a version that fails twice and is given up: each failure is one
// event, and what the LO makes of it another.
func TestOneEventOfAFailure(t *testing.T) {
	t.Parallel()
	var events []protocol.Event
	add := func(m protocol.DeploymentStatus) {
		m.V, m.Node, m.Deployment, m.Digest = 1, "gw-1", "hello", "sha256:aa"
		events = append(events, protocol.Event{Seq: uint64(len(events) + 1), Kind: protocol.StatusEvent, Node: "gw-1", Body: protocol.Marshal(&m)})
	}
	add(protocol.DeploymentStatus{State: lifecycle.Pending, Actor: lifecycle.LO})
	for attempt := range uint32(2) {
		add(protocol.DeploymentStatus{State: lifecycle.Installing, Actor: lifecycle.LO, Attempt: attempt + 1})
		failed := protocol.DeploymentStatus{State: lifecycle.Failed, Actor: lifecycle.EN, Attempt: attempt + 1, Code: protocol.CrashLoop, Message: "no licence"}
		add(failed)
		failed.Actor = lifecycle.LO
		if attempt == 0 {
			failed.RetryMillis = now.Add(time.Minute).UnixMilli()
		} else {
			failed.Refused = "sha256:aa"
		}
		add(failed)
	}
	changes := projection.Decode(events).Fold(empty(), now)
	var got []string
	for _, e := range changes.Events {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Kind, e.To, e.Message)))
	}
	want := []string{
		"deployment_status PENDING", "deployment_status INSTALLING", "deployment_status FAILED no licence",
		"retry_planned  attempt 1 failed; the next one follows at 2026-01-02T03:05:05Z by the site's clock",
		"deployment_status INSTALLING", "deployment_status FAILED no licence",
		"given_up  no further attempt is made until another version is desired or a person asks for a retry",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if n := len(changes.Transitions); n != 5 {
		t.Errorf("%d transitions, want 5: what the LO makes of a failure is none", n)
	}
	if s := changes.Statuses[projection.Key{Deployment: "hello", Node: "gw-1"}]; s.Refused == "" || s.Code != protocol.CrashLoop {
		t.Errorf("recorded %+v, want the version refused, with its failure", s)
	}
}

func TestHostileTexts(t *testing.T) {
	t.Parallel()
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = 'x'
	}
	s := protocol.DeploymentStatus{
		V: 1, Node: "n", Deployment: "d", State: lifecycle.Pending, Actor: lifecycle.LO,
		Message: string(long), Code: "a\x00b", Phase: "\x00", PulledBytes: 1 << 63, UnixMillis: 1 << 60,
	}
	c := projection.Decode([]protocol.Event{{Kind: protocol.StatusEvent, Node: "n", UnixMillis: -5, Body: protocol.Marshal(s)}}).Fold(empty(), now)
	if len(c.Events) != 1 {
		t.Fatalf("%+v", c)
	}
	e := c.Events[0]
	if len(e.Message) > 8<<10+3 || e.Code != "a\uFFFDb" || e.Phase != "\uFFFD" || e.Pulled != 1<<63-1 || e.SiteTime != nil {
		t.Errorf("%d bytes, code %q, phase %q, pulled %d, site time %v", len(e.Message), e.Code, e.Phase, e.Pulled, e.SiteTime)
	}
	if c.Transitions[0].SiteTime != nil {
		t.Error("a time that no calendar has")
	}
}

// TestTimesAreMarked has the times of an LO and of a node whose clocks are not synchronised.
func TestTimesAreMarked(t *testing.T) {
	t.Parallel()
	status := func(millis int64, unsynced bool) []byte {
		return protocol.Marshal(protocol.DeploymentStatus{
			V: 1, Node: "n", Deployment: "d", State: lifecycle.Pending, Actor: lifecycle.LO, UnixMillis: millis, Unsynced: unsynced,
		})
	}
	for name, tt := range map[string]struct {
		event              protocol.Event
		marked, transition bool
	}{
		"both in step":       {protocol.Event{Body: status(5, false), UnixMillis: 9}, false, false},
		"the node's":         {protocol.Event{Body: status(5, true), UnixMillis: 9}, false, true},
		"the LO's":           {protocol.Event{Body: status(5, false), UnixMillis: 9, Unsynced: true}, true, false},
		"the LO's, its own":  {protocol.Event{Body: status(9, false), UnixMillis: 9, Unsynced: true}, true, true},
		"the LO's, no other": {protocol.Event{Body: status(0, false), UnixMillis: 9, Unsynced: true}, true, true},
	} {
		tt.event.Kind, tt.event.Node = protocol.StatusEvent, "n"
		c := projection.Decode([]protocol.Event{tt.event}).Fold(empty(), now)
		if len(c.Events) != 1 || len(c.Transitions) != 1 {
			t.Fatalf("%s: %+v", name, c)
		}
		if got := c.Events[0].Unsynced; got != tt.marked {
			t.Errorf("%s: the event is marked: %t", name, got)
		}
		if got := c.Transitions[0].Unsynced; got != tt.transition {
			t.Errorf("%s: the transition is marked: %t", name, got)
		}
	}
}

// TestRestartsAreEvents has the containers of an INSTALLED version exit and run again: the record
// has the restarts, and the events say what happened.
func TestRestartsAreEvents(t *testing.T) {
	t.Parallel()
	report := func(seq uint64, from lifecycle.State, state string, restarts uint32) protocol.Event {
		return protocol.Event{Seq: seq, Kind: protocol.StatusEvent, Node: "gw-1", Body: protocol.Marshal(&protocol.DeploymentStatus{
			V: 1, Node: "gw-1", Deployment: "web", From: from, State: lifecycle.Installed, Actor: lifecycle.EN,
			Components: []protocol.ComponentStatus{{Component: "c", Container: "k", State: state, ExitCode: 3, Restarts: restarts, Message: "no route"}},
		})}
	}
	record := empty()
	record.States = map[projection.Key]lifecycle.State{{Deployment: "web", Node: "gw-1"}: lifecycle.Installing}
	changes := projection.Decode([]protocol.Event{
		report(1, lifecycle.Installing, "running", 0), report(2, lifecycle.Installed, "exited", 1),
		report(3, lifecycle.Installed, "running", 2), report(4, lifecycle.Installed, "unhealthy", 2),
	}).Fold(record, now)
	var got []string
	for _, e := range changes.Events {
		got = append(got, e.Message)
	}
	want := []string{"", "container c/k exited with 3, restarts so far: 1", "all containers are up, restarts of c/k so far: 2", "container c/k is unhealthy: no route"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if c := changes.Statuses[projection.Key{Deployment: "web", Node: "gw-1"}].Components; len(c) != 1 || c[0].Restarts != 2 {
		t.Errorf("containers on record: %+v, want one with 2 restarts", c)
	}
}
