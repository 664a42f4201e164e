package control

import (
	"log/slog"
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
)

// decommission is the desired state with one more generation that removes a node.
func (p *plant) decommission(id protocol.NodeID) {
	p.t.Helper()
	p.desired.m.Position.Generation++
	p.desired.m.Decommissions = []protocol.Decommission{{Node: id, Position: p.desired.m.Position}}
	p.site.reconcileAll()
	p.settle()
}

// answers returns the reasons of the events about the removal of a node; "" stands for one
// that was carried out.
func (p *plant) answers(id protocol.NodeID) (out []string) {
	p.t.Helper()
	for _, e := range events(p.t, p.site.journal.(eventJournal).Journal, protocol.NodeDecommissioned) {
		var m protocol.Decommissioned
		if err := protocol.Unmarshal(e.Body, &m); err != nil || e.Node != id {
			p.t.Fatalf("event %+v: %v", e, err)
		}
		out = append(out, m.Reason)
	}
	return out
}

// leave has a node go offline.
func (p *plant) leave(id protocol.NodeID) {
	p.t.Helper()
	p.nodes[id].online = false
	if err := p.site.acceptPresence(p.t.Context(), id, protocol.Presence{Session: "1", Agent: "agent-" + string(id)}, p.now); err != nil {
		p.t.Fatal(err)
	}
	p.settle()
}

// TestDecommission removes a node that is away: its replicas go elsewhere, and when it is
// back it is a node like a new one, of which nothing runs twice.
func TestDecommission(t *testing.T) {
	t.Parallel()
	m := desired(1, "single")
	m.Deployments[0].Placement.Replicas = 1
	p := newPlant(t, m, "n1", "n2")
	first, second := protocol.NodeID("n1"), protocol.NodeID("n2")
	if len(p.nodes[first].runs) == 0 {
		first, second = second, first
	}
	p.decommission(first)
	if diff := cmp.Diff([]string{connected}, p.answers(first)); diff != "" {
		t.Fatalf("answers while the node is connected: %s", diff)
	}
	p.leave(first)
	if len(p.nodes[second].runs) != 0 {
		t.Fatalf("%s runs %v although %s may come back", second, p.nodes[second].runs, first)
	}
	p.decommission(first)
	if diff := cmp.Diff([]string{connected, ""}, p.answers(first)); diff != "" {
		t.Fatalf("answers: %s", diff)
	}
	if p.site.known(first) != nil {
		t.Errorf("the site still knows %s", first)
	}
	if _, err := os.Stat(filepath.Join(p.state(), "nodes", string(first)+".json")); !os.IsNotExist(err) {
		t.Errorf("its record is on disk: %v", err)
	}
	if !strings.Contains(strings.Join(p.running(), " "), string(second)+": single") {
		t.Errorf("running %v, want single on %s", p.running(), second)
	}
	p.settle()
	p.start() // a restart forgets neither
	p.connect(second)
	p.settle()
	if p.site.known(first) != nil || len(p.answers(first)) != 0 {
		t.Errorf("after a restart the site knows %s: %t, answers %v", first, p.site.known(first) != nil, p.answers(first))
	}

	p.connect(first)
	p.settle()
	p.now = p.now.Add(time.Hour)
	p.settle()
	if p.site.known(first) == nil {
		t.Errorf("%s has connected again, and is not known", first)
	}
	if got := strings.Count(strings.Join(p.running(), " "), "single"); got != 1 {
		t.Errorf("running %v, want one replica", p.running())
	}
	if len(p.answers(first)) != 0 {
		t.Errorf("the removal of before is answered once more: %v", p.answers(first))
	}
}

// TestDecommissionAfterTheStart is about a node that was online when the LO was stopped: it
// is not forgotten before it had the time to come back.
func TestDecommissionAfterTheStart(t *testing.T) {
	t.Parallel()
	p := newPlant(t, desired(1, "every"), "n1")
	p.start()
	p.decommission("n1")
	if got := p.answers("n1"); len(got) != 0 {
		t.Fatalf("answers %q within the grace of a restart, want none", got)
	}
	p.now = p.now.Add(time.Hour)
	p.settle()
	p.settle()
	if diff := cmp.Diff([]string{""}, p.answers("n1")); diff != "" {
		t.Errorf("answers an hour later: %s", diff)
	}
}

// TestDecommissionIsReplayed kills the LO after it has journalled the removal of a node and
// before its record is removed.
func TestDecommissionIsReplayed(t *testing.T) {
	t.Parallel()
	j, dir := openJournal(t), t.TempDir()
	open := func() *Site {
		t.Helper()
		s, err := store.Open(disk.OS, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return openSite(t, j, s, &desiredState{})
	}
	s := open()
	announce(t, s, "n1")
	announce(t, s, "n2")
	f := siteFact(protocol.NodeDecommissioned, "", &protocol.Decommissioned{V: protocol.Version, Position: protocol.Position{Epoch: 1, Generation: 3}}, s.opts.Now())
	f.Event.Node = "n1"
	if _, err := s.append(t.Context(), []nodes.Fact{f}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = open()
		if s.known("n1") != nil || s.known("n2") == nil {
			t.Fatalf("after the start the site knows n1: %t, n2: %t; want n2 alone", s.known("n1") != nil, s.known("n2") != nil)
		}
	}
	announce(t, s, "n1")
	if s = open(); s.known("n1") == nil {
		t.Error("n1 has connected again, and is not known after a start")
	}
}
