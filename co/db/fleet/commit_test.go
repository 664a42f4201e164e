package fleetdb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/stream/streamtest"
)

// A journal is a site's journal of one epoch, as a test writes it.
type journal struct {
	epoch  string
	events []protocol.Event
}

func (j *journal) add(kind protocol.EventKind, node protocol.NodeID, body any) {
	e := protocol.Event{UnixMillis: 1_700_000_000_000, Kind: kind, Node: node}
	if body != nil {
		e.Body = protocol.Marshal(body)
	}
	j.events = append(j.events, e)
}

func (j *journal) status(d, node string, to lifecycle.State, actor lifecycle.Actor) {
	j.add(protocol.StatusEvent, protocol.NodeID(node), status(d, node, to, actor))
}

func status(d, node string, to lifecycle.State, actor lifecycle.Actor) protocol.DeploymentStatus {
	return protocol.DeploymentStatus{
		V: 1, Node: protocol.NodeID(node), Deployment: protocol.DeploymentName(d), State: to, Actor: actor, App: "app", AppVersion: "1",
	}
}

// life takes a deployment from nothing to INSTALLED.
func (j *journal) life(d, node string) {
	j.status(d, node, lifecycle.Pending, lifecycle.LO)
	j.status(d, node, lifecycle.Installing, lifecycle.LO)
	j.status(d, node, lifecycle.Installed, lifecycle.EN)
}

// send commits the events first to last, with what the batch declares as trimmed.
func (j *journal) send(ctx context.Context, s *fleetdb.Store, first, last int, trimmed uint64) (protocol.Ack, error) {
	b := protocol.Batch{V: 1, Epoch: j.epoch, First: uint64(first), Count: uint32(last - first + 1), Trimmed: trimmed}
	events := append([]protocol.Event(nil), j.events[first-1:last]...)
	return s.CommitBatch(ctx, "home", b, events)
}

// A version that a node keeps up while another one fails is what runs, and the time of the next
// attempt is there until it is made.
func TestWhatRunsWhileAnUpdateFails(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := t.Context()
	former, next := protocol.DigestOf([]byte("1")), int64(1_700_000_100_000)
	j := &journal{epoch: "a"}
	j.life("d", "n1")
	update := func(to lifecycle.State, actor lifecycle.Actor, change func(*protocol.DeploymentStatus)) {
		m := status("d", "n1", to, actor)
		m.AppVersion, m.Digest, m.Running, m.RunningVersion = "2", protocol.DigestOf([]byte("2")), former, "1"
		change(&m)
		j.add(protocol.StatusEvent, "n1", m)
	}
	update(lifecycle.Updating, lifecycle.LO, func(*protocol.DeploymentStatus) {})
	update(lifecycle.Failed, lifecycle.EN, func(m *protocol.DeploymentStatus) { m.Attempt = 1 })
	update(lifecycle.Failed, lifecycle.LO, func(m *protocol.DeploymentStatus) { m.Attempt, m.RetryMillis = 1, next })
	update(lifecycle.Updating, lifecycle.LO, func(m *protocol.DeploymentStatus) { m.Attempt, m.Running, m.RunningVersion = 2, "", "" })
	update(lifecycle.Installed, lifecycle.EN, func(m *protocol.DeploymentStatus) { m.Attempt, m.Running, m.RunningVersion = 2, "", "" })
	type shown struct {
		State   lifecycle.State
		Attempt uint32
		Running string
		Retry   int64
		Counts  map[string]int
	}
	from := 0
	for _, step := range []struct {
		through int
		want    shown
	}{
		{3, shown{lifecycle.Installed, 0, "1", 0, map[string]int{"1": 1}}},
		{4, shown{lifecycle.Updating, 0, "1", 0, map[string]int{"1": 1}}},
		{5, shown{lifecycle.Failed, 1, "1", 0, map[string]int{"1": 1}}},
		{6, shown{lifecycle.Failed, 1, "1", next, map[string]int{"1": 1}}},
		{7, shown{lifecycle.Updating, 2, "", 0, map[string]int{}}},
		{8, shown{lifecycle.Installed, 2, "2", 0, map[string]int{"2": 1}}},
	} {
		testpart.Must[protocol.Ack](t)(j.send(ctx, s, from+1, step.through, 0))
		from = step.through
		d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))
		n := d.Nodes[0]
		got := shown{n.State, n.Attempt, n.RunningVersion, 0, d.Running}
		if n.RetryAt != nil {
			got.Retry = n.RetryAt.UnixMilli()
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("after event %d (-want +got):\n%s", step.through, diff)
		}
	}
}

// TestStreamContract plays the arrivals that every receiver of a stream must pass.
func TestStreamContract(t *testing.T) {
	t.Parallel()
	for _, c := range streamtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			c.Play(t, streamtest.Receiver{Receive: func(t *testing.T, b protocol.Batch, n int) (protocol.Ack, []uint64) {
				events := make([]protocol.Event, n)
				for i := range events {
					node := protocol.NodeID(fmt.Sprintf("n%d", b.First+uint64(i)))
					events[i] = protocol.Event{
						UnixMillis: 1_700_000_000_000, Kind: protocol.NodeOnlineEvent, Node: node, Body: protocol.Marshal(protocol.Presence{V: 1, Online: true}),
					}
				}
				last := testpart.Must[int64](t)(s.LastEvent(t.Context()))
				ack := testpart.Must[protocol.Ack](t)(s.CommitBatch(t.Context(), "home", b, events))
				var got []uint64
				for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(t.Context(), fleet.EventFilter{After: last})) {
					if name, ok := strings.CutPrefix(string(e.Node), "n"); ok {
						got = append(got, testpart.Must[uint64](t)(strconv.ParseUint(name, 10, 64)))
					}
				}
				return ack, got
			}})
		})
	}
}

func TestContractOfTheUplink(t *testing.T) {
	t.Parallel()
	type step struct {
		name        string
		epoch       string
		first, last int // last 0: a probe
		trimmed     uint64
		wantEpoch   string
		wantSeq     uint64
		gap         string // message of the journal_gap event
	}
	for name, steps := range map[string][]step{
		"in order, with repetition": {
			{"probe of a new site", "a", 1, 0, 0, "", 0, ""},
			{"first", "a", 1, 3, 0, "a", 3, ""},
			{"the same", "a", 1, 3, 0, "a", 3, ""},
			{"one missing", "a", 5, 6, 0, "a", 3, ""},
			{"overlap", "a", 2, 6, 0, "a", 6, ""},
			{"old", "a", 1, 2, 0, "a", 6, ""},
			{"probe", "a", 1, 0, 0, "a", 6, ""},
			{"probe of another epoch", "b", 1, 0, 0, "a", 6, ""},
		},
		"gap within an epoch": {
			{"first", "a", 1, 3, 0, "a", 3, ""},
			{"not at the gap's end", "a", 7, 8, 5, "a", 3, ""},
			{"at the gap's end", "a", 6, 8, 5, "a", 8, "2 events will never arrive"},
			{"the same again", "a", 6, 8, 5, "a", 8, ""},
			{"an earlier gap", "a", 9, 9, 4, "a", 9, ""},
		},
		"new site that has lost its beginning": {
			{"declared", "a", 4, 5, 3, "a", 5, "3 events will never arrive"},
		},
		"new site, undeclared": {
			{"middle", "a", 4, 5, 0, "", 0, ""},
		},
		"new epoch": {
			{"first", "a", 1, 3, 0, "a", 3, ""},
			{"undeclared", "b", 4, 5, 0, "a", 3, ""},
			{"from its start", "b", 1, 2, 0, "b", 2, "the site began a new journal: what the old one held after event 3 is lost"},
			{"the old one again", "a", 1, 9, 0, "b", 2, ""},
			{"the old one again, declared", "a", 4, 9, 3, "b", 2, ""},
			{"on", "b", 3, 4, 0, "b", 4, ""},
			{"a third, trimmed", "c", 6, 7, 5, "c", 7, "the site began a new journal: what the old one held after event 4 is lost, and at most 5 of the new"},
			{"the second again", "b", 5, 6, 0, "c", 7, ""},
		},
		"nonsense": {
			{"no epoch", "", 1, 3, 0, "", 0, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := open(t), t.Context()
			for _, step := range steps {
				j := journal{epoch: step.epoch}
				for i := range 9 {
					j.add(protocol.NodeOnlineEvent, protocol.NodeID(fmt.Sprintf("n%d", i)), protocol.Presence{V: 1, Online: true})
				}
				last := testpart.Must[int64](t)(s.LastEvent(ctx))
				before, _ := s.Site(ctx, "home")
				ack, err := j.send(ctx, s, step.first, max(step.last, step.first-1), step.trimmed)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if ack.Epoch != step.wantEpoch || ack.Seq != step.wantSeq {
					t.Errorf("%s: position %s %d, want %s %d", step.name, ack.Epoch, ack.Seq, step.wantEpoch, step.wantSeq)
				}
				gap, nodes := "", uint64(0)
				for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last})) {
					if e.Kind == fleet.JournalGap {
						gap = e.Message
					} else {
						nodes++
					}
				}
				if gap != step.gap {
					t.Errorf("%s: gap %q, want %q", step.name, gap, step.gap)
				}
				if ack.Epoch != before.JournalEpoch {
					continue
				}
				moved := ack.Seq - before.JournalSeq
				if gap != "" {
					moved = ack.Seq - step.trimmed
				}
				if nodes != moved {
					t.Errorf("%s: %d events recorded, want %d", step.name, nodes, moved)
				}
			}
		})
	}
}

func TestLifeOfADeployment(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	state := func() lifecycle.State {
		return testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")).State
	}
	j := &journal{epoch: "e"}
	sent := 0
	flush := func() {
		t.Helper()
		ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, sent+1, len(j.events), 0))
		if sent = len(j.events); ack.Seq != uint64(sent) {
			t.Fatalf("ack %d, want %d", ack.Seq, sent)
		}
	}
	j.life("d", "n1")
	j.status("d", "n2", lifecycle.Pending, lifecycle.LO)
	j.add(protocol.Superseded, "", nil)
	flush()
	if got := state(); got != lifecycle.Pending {
		t.Errorf("one installed, one pending: %s", got)
	}
	j.status("d", "n2", lifecycle.Installing, lifecycle.LO)
	progress := status("d", "n2", lifecycle.Installing, lifecycle.EN)
	progress.Phase, progress.PulledBytes, progress.TotalBytes = protocol.Pulling, 5, 10
	j.add(protocol.StatusEvent, "n2", progress)
	flush()
	d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))
	if n := d.Nodes[1]; d.State != lifecycle.Installing || n.Phase != protocol.Pulling || n.PulledBytes != 5 || n.TotalBytes != 10 {
		t.Errorf("progress: %+v", d)
	}

	// Against the table: the CO keeps what it has.
	j.status("d", "n1", lifecycle.Deleted, lifecycle.EN)
	failed := status("d", "n2", lifecycle.Failed, lifecycle.EN)
	failed.Code, failed.Message = protocol.ProbeFailed, "GET / \x00 500"
	j.add(protocol.StatusEvent, "n2", failed)
	flush()
	d = testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))
	if d.Nodes[0].State != lifecycle.Installed || d.Nodes[1].Message != "GET / \uFFFD 500" || d.State != lifecycle.Failed ||
		d.Counts[lifecycle.Installed] != 1 || d.Counts[lifecycle.Failed] != 1 {
		t.Errorf("after an anomaly: %+v", d)
	}
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{"anomaly"}}))
	if diff := cmp.Diff([]string{"anomaly d@n1 >DELETED"}, kinds(events)); diff != "" {
		t.Error(diff)
	}

	// Archived: once the repo does not list it and no node has it.
	if _, _, err := s.SaveDesired(ctx, "home", "c2", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"n1", "n2"} {
		if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); d.Archived {
			t.Errorf("archived before %s was done", n)
		}
		j.status("d", n, lifecycle.Deleting, lifecycle.LO)
		j.status("d", n, lifecycle.Deleted, lifecycle.EN)
		flush()
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); !d.Archived || d.State != lifecycle.Deleted {
		t.Errorf("not archived: %+v", d)
	}
	deleted, _, err := s.Deployments(ctx, fleet.DeploymentFilter{State: fleet.Only(string(lifecycle.Deleted))}, fleet.Page{})
	if err != nil || len(deleted) != 1 {
		t.Errorf("deployments in state DELETED: %v, %v; want one", deleted, err)
	}
	var transitions []string
	for _, m := range testpart.Must[[]fleet.Transition](t)(s.Transitions(ctx, "home", "d", 0)) {
		transitions = append(transitions, fmt.Sprintf("%s %s>%s %s", m.Node, m.From, m.To, m.Actor))
	}
	wantTransitions := []string{
		"n2 DELETING>DELETED EN", "n2 FAILED>DELETING LO", "n1 DELETING>DELETED EN", "n1 INSTALLED>DELETING LO",
		"n2 INSTALLING>FAILED EN", "n2 PENDING>INSTALLING LO", "n2 >PENDING LO",
		"n1 INSTALLING>INSTALLED EN", "n1 PENDING>INSTALLING LO", "n1 >PENDING LO",
	}
	if diff := cmp.Diff(wantTransitions, transitions); diff != "" {
		t.Error(diff)
	}
	// Deployed again under the same name: PENDING, not what is left of before.
	if _, _, err := s.SaveDesired(ctx, "home", "c3", []fleet.Desired{want("d", "1", "c3")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != lifecycle.Pending {
		t.Errorf("deployed again: %s", got)
	}
}

func TestSiteEvents(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	j := &journal{epoch: "e"}
	inventory := protocol.Inventory{V: 1, Node: "n1", Labels: map[string]string{"line": "a\x00"}, Cores: 4, Hostname: "h"}
	j.add(protocol.LOStarted, "", protocol.Presence{V: 1, Online: true, Version: "lo-1"})
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true, Version: "en-1"})
	j.add(protocol.InventoryChanged, "n1", inventory)
	j.add(protocol.NodeOnlineEvent, "n2", protocol.Presence{V: 1, Online: true})
	j.add(protocol.NodeOfflineEvent, "n2", protocol.Presence{V: 1})
	j.add(protocol.NameConflict, "n2", protocol.NodeGateways{V: 1, Gateways: []protocol.Gateway{{Agent: "a", Address: "10.0.0.5"}, {Agent: "b"}}})
	j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: 7}})
	j.add(protocol.DesiredRefused, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: 8}, Reason: "too old"})
	j.add(protocol.DataLost, "", protocol.Loss{V: 1, Class: "bytes", Records: 4, Bytes: 90})
	j.add(protocol.PlacementEvent, "", protocol.PlacementReport{
		V: 1, Deployment: "d", Problem: "no node", Rejected: map[protocol.NodeID]string{"n1": "arch"},
	})
	// What cannot be applied is kept and does not hold up the rest.
	j.add("novelty", "", protocol.Loss{V: 1})
	j.events = append(j.events, protocol.Event{Kind: protocol.StatusEvent, Node: "n1", Body: []byte{0xff}})
	j.add(protocol.StatusEvent, "n1", status("d", "n2", lifecycle.Pending, lifecycle.LO))
	j.add(protocol.NodeOnlineEvent, "Not a label", protocol.Presence{V: 1})
	j.add(protocol.StatusEvent, "n1", protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "d", State: "NOVEL"})
	j.add(protocol.AnomalyEvent, "n1", status("d", "n1", lifecycle.Deleted, lifecycle.EN))
	ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
	if ack.Seq != uint64(len(j.events)) {
		t.Errorf("ack %+v, want %d", ack, len(j.events))
	}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true}); err != nil {
		t.Fatal(err)
	}
	site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home"))
	if site.Version != "lo-1" || site.Adopted != 7 || site.EventsLost != 4 || site.Nodes != 2 || site.NodesOnline != 1 ||
		site.Deployments != 1 || site.JournalSeq != ack.Seq || site.LastEventAt == nil {
		t.Errorf("%+v", site)
	}
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n2")); !strings.Contains(n.Problem, "agent a at 10.0.0.5") {
		t.Errorf("the problem of n2 is %q, want one that names agent a", n.Problem)
	}
	n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1"))
	if n.Problem != "" {
		t.Errorf("the problem of n1 is %q, want none", n.Problem)
	}
	if !n.Online || n.Version != "en-1" || n.Labels["line"] != "a\uFFFD" || n.Inventory.Cores != 4 {
		t.Errorf("%+v", n)
	}
	list, _, err := s.Nodes(ctx, fleet.NodeFilter{Labels: map[string]string{"line": "a\uFFFD"}}, fleet.Page{})
	if err != nil || len(list) != 1 || list[0].ID != "n1" {
		t.Errorf("by label: %v, %v", list, err)
	}
	d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))
	if d.Problem != "no node" || d.Rejected["n1"] != "arch" {
		t.Errorf("%+v", d)
	}
	if _, err := pool.Exec(ctx, `update deployments set generation = 8 where name = 'd'`); err != nil {
		t.Fatal(err)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); d.Problem != "before the last change, which the site has not got yet: no node" {
		t.Errorf("after a change that the site has not adopted: %q", d.Problem)
	}
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{"anomaly"}}))
	if diff := cmp.Diff([]string{"anomaly", "anomaly@n1", "anomaly d@n1 >PENDING", "anomaly", "anomaly@n1", "anomaly d@n1 >DELETED"}, kinds(events)); diff != "" {
		t.Error(diff)
	}
}

func TestSnapshotReplacesAndClosesAGap(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	j := &journal{epoch: "e"}
	for _, n := range []protocol.NodeID{"n1", "n2"} {
		j.add(protocol.NodeOnlineEvent, n, protocol.Presence{V: 1, Online: true})
	}
	j.life("d", "n1")
	j.life("old", "n2")
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 8, 0))
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "old")); d.Archived || d.App != "app" || d.State != lifecycle.Installed {
		t.Errorf("a deployment that the CO did not know: %+v", d)
	}
	// 9 to 19 are lost. 20 does not follow from what is recorded: no anomaly.
	for len(j.events) < 19 {
		j.add(protocol.Superseded, "", nil)
	}
	j.status("d", "n1", lifecycle.RollingBack, lifecycle.EN)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 20, 20, 19))
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); d.State != lifecycle.RollingBack {
		t.Errorf("in a gap, reports are applied as they come: %+v", d)
	}
	j.add(protocol.SnapshotEvent, "", protocol.Snapshot{
		V: 1, Lost: 11,
		Nodes: []protocol.NodeSnapshot{
			{Node: "n1", Presence: protocol.Presence{Online: false}, Inventory: protocol.Inventory{V: 1, Node: "n1", Cores: 2}, Complete: true},
			{Node: "n2", Presence: protocol.Presence{Online: true}, Complete: true},
		},
		Statuses: []protocol.DeploymentStatus{
			status("d", "n1", lifecycle.Failed, lifecycle.EN), status("e", "n1", lifecycle.Installed, lifecycle.EN),
		},
	})
	j.status("d", "n1", lifecycle.Deleted, lifecycle.EN) // breaks the table again
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 21, 22, 19))

	site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home"))
	if site.EventsLost != 11 || site.Nodes != 2 || site.NodesOnline != 0 {
		t.Errorf("%+v", site)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "old")); !d.Archived || len(d.Nodes) != 0 {
		t.Errorf("not in the snapshot, nor desired: %+v", d)
	}
	for name, state := range map[protocol.DeploymentName]lifecycle.State{"d": lifecycle.Failed, "e": lifecycle.Installed} {
		if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", name)); d.State != state {
			t.Errorf("%s is %s, want %s", name, d.State, state)
		}
	}
	got := kinds(testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: testpart.Must[int64](t)(s.LastEvent(ctx)) - 6})))
	if diff := cmp.Diff([]string{
		"journal_gap", "deployment_status d@n1 INSTALLED>ROLLINGBACK", "deployment_status d@n1 ROLLINGBACK>FAILED",
		"deployment_status e@n1 >INSTALLED", "snapshot", "anomaly d@n1 >DELETED",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// Whatever is doubled, reordered and cut differently, and however many write at
// once: the record is that of one pass.
func TestAnyDeliveryGivesOneRecord(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	j := &journal{epoch: "e"}
	for i := range 60 {
		j.life(fmt.Sprintf("d%d", i%10), fmt.Sprintf("n%d", i/10))
	}
	n := len(j.events)
	var g errgroup.Group
	for worker := range 4 {
		r := rand.New(rand.NewPCG(7, uint64(worker)))
		g.Go(func() error {
			at := 1
			for at <= n {
				first := 1 + r.IntN(at)
				ack, err := j.send(ctx, s, first, min(n, first+r.IntN(120)), 0)
				if err != nil {
					return err
				}
				at = int(ack.Seq) + 1
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Limit: 1000}))
	if len(events) != n {
		t.Fatalf("%d events recorded, want %d", len(events), n)
	}
	for i, e := range events {
		var body protocol.DeploymentStatus
		if err := protocol.Unmarshal(j.events[i].Body, &body); err != nil || e.To != body.State || e.Deployment != body.Deployment {
			t.Fatalf("event %d is %+v, want %+v", i, e, body)
		}
	}
	for i := range 10 {
		var transitions []string
		for _, m := range testpart.Must[[]fleet.Transition](t)(s.Transitions(ctx, "home", protocol.DeploymentName(fmt.Sprintf("d%d", i)), 100)) {
			transitions = append(transitions, fmt.Sprintf("%s %s>%s %s %s", m.Node, m.From, m.To, m.Actor, m.AppVersion))
		}
		var want []string
		for node := 5; node >= 0; node-- {
			want = append(want, fmt.Sprintf("n%d INSTALLING>INSTALLED EN 1", node), fmt.Sprintf("n%d PENDING>INSTALLING LO 1", node), fmt.Sprintf("n%d >PENDING LO 1", node))
		}
		if diff := cmp.Diff(want, transitions); diff != "" {
			t.Errorf("history of d%d: %s", i, diff)
		}
	}
}

// TestManyAndFewAreRecordedAlike commits the same reports in batches that are
// inserted and in one that is copied.
func TestManyAndFewAreRecordedAlike(t *testing.T) {
	t.Parallel()
	j := &journal{epoch: "e"}
	for i := range 60 {
		st := status("d", fmt.Sprintf("n%d", i), lifecycle.Pending, lifecycle.LO)
		st.Message, st.UnixMillis, st.Attempt, st.Phase, st.PulledBytes, st.Code = "zwölf \x00 \t\n", int64(i)*1000, uint32(i), protocol.Pulling, 7, protocol.ProbeFailed
		st.Components = []protocol.ComponentStatus{{Component: "c"}}
		j.add(protocol.StatusEvent, st.Node, st)
		j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true, Version: "\x00"})
		j.events[len(j.events)-1].UnixMillis = 0
	}
	record := func(size int) (events []fleet.Event, transitions []fleet.Transition, d fleet.Deployment) {
		s, ctx := open(t), t.Context()
		for first := 1; first <= len(j.events); first += size {
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, first, min(len(j.events), first+size-1), 0))
		}
		return testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Limit: 1000})), testpart.Must[[]fleet.Transition](t)(s.Transitions(ctx, "home", "d", 1000)),
			testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))
	}
	events, transitions, d := record(10)
	manyEvents, manyTransitions, many := record(1000)
	when := cmp.FilterPath(func(p cmp.Path) bool {
		switch p.Last().String() {
		case ".Time", ".UpdatedAt", ".CreatedAt", ".Since", ".ReportedAt", ".Reason":
			return true
		}
		return false
	}, cmp.Ignore())
	if diff := cmp.Diff(events, manyEvents, when); diff != "" || len(events) != len(j.events) {
		t.Errorf("%d events: %s", len(events), diff)
	}
	if diff := cmp.Diff(transitions, manyTransitions, when); diff != "" || len(transitions) != 60 {
		t.Errorf("%d moves: %s", len(transitions), diff)
	}
	if diff := cmp.Diff(d, many, when); diff != "" {
		t.Error(diff)
	}
	for _, e := range manyEvents {
		if d := time.Since(e.Time); d < 0 || d > time.Minute {
			t.Fatalf("recorded at %v", e.Time)
		}
	}
}

func BenchmarkCommitBatch(b *testing.B) {
	for _, kind := range []string{"status", "presence"} {
		for _, size := range []int{1, 100, 2000} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				s := open(b)
				j := &journal{epoch: "e"}
				for i := range size {
					node := fmt.Sprintf("n%d", i%50)
					if kind == "presence" {
						j.add(protocol.NodeOnlineEvent, protocol.NodeID(node), protocol.Presence{V: 1, Online: true, Version: "1"})
						continue
					}
					st := status(fmt.Sprintf("d%d", i/50), node, lifecycle.Pending, lifecycle.LO)
					st.Phase, st.UnixMillis = protocol.Pulling, 1
					j.add(protocol.StatusEvent, st.Node, st)
				}
				seq := uint64(0)
				for b.Loop() {
					ack, err := s.CommitBatch(b.Context(), "home", protocol.Batch{V: 1, Epoch: "e", First: seq + 1, Count: uint32(size)}, j.events)
					if err != nil {
						b.Fatal(err)
					}
					seq = ack.Seq
				}
				b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// TestNodesAway lists and shows a deployment of which one node is offline while its site is
// online, and its removal, which waits for that node.
func TestNodesAway(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	j := &journal{epoch: "e"}
	for _, n := range []string{"n1", "n2"} {
		j.add(protocol.NodeOnlineEvent, protocol.NodeID(n), protocol.Presence{V: 1, Online: true})
		j.life("d", n)
	}
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
	first := len(j.events) + 1
	check := func(what, away, reason string) {
		t.Helper()
		list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{Site: "home"}, fleet.Page{})
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %d deployments, %v", what, len(list), err)
		}
		for _, d := range []fleet.Deployment{list[0], testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d"))} {
			if string(d.AwayNode) != away || (d.AwaySince != nil) != (away != "") || (d.NodesAway == 1) != (away != "") {
				t.Errorf("%s: %d nodes are away, node %q since %v, want %q", what, d.NodesAway, d.AwayNode, d.AwaySince, away)
			}
			if (reason == "") != (!strings.Contains(d.Reason, "offline")) || !strings.Contains(d.Reason, reason) {
				t.Errorf("%s: the reason is %q, want one with %q", what, d.Reason, reason)
			}
		}
	}
	check("both online", "", "")
	j.add(protocol.NodeOfflineEvent, "n1", protocol.Presence{V: 1})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, first, len(j.events), 0))
	check("one offline", "n1", "node n1 is offline since ")
	if _, _, err := s.SaveDesired(ctx, "home", "c2", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	check("removed", "n1", "colony node remove home/n1")
}

// TestUnsyncedTimesAreRecorded records times of clocks that were not synchronised, in few
// rows and in as many as are copied.
func TestUnsyncedTimesAreRecorded(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s, ctx := open(t), t.Context()
			j := journal{epoch: "a"}
			for i := range n {
				j.life(fmt.Sprintf("d%d", i), "n1")
			}
			j.events[0].Unsynced = true
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
			marked := 0
			for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Limit: len(j.events)})) {
				if e.Unsynced {
					marked++
					if e.Deployment != "d0" || e.To != lifecycle.Pending || e.SiteTime == nil {
						t.Errorf("marked is %+v", e)
					}
				}
			}
			if marked != 1 {
				t.Errorf("%d events are marked, want 1", marked)
			}
			history := testpart.Must[[]fleet.Transition](t)(s.Transitions(ctx, "home", "d0", 0))
			if site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); site.ClockUnsynced {
				t.Error("the site's clock counts as not synchronised although its last event has a synchronised one")
			}
			if len(history) != 3 || !history[2].Unsynced || history[1].Unsynced || history[0].Unsynced {
				t.Errorf("history %+v, want the first of three marked", history)
			}
			j.status("d0", "n1", lifecycle.Deleting, lifecycle.LO)
			j.events[len(j.events)-1].Unsynced = true
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, len(j.events), len(j.events), 0))
			testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Limit: 1}))
			if site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); !site.ClockUnsynced {
				t.Error("the site's clock counts as synchronised although that of its last event was not")
			}
		})
	}
}
