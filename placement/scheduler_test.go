package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
)

func node(id string, change ...func(*Node)) Node {
	n := Node{ID: protocol.NodeID(id), Online: true, Inventory: &protocol.Inventory{
		Labels: map[string]string{"role": "gateway"}, Architecture: "amd64", Cores: 4, MemoryBytes: 8 << 30, StorageBytes: 64 << 30,
	}}
	for _, c := range change {
		c(&n)
	}
	return n
}

func offline(n *Node)    { n.Online = false }
func unknown(n *Node)    { n.Inventory = nil }
func runs(n *Node)       { n.Runs = []protocol.DeploymentName{"web"} }
func busy(n *Node)       { n.Runs = []protocol.DeploymentName{"x", "y"} }
func small(n *Node)      { n.Inventory.MemoryBytes = 1 << 30 }
func arm(n *Node)        { n.Inventory.Architecture = "arm64" }
func unlabelled(n *Node) { n.Inventory.Labels = nil }

func TestPlace(t *testing.T) {
	t.Parallel()
	selector := protocol.Placement{Selector: map[string]string{"role": "gateway"}}
	capacity := protocol.Placement{Constraints: []byte(`{"capacityRequirements":{"cpu":{"cores":2,"architectures":["amd64"]},"memory":"4Gi"}}`)}
	for _, c := range []struct {
		name     string
		p        protocol.Placement
		nodes    []Node
		want     []protocol.NodeID
		rejected map[protocol.NodeID]string // a part of the reason
		problem  string                     // a part of it
	}{
		{name: "every node", nodes: []Node{node("b"), node("a")}, want: []protocol.NodeID{"a", "b"}},
		{name: "no nodes", problem: "no nodes yet"},
		{
			name: "selector", p: selector, nodes: []Node{node("a"), node("b", unlabelled)}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "no label role"},
		},
		{
			name: "selector matches nothing", p: protocol.Placement{Selector: map[string]string{"role": "line"}}, nodes: []Node{node("a"), node("b", unlabelled)},
			rejected: map[protocol.NodeID]string{"a": `is "gateway"; wanted "line"`, "b": "no label role"},
			problem:  `not placeable: no node matches (b: it has no label role; wanted role=line; a: its label role is "gateway"; wanted "line")`,
		},
		{
			name: "constraints", p: capacity, nodes: []Node{node("a"), node("b", small), node("c", arm)}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "memory", "c": "arm64"},
		},
		{
			name: "broken constraints remove nothing", p: protocol.Placement{Constraints: []byte("{")},
			nodes: []Node{node("a", runs), node("b")}, want: []protocol.NodeID{"a"}, problem: "cannot be read",
		},
		{name: "broken constraints", p: protocol.Placement{Constraints: []byte("{")}, nodes: []Node{node("a")}, problem: "cannot be read"},
		{
			name: "one node by name", p: protocol.Placement{Node: "b"}, nodes: []Node{node("a"), node("b", offline)}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "for node b"},
		},
		{
			name: "unknown node", p: protocol.Placement{Node: "z"}, nodes: []Node{node("a")},
			rejected: map[protocol.NodeID]string{"a": "for node z"}, problem: "node z is not known",
		},
		{
			name: "offline nodes are not begun on", nodes: []Node{node("a", offline), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "offline"},
		},
		{name: "offline nodes keep what they run", nodes: []Node{node("a", offline, runs), node("b")}, want: []protocol.NodeID{"a", "b"}},
		{
			name: "replicas stay where they are", p: protocol.Placement{Replicas: 1}, nodes: []Node{node("a"), node("b", runs, offline)}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "1 wanted"},
		},
		{
			name: "replicas go to the least loaded", p: protocol.Placement{Replicas: 1}, nodes: []Node{node("a", busy), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "1 wanted"},
		},
		{
			name: "fewer replicas keep those online", p: protocol.Placement{Replicas: 1}, nodes: []Node{node("a", runs, offline), node("b", runs)}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "1 wanted"},
		},
		{
			name: "too few nodes", p: protocol.Placement{Replicas: 3}, nodes: []Node{node("a"), node("b", offline)}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "offline"}, problem: "only 1 of 3 nodes found (b: the node is offline)",
		},
		{
			name: "a node that matches no more is left", p: selector, nodes: []Node{node("a", runs, unlabelled), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "no label role"},
		},
		{
			name: "inventory not known", p: selector, nodes: []Node{node("a", unknown)},
			rejected: map[protocol.NodeID]string{"a": "inventory"}, problem: "not placeable",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := Place(Input{Desired: []protocol.SiteEntry{{Deployment: "web", Placement: c.p}}, Nodes: c.nodes})["web"]
			if diff := cmp.Diff(c.want, r.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if len(r.Rejected) != len(c.rejected) {
				t.Errorf("rejected %v, want %v", r.Rejected, c.rejected)
			}
			for id, part := range c.rejected {
				if !strings.Contains(rejected(r)[id], part) {
					t.Errorf("node %s rejected because %q, want it to say %q", id, rejected(r)[id], part)
				}
			}
			if !strings.Contains(r.Problem, c.problem) || c.problem == "" && r.Problem != "" {
				t.Errorf("problem %q, want %q", r.Problem, c.problem)
			}
		})
	}
}

func TestReportIsBounded(t *testing.T) {
	t.Parallel()
	var nodes []Node
	for i := range 1000 {
		nodes = append(nodes, node(fmt.Sprintf("n%04d", i), unlabelled))
	}
	p := protocol.Placement{Selector: map[string]string{"role": "x"}}
	r := Place(Input{Desired: []protocol.SiteEntry{{Deployment: "web", Placement: p}}, Nodes: nodes})["web"]
	if m := r.Report("web", 64); len(m.Rejected) != 64 || len(m.Problem) > 300 {
		t.Errorf("%d reasons, problem of %d bytes: %s", len(m.Rejected), len(m.Problem), m.Problem)
	}
	if len(r.Rejected) != 1000 {
		t.Errorf("%d of 1000 nodes have a reason", len(r.Rejected))
	}
}

// TestPlacementIsStable checks that what was placed is placed again in the same
// way, in any order of the nodes, and that every node is chosen or has a reason.
func TestPlacementIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			n := node(fmt.Sprint("n", i))
			n.Online = rapid.Bool().Draw(t, "online")
			if rapid.Bool().Draw(t, "unlabelled") {
				n.Inventory.Labels = nil
			}
			nodes = append(nodes, n)
		}
		entries := []protocol.SiteEntry{
			{Deployment: "a", Placement: protocol.Placement{Replicas: rapid.Uint32Range(0, 4).Draw(t, "replicas")}},
			{Deployment: "b", Placement: protocol.Placement{Selector: map[string]string{"role": "gateway"}, Replicas: rapid.Uint32Range(0, 4).Draw(t, "replicas")}},
		}
		first := Place(Input{Desired: entries, Nodes: nodes})
		for i, n := range nodes {
			for name := range first.On(n.ID) {
				nodes[i].Runs = append(nodes[i].Runs, name)
			}
			nodes[i].Online = rapid.Bool().Draw(t, "online later")
		}
		second := Place(Input{Desired: entries, Nodes: rapid.Permutation(nodes).Draw(t, "order")})
		for name, r := range first {
			s := second[name]
			if len(r.Nodes)+len(r.Rejected) != len(nodes) {
				t.Fatalf("%s: %d chosen and %d rejected of %d", name, len(r.Nodes), len(r.Rejected), len(nodes))
			}
			for _, id := range r.Nodes {
				if _, moved := rejected(s)[id]; moved {
					t.Fatalf("%s left node %s: %s", name, id, rejected(s)[id])
				}
			}
		}
	})
}
