package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/lo/control/view"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A plant is a site whose LO can lose its disk. Its nodes do what they are assigned at
// once, and count what they remove.
type plant struct {
	t       *testing.T
	dir     string
	desired *desiredState
	now     time.Time
	nodes   map[protocol.NodeID]*gateway

	site *Site
	loop *Loop
}

// A gateway is a node of a plant.
type gateway struct {
	id      protocol.NodeID
	online  bool
	held    protocol.NodeDesired
	seq     uint64
	runs    map[protocol.DeploymentName]protocol.DeploymentStatus
	removed []protocol.DeploymentName
	begun   int // how often it began a deployment
}

func newPlant(t *testing.T, m protocol.SiteDesired, ids ...protocol.NodeID) *plant {
	t.Helper()
	p := &plant{t: t, dir: t.TempDir(), desired: &desiredState{m: m}, now: time.Now(), nodes: map[protocol.NodeID]*gateway{}}
	for _, id := range ids {
		p.nodes[id] = &gateway{id: id, runs: map[protocol.DeploymentName]protocol.DeploymentStatus{}}
	}
	p.start()
	for _, id := range ids {
		p.connect(id)
	}
	p.settle()
	p.now = p.now.Add(time.Hour) // a new LO waits for nodes that it does not know
	p.settle()
	return p
}

func (p *plant) state() string { return filepath.Join(p.dir, "state") }

// start starts an LO on the disk as it is; all nodes are offline then. Its journal is a
// new one: what the CO has is no help.
func (p *plant) start() {
	p.t.Helper()
	s, err := store.Open(disk.OS, p.state(), slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, g := range p.nodes {
		g.online = false
	}
	p.site, err = Open(p.t.Context(), Options{
		Site: "s1", Version: "v1", Journal: eventJournal{openJournal(p.t)}, Store: s, Desired: p.desired,
		NodeLostAfter: time.Minute, PresenceGrace: time.Minute, Logger: logger(p.t), Now: func() time.Time { return p.now },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.loop = NewLoop(p.site, func(_ context.Context, name string, payload []byte) error {
		at, err := topic.Parse(name)
		if err != nil {
			p.t.Fatal(err)
		}
		if g := p.nodes[at.Node]; g.online {
			p.deliver(g, payload)
		}
		return nil
	})
}

// connect has a node come online: its presence, its inventory and what it holds.
func (p *plant) connect(id protocol.NodeID) {
	p.t.Helper()
	g := p.nodes[id]
	g.online = true
	connect(p.t, p.site, id)
	g.seq++
	m := protocol.NodeReport{V: protocol.Version, Node: id, Agent: "agent-" + string(id), Seq: g.seq}
	if !g.held.Position.IsZero() {
		m.Held = g.held.Held()
	}
	for _, name := range slices.Sorted(maps.Keys(g.runs)) {
		m.Statuses = append(m.Statuses, g.runs[name])
	}
	if err := p.site.acceptNodeReport(p.t.Context(), m, p.now); err != nil {
		p.t.Fatal(err)
	}
}

// deliver gives a node a NodeDesired.
func (p *plant) deliver(g *gateway, payload []byte) {
	p.t.Helper()
	var d protocol.NodeDesired
	if err := protocol.Unmarshal(payload, &d); err != nil {
		p.t.Fatal(err)
	}
	if d.Position.After(g.held.Position) {
		g.held = d
	}
}

// settle reconciles, and lets the nodes do what they are assigned, until nothing happens.
func (p *plant) settle() {
	p.t.Helper()
	for range 20 {
		p.loop.Reconcile(p.t.Context(), p.now)
		if !p.work() {
			return
		}
	}
	p.t.Fatal("the site does not settle")
}

// work lets the nodes that are online carry out what they hold, and reports whether one
// did something.
func (p *plant) work() (busy bool) {
	p.t.Helper()
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		g := p.nodes[id]
		if !g.online {
			continue
		}
		for _, a := range g.held.Assignments {
			if m := g.runs[a.Deployment]; m.Digest != a.Digest || m.State == lifecycle.Deleted {
				g.begun++
				p.report(g, protocol.DeploymentStatus{Deployment: a.Deployment, State: lifecycle.Installed, Digest: a.Digest, Attempt: a.Attempt, Site: a.Site})
				busy = true
			}
		}
		for _, r := range g.held.Removals {
			if m, ok := g.runs[r.Deployment]; !ok || m.State != lifecycle.Deleted {
				g.removed = append(g.removed, r.Deployment)
				p.report(g, protocol.DeploymentStatus{Deployment: r.Deployment, State: lifecycle.Deleted, Digest: m.Digest, Attempt: m.Attempt})
				busy = true
			}
		}
	}
	return busy
}

func (p *plant) report(g *gateway, m protocol.DeploymentStatus) {
	p.t.Helper()
	g.seq++
	m.V, m.Node, m.Agent, m.Seq, m.Actor, m.Position = protocol.Version, g.id, "agent-"+string(g.id), g.seq, lifecycle.EN, g.held.Position
	g.runs[m.Deployment] = m
	if err := p.site.acceptReport(p.t.Context(), m, p.now); err != nil {
		p.t.Fatal(err)
	}
}

// running says what runs where, as "node: names".
func (p *plant) running() []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		var names []string
		for _, name := range slices.Sorted(maps.Keys(p.nodes[id].runs)) {
			if p.nodes[id].runs[name].State == lifecycle.Installed {
				names = append(names, string(name))
			}
		}
		out = append(out, fmt.Sprintf("%s: %s", id, strings.Join(names, " ")))
	}
	return out
}

// unchanged checks that the nodes run what they ran, and neither removed nor began
// anything.
func (p *plant) unchanged(what string, running []string, begun map[protocol.NodeID]int) {
	p.t.Helper()
	if diff := cmp.Diff(running, p.running()); diff != "" {
		p.t.Errorf("%s: running (-want +got):\n%s", what, diff)
	}
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		if g := p.nodes[id]; len(g.removed) > 0 || g.begun != begun[id] {
			p.t.Errorf("%s: node %s removed %v and began %d, want nothing removed and %d", what, id, g.removed, g.begun, begun[id])
		}
	}
}

func (p *plant) begun() map[protocol.NodeID]int {
	out := map[protocol.NodeID]int{}
	for id, g := range p.nodes {
		out[id] = g.begun
	}
	return out
}

// replicated is a desired state with a deployment on all nodes, one with two replicas and
// one with one.
func replicated(generation uint64) protocol.SiteDesired {
	m := desired(generation, "every", "pair", "single")
	m.Deployments[1].Placement.Replicas, m.Deployments[2].Placement.Replicas = 2, 1
	for i := range m.Deployments {
		m.Deployments[i].Position = m.Position
	}
	return m
}

// TestLostState has an LO lose one record, all of its disk, or the time since a copy of
// it, while some nodes are offline: nothing is removed, and nothing runs twice.
func TestLostState(t *testing.T) {
	t.Parallel()
	ids := []protocol.NodeID{"n1", "n2", "n3", "n4"}
	for _, c := range []struct {
		name string
		lose func(p *plant, id protocol.NodeID)
		// whole says that the CO is asked what ran: all records are lost.
		whole bool
	}{
		{"one record is damaged", func(p *plant, id protocol.NodeID) {
			if err := os.WriteFile(filepath.Join(p.state(), "nodes", string(id)+".json"), []byte("{"), 0o600); err != nil {
				p.t.Fatal(err)
			}
		}, false},
		{"the disk is lost", func(p *plant, _ protocol.NodeID) {
			if err := os.RemoveAll(p.state()); err != nil {
				p.t.Fatal(err)
			}
		}, true},
		{"the disk is set back", func(p *plant, _ protocol.NodeID) {
			if err := os.RemoveAll(p.state()); err != nil {
				p.t.Fatal(err)
			}
			if err := os.CopyFS(p.state(), os.DirFS(filepath.Join(p.dir, "copy"))); err != nil {
				p.t.Fatal(err)
			}
		}, true},
	} {
		for _, away := range ids {
			t.Run(c.name+", "+string(away)+" offline", func(t *testing.T) {
				t.Parallel()
				p := newPlant(t, desired(1), ids...)
				if err := os.CopyFS(filepath.Join(p.dir, "copy"), os.DirFS(p.state())); err != nil {
					t.Fatal(err)
				}
				p.desired.m = replicated(2)
				p.site.reconcileAll()
				p.settle()
				running, begun := p.running(), p.begun()
				if got := strings.Count(strings.Join(running, " "), "pair"); got != 2 {
					t.Fatalf("%d replicas of pair before anything is lost, want 2: %q", got, running)
				}

				c.lose(p, away)
				p.start()
				for _, id := range ids {
					if id != away {
						p.connect(id)
						p.settle()
					}
				}
				p.unchanged("after the nodes that are online have reported", running, begun)
				if c.whole { // the CO says what ran
					for _, id := range ids {
						var names []protocol.DeploymentName
						for name := range p.nodes[id].runs {
							names = append(names, name)
						}
						slices.Sort(names)
						p.desired.m.Running = append(p.desired.m.Running, protocol.NodeRunning{Node: id, Deployments: names})
					}
					p.site.reconcileAll()
					p.settle()
					p.unchanged("after the CO said what ran", running, begun)
				}
				p.now = p.now.Add(time.Hour)
				p.settle()
				p.unchanged("an hour later", running, begun)
				p.connect(away)
				p.settle()
				p.unchanged("after the last node has reported", running, begun)

				// The site obeys as before.
				p.desired.m = desired(3, "every")
				p.desired.m.Removals = []protocol.Removal{
					{Deployment: "pair", Position: p.desired.m.Position}, {Deployment: "single", Position: p.desired.m.Position},
				}
				p.site.reconcileAll()
				p.settle()
				for _, line := range p.running() {
					if !strings.HasSuffix(line, ": every") {
						t.Errorf("after the removal of the others: %s, want every alone", line)
					}
				}
			})
		}
	}
}

// TestSnapshotListsWhatWasHeard has the CO say what the nodes of an LO without records ran:
// a snapshot does not list a node because of that, for what the CO has of it is more.
func TestSnapshotListsWhatWasHeard(t *testing.T) {
	t.Parallel()
	m := desired(1, "every")
	m.Running = []protocol.NodeRunning{{Node: "n1", Deployments: []protocol.DeploymentName{"every"}}, {Node: "n2", Deployments: []protocol.DeploymentName{"every"}}}
	p := newPlant(t, m)
	p.nodes["n1"] = &gateway{id: "n1", runs: map[protocol.DeploymentName]protocol.DeploymentStatus{}}
	listed := func(want ...protocol.NodeID) {
		t.Helper()
		var got []protocol.NodeID
		for _, n := range p.site.Snapshot().Nodes {
			got = append(got, n.Node)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the snapshot lists %q, want %q", got, want)
		}
	}
	if got := len(p.site.sorted()); got != 2 {
		t.Fatalf("the LO waits for %d nodes, want the 2 that the CO named", got)
	}
	listed()
	p.connect("n1")
	listed("n1")
	p.start() // with the records on disk
	p.settle()
	listed("n1")
}

// TestSnapshotBeforeTheNodeReports has the CO ask for a snapshot just after a start of the LO: what the node holds is said once it has
// reported, once, also where the LO starts anew in between.
func TestSnapshotBeforeTheNodeReports(t *testing.T) {
	t.Parallel()
	p := newPlant(t, desired(1, "every"), "n1")
	for _, c := range []struct {
		name     string
		snapshot bool
		restarts int
	}{{"no snapshot", false, 1}, {"a snapshot", true, 1}, {"a snapshot, and another start", true, 2}, {"nothing of before", false, 1}} {
		for i := range c.restarts {
			p.start()
			if !c.snapshot || i > 0 {
				continue
			}
			if m := p.site.Snapshot(); len(m.Nodes) != 1 || m.Nodes[0].Complete {
				t.Fatalf("%s: before the node has reported: %+v", c.name, m.Nodes)
			}
		}
		p.connect("n1")
		p.connect("n1")
		journal, _ := p.site.journal.(eventJournal)
		if said := len(events(t, journal.Journal, protocol.NodeHoldings)); (said == 1) != c.snapshot || said > 1 {
			t.Errorf("%s: what the node holds was said %d times", c.name, said)
		}
		if m := p.site.Snapshot(); !m.Nodes[0].Complete {
			t.Errorf("%s: once the node has reported: %+v", c.name, m.Nodes)
		}
	}
}

// TestUnlistedStays has deployments that the desired state does not name any more.
func TestUnlistedStays(t *testing.T) {
	t.Parallel()
	p := newPlant(t, replicated(1), "n1", "n2")
	running, begun := p.running(), p.begun()
	p.desired.m = desired(2)
	p.site.reconcileAll()
	p.settle()
	p.now = p.now.Add(time.Hour)
	p.settle()
	p.unchanged("in neither list", running, begun)
	p.start() // also an LO that is restarted
	p.connect("n1")
	p.connect("n2")
	p.settle()
	p.unchanged("in neither list, after a restart", running, begun)
	for _, r := range view.Reports(p.loop.placement, p.desired.m, p.loop.view(), maxRejected) {
		if r.Problem != view.Unlisted || len(r.Nodes) == 0 {
			t.Errorf("report %+v: want it unlisted, with its nodes", r)
		}
	}
}

// TestSiteBehindItsNode has an LO that was set back, and no CO: the node follows a later
// state of the site, and is left alone.
func TestSiteBehindItsNode(t *testing.T) {
	t.Parallel()
	p := newPlant(t, replicated(7), "n1")
	running, begun := p.running(), p.begun()
	p.desired.m = desired(5)
	p.desired.m.Removals = []protocol.Removal{{Deployment: "every", Position: protocol.Position{Epoch: 1, Generation: 5}}}
	p.start()
	p.connect("n1")
	p.settle()
	p.unchanged("with a tombstone of before", running, begun)
	p.desired.m = replicated(8)
	p.site.reconcileAll()
	p.settle()
	p.unchanged("with the present state", running, begun)
}

// TestMoveKeepsVolumes has an LO move a deployment: its removal has no position of the
// CO, and comes only once the other node is known to be there.
func TestMoveKeepsVolumes(t *testing.T) {
	t.Parallel()
	m := desired(1, "web")
	m.Deployments[0].Placement.Node = "n1"
	p := newPlant(t, m, "n1", "n2")
	m = desired(2, "web")
	m.Deployments[0].Placement.Node = "n2"
	p.desired.m = m
	p.start()
	p.connect("n1")
	p.settle()
	p.unchanged("before n2 has reported", []string{"n1: web", "n2: "}, map[protocol.NodeID]int{"n1": 1})
	p.connect("n2")
	p.settle()
	if diff := cmp.Diff([]string{"n1: ", "n2: web"}, p.running()); diff != "" {
		t.Errorf("after the move (-want +got):\n%s", diff)
	}
	for _, r := range p.nodes["n1"].held.Removals {
		if !r.Site.IsZero() || r.Volumes {
			t.Errorf("removal %+v: want one of the LO's own, without volumes", r)
		}
	}
}

// TestInventoryAfterTheReport has a node report to an LO without records before its inventory
// arrives, which comes between the placement and the decision about the node.
func TestInventoryAfterTheReport(t *testing.T) {
	t.Parallel()
	m := replicated(1)
	for i := range m.Deployments {
		m.Deployments[i].Placement.Constraints = []byte(`{"capacityRequirements":{"cpu":{"cores":2,"architectures":["amd64"]}}}`)
	}
	p := newPlant(t, m, "n1")
	running, begun := p.running(), p.begun()
	if !strings.Contains(running[0], "every") {
		t.Fatalf("running %v before anything is lost", running)
	}
	if err := os.RemoveAll(p.state()); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.desired.m.Running = []protocol.NodeRunning{{Node: "n1", Deployments: []protocol.DeploymentName{"every", "pair", "single"}}}
	g := p.nodes["n1"]
	g.online = true
	if err := p.site.acceptPresence(t.Context(), g.id, protocol.Presence{Online: true, Session: "1", Agent: "agent-n1"}, p.now); err != nil {
		t.Fatal(err)
	}
	var statuses []protocol.DeploymentStatus
	for _, name := range slices.Sorted(maps.Keys(g.runs)) {
		statuses = append(statuses, g.runs[name])
	}
	reportAll(t, p.site, g.id, g.held.Held(), statuses...)
	p.loop.settle(t.Context(), p.desired.m, p.now)
	ids, _ := p.loop.dirty(t.Context(), p.desired.m, p.now)
	inventory := protocol.Inventory{V: protocol.Version, Node: g.id, Architecture: "amd64", Cores: 4}
	if err := p.site.acceptInventory(t.Context(), g.id, inventory, p.now); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		p.loop.reconcileNode(t.Context(), p.site.node(id), view.WorkOf(p.desired.m), p.now)
	}
	p.work()
	p.unchanged("with a placement of before the inventory", running, begun)
	p.settle()
	p.unchanged("with the inventory", running, begun)
}

// TestFullDiskAfterARaise has a node show that the LO was restored, while the disk takes no
// record: the LO knows that its records are old, whether the node repeats the report or not.
func TestFullDiskAfterARaise(t *testing.T) {
	t.Parallel()
	s := &fullStore{Store: openStore(t)}
	site := openSite(t, openJournal(t), s, &desiredState{m: desired(1)})
	connect(t, site, "n1")
	s.full.Store(true)
	held := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x", Site: protocol.Position{Epoch: 1, Generation: 4}}
	m := protocol.NodeReport{V: protocol.Version, Node: "n1", Agent: "agent-n1", Seq: 1, Held: held}
	if err := site.acceptNodeReport(t.Context(), m, site.opts.Now()); err == nil {
		t.Fatal("the report is acknowledged although its record could not be stored")
	}
	n := site.known("n1")
	if _, reported := n.state(); !reported || n.follows != held.Site {
		t.Errorf("the node has reported: %t, it follows %s; want %s", reported, n.follows, held.Site)
	}
	if !site.lost.Load() {
		t.Error("the LO does not know that its records are older than what the node does")
	}
}

// TestProbeThatFails has the inventory of a node lack for a moment what the constraints of a
// deployment ask for: what runs stays. Other constraints, and other labels, are obeyed.
func TestProbeThatFails(t *testing.T) {
	t.Parallel()
	m := desired(1, "web")
	m.Deployments[0].Placement.Constraints = []byte(`{"capacityRequirements":{"cpu":{"cores":2,"architectures":["amd64"]}}}`)
	p := newPlant(t, m, "n1")
	running, begun := p.running(), p.begun()
	if running[0] != "n1: web" {
		t.Fatalf("running %q, want web on n1", running)
	}
	inventory := func(cores uint32) {
		t.Helper()
		inv := protocol.Inventory{V: protocol.Version, Node: "n1", Architecture: "amd64", Cores: cores}
		if err := p.site.acceptInventory(t.Context(), "n1", inv, p.now); err != nil {
			t.Fatal(err)
		}
		p.settle()
	}
	inventory(0)
	p.unchanged("with an inventory that lacks the cores", running, begun)
	p.start() // also over a restart
	p.connect("n1")
	inventory(0)
	p.now = p.now.Add(time.Hour)
	p.settle()
	p.unchanged("after a restart", running, begun)
	inventory(4)
	p.unchanged("with the whole inventory", running, begun)

	p.desired.m.Position.Generation++
	p.desired.m.Deployments[0].Placement.Constraints = []byte(`{"capacityRequirements":{"cpu":{"cores":8,"architectures":["amd64"]}}}`)
	p.site.reconcileAll()
	p.settle()
	if got := p.running(); got[0] != "n1: " {
		t.Errorf("running %q although a person asks for 8 cores, want nothing", got)
	}
}
