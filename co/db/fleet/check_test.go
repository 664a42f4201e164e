package fleetdb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A randomSite sends what comes to its mind.
type randomSite struct {
	*rand.Rand
	s    *fleetdb.Store
	id   protocol.SiteID
	seq  uint64
	turn int
}

func (r *randomSite) node() protocol.NodeID { return protocol.NodeID(fmt.Sprintf("n%d", r.IntN(6))) }

func (r *randomSite) name() string { return string(rune('a' + r.IntN(5))) }

func (r *randomSite) digest(name string) protocol.Digest {
	return protocol.DigestOf([]byte("spec of " + name + " " + fmt.Sprint(1+r.IntN(2))))
}

func (r *randomSite) status() protocol.DeploymentStatus {
	name := r.name()
	s := status(name, string(r.node()), lifecycle.States[r.IntN(len(lifecycle.States))], lifecycle.EN)
	s.Digest, s.AppVersion = r.digest(name), fmt.Sprint(1+r.IntN(2))
	if r.IntN(3) == 0 {
		s.Refused = r.digest(name)
	}
	if r.IntN(3) == 0 {
		s.Running, s.RunningVersion = r.digest(name), fmt.Sprint(1+r.IntN(2))
	}
	if s.State == lifecycle.Failed {
		s.Code, s.Message = "CrashLoop", fmt.Sprint("for the time ", r.IntN(100))
	}
	return s
}

func (r *randomSite) presence() protocol.Presence {
	return protocol.Presence{V: 1, Online: r.IntN(2) == 0, Version: "1"}
}

func (r *randomSite) inventory(node protocol.NodeID) protocol.Inventory {
	m := protocol.Inventory{V: 1, Node: node, Labels: map[string]string{"line": fmt.Sprint(r.IntN(3)), "role": "a\x00"}}
	for range r.IntN(3) {
		m.Unknown = append(m.Unknown, protocol.DeploymentName(r.name()))
	}
	return m
}

func (r *randomSite) event(j *journal) {
	node := r.node()
	switch r.IntN(12) {
	case 0:
		p := r.presence()
		kind := protocol.NodeOfflineEvent
		if p.Online {
			kind = protocol.NodeOnlineEvent
		}
		j.add(kind, node, p)
	case 1:
		j.add(protocol.InventoryChanged, node, r.inventory(node))
	case 2:
		j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: uint64(r.IntN(4))}})
	case 3:
		j.add(protocol.PlacementEvent, "", protocol.PlacementReport{V: 1, Deployment: protocol.DeploymentName(r.name())})
	case 4:
		if r.IntN(4) > 0 {
			return
		}
		snapshot := protocol.Snapshot{V: 1}
		for i := range 6 {
			if r.IntN(2) == 0 {
				id := protocol.NodeID(fmt.Sprintf("n%d", i))
				snapshot.Nodes = append(snapshot.Nodes, protocol.NodeSnapshot{Node: id, Presence: r.presence(), Inventory: r.inventory(id)})
			}
		}
		for range r.IntN(8) {
			snapshot.Statuses = append(snapshot.Statuses, r.status())
		}
		j.add(protocol.SnapshotEvent, "", snapshot)
	default:
		s := r.status()
		j.add(protocol.StatusEvent, s.Node, s)
	}
}

func (r *randomSite) batch(ctx context.Context) error {
	j := &journal{}
	for range 1 + r.IntN(12) {
		r.event(j)
	}
	// What is declared as lost opens a gap, in which any transition is applied.
	b := protocol.Batch{V: 1, Epoch: "e", First: r.seq + 2, Count: uint32(len(j.events)), Trimmed: r.seq + 1}
	ack, err := r.s.CommitBatch(ctx, r.id, b, j.events)
	r.seq = ack.Seq
	return err
}

func (r *randomSite) desire(ctx context.Context) error {
	r.turn++
	var list []fleet.Desired
	for i := range 4 {
		if r.IntN(3) == 0 {
			continue
		}
		d := want(string(rune('a'+i)), fmt.Sprint(1+r.IntN(2)), fmt.Sprint("c", r.turn))
		d.Site, d.Entry.Placement.Replicas = r.id, uint32(r.IntN(4))
		if r.IntN(5) == 0 {
			d.Problem = "line 1: no"
		}
		list = append(list, d)
	}
	_, _, err := r.s.SaveDesired(ctx, r.id, fmt.Sprint("c", r.turn), list, fleet.SiteData{})
	return err
}

// TestCountersFollow has sites report and the repo change at random: what is counted is
// at all times what the rows say.
func TestCountersFollow(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	sites := []*randomSite{{Rand: random, s: s, id: "home"}, {Rand: random, s: s, id: "mill"}}
	for step := range 240 {
		r := sites[random.IntN(2)]
		do := r.batch
		if random.IntN(6) == 0 {
			do = r.desire
		}
		if err := do(ctx); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if step%8 != 7 {
			continue
		}
		if n, err := s.CheckCounters(ctx, 0); err != nil || n > 0 {
			events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{fleet.CountersRepaired}}))
			t.Fatalf("step %d: %d counters differ, %v: %+v", step, n, err, events)
		}
	}
}

// TestCheckRepairs damages each counter: the check repairs it, and says so once.
func TestCheckRepairs(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	placed := want("d", "1", "c1")
	placed.Entry.Placement.Replicas = 2
	must2(t)(s.SaveDesired(ctx, "home", "c1", []fleet.Desired{placed, want("e", "1", "c1")}, fleet.SiteData{}))
	j := &journal{epoch: "e"}
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.add(protocol.InventoryChanged, "n1", protocol.Inventory{V: 1, Node: "n1", Labels: map[string]string{"line": "a"}})
	j.life("d", "n1")
	if _, err := j.send(ctx, s, 1, len(j.events), 0); err != nil {
		t.Fatal(err)
	}
	for damage, says := range map[string]string{
		`update deployments set replicas = 0`:                          "deployment d should run on 2 nodes, not on 0",
		`update deployment_status set reported = '{1,0,0,0,0,0,0,0}'`:  "the counted nodes of deployment d; the counted nodes of deployment e",
		`update deployment_status set state = 'FAILED' where name='d'`: "the state of deployment d: it was FAILED",
		`delete from deployment_nodes`:                                 "the counted nodes of deployment d",
		`delete from deployment_status where name = 'e'`:               "the counted nodes of deployment e",
		`update sites set nodes = 7`:                                   "the numbers of nodes and deployments",
		`update sites set states = '{0,0,0,0,0,0,0,9}'`:                "the numbers of nodes and deployments",
		`delete from node_labels`:                                      "a label of node n1",
	} {
		last := testpart.Must[int64](t)(s.LastEvent(ctx))
		if _, err := pool.Exec(ctx, damage); err != nil {
			t.Fatal(err)
		}
		if n, err := s.CheckCounters(ctx, 0); err != nil || n == 0 {
			t.Errorf("%s: %d repaired, %v", damage, n, err)
		}
		events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last, Kinds: []string{fleet.CountersRepaired}}))
		if len(events) != 1 || events[0].Site != "home" || !strings.Contains(events[0].Message, says) {
			t.Errorf("%s: events %+v, want one with %q", damage, events, says)
		}
		if n, err := s.CheckCounters(ctx, 0); err != nil || n != 0 {
			t.Errorf("%s: %d repaired by a second check, %v", damage, n, err)
		}
	}
	list, _, err := s.Nodes(ctx, fleet.NodeFilter{Labels: map[string]string{"line": "a"}}, fleet.Page{})
	if err != nil || len(list) != 1 {
		t.Errorf("nodes by label: %v, %v", list, err)
	}
	if n, err := s.CountDeployments(ctx, fleet.DeploymentFilter{State: fleet.Choice{Values: []string{"INSTALLED"}, Not: true}}); err != nil || n.Count != 2 {
		t.Errorf("%+v deployments are not INSTALLED, %v; want 2", n, err)
	}
}

func must2(t *testing.T) func(protocol.SiteDesired, bool, error) {
	return func(_ protocol.SiteDesired, _ bool, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}
