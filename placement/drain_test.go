package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

const (
	cordonedBy = "cordoned by anna: why"
	drainedBy  = "drained by anna: why"
	heldBy     = "held by anna: why"
)

func cordoned(n *Node) { n.Restricted.Closed = cordonedBy }
func drained(n *Node)  { n.Restricted.Closed, n.Restricted.Drained = drainedBy, drainedBy }
func forced(n *Node)   { drained(n); n.Restricted.Forced = true }
func held(n *Node)     { n.Restricted.Closed, n.Restricted.Held = heldBy, heldBy }

func TestRestrictedNodes(t *testing.T) {
	t.Parallel()
	one, two := protocol.Placement{Replicas: 1}, protocol.Placement{Replicas: 2}
	volume := demand.Demand{Volumes: []string{"data"}}
	for _, c := range []struct {
		name     string
		p        protocol.Placement
		demand   demand.Demand
		nodes    []Node
		want     []protocol.NodeID
		rejected map[protocol.NodeID]string // a part of the reason
		stays    map[protocol.NodeID]string // a part of the reason
		leaves   []protocol.NodeID
		problem  string // a part of it
	}{
		{
			name: "nothing new on a cordoned node", nodes: []Node{node("a", cordoned), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "the node is cordoned by anna: why"},
		},
		{name: "what runs on a cordoned node stays", p: one, nodes: []Node{node("a", runs, cordoned), node("b")}, want: []protocol.NodeID{"a"}, rejected: map[protocol.NodeID]string{"b": "1 wanted"}},
		{
			name: "what is for a cordoned node by its name", p: protocol.Placement{Node: "a"}, nodes: []Node{node("a", cordoned)},
			rejected: map[protocol.NodeID]string{"a": "cordoned by anna"}, problem: "not placeable: no node matches (a: the node is cordoned by anna: why)",
		},
		{
			name: "a replica leaves a drained node", p: one, nodes: []Node{node("a", runs, drained), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": drainedBy}, leaves: []protocol.NodeID{"a"},
		},
		{
			name: "it leaves though it runs elsewhere already", p: one, nodes: []Node{node("a", runs, drained), node("b", runs)}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": drainedBy}, leaves: []protocol.NodeID{"a"},
		},
		{
			name: "no other node can run it", p: one, nodes: []Node{node("a", runs, drained), node("b", offline)}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "offline"}, stays: map[protocol.NodeID]string{"a": "no other node can run it (b: the node is offline)"},
		},
		{
			name: "one of two leaves", p: two, nodes: []Node{node("a", runs, drained), node("b", runs, drained), node("c")}, want: []protocol.NodeID{"a", "c"},
			rejected: map[protocol.NodeID]string{"b": drainedBy}, stays: map[protocol.NodeID]string{"a": "no other node"}, leaves: []protocol.NodeID{"b"},
		},
		{
			name: "what is for every node stays", nodes: []Node{node("a", runs, drained), node("b")}, want: []protocol.NodeID{"a", "b"},
			stays: map[protocol.NodeID]string{"a": "every node that matches"},
		},
		{
			name: "what is for a node by its name stays", p: protocol.Placement{Node: "a"}, nodes: []Node{node("a", runs, drained)}, want: []protocol.NodeID{"a"},
			stays: map[protocol.NodeID]string{"a": "by its name"},
		},
		{
			name: "a volume stays", p: one, demand: volume, nodes: []Node{node("a", runs, drained), node("b")}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "1 wanted"}, stays: map[protocol.NodeID]string{"a": "volumes of the node (data)"},
		},
		{
			name: "a device stays", p: one, demand: demand.Demand{Devices: []string{"/dev/ttyS0"}}, nodes: []Node{node("a", runs, drained), node("b")}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "1 wanted"}, stays: map[protocol.NodeID]string{"a": "devices of the node (/dev/ttyS0)"},
		},
		{
			name: "a forced drain", p: one, demand: volume, nodes: []Node{node("a", runs, forced), node("b")}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": drainedBy}, leaves: []protocol.NodeID{"a"},
		},
		{
			name: "a held node keeps what matches it no more", p: protocol.Placement{Replicas: 1, Selector: map[string]string{"role": "gateway"}},
			nodes: []Node{node("a", runs, unlabelled, held), node("b")}, want: []protocol.NodeID{"a"}, rejected: map[protocol.NodeID]string{"b": "1 wanted"},
		},
		{name: "of surplus replicas the held one stays", p: one, nodes: []Node{node("a", runs), node("b", runs, offline, held)}, want: []protocol.NodeID{"b"}, rejected: map[protocol.NodeID]string{"a": "1 wanted"}},
		{
			name: "held and drained", p: one, nodes: []Node{node("a", runs, drained, held), node("b")}, want: []protocol.NodeID{"a"},
			rejected: map[protocol.NodeID]string{"b": "1 wanted"}, stays: map[protocol.NodeID]string{"a": "held by anna"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := Place(Input{
				Desired: []protocol.SiteEntry{{Deployment: "web", Placement: c.p}}, Nodes: c.nodes,
				Demand: func(protocol.Digest) demand.Demand { return c.demand },
			})["web"]
			if diff := cmp.Diff(c.want, r.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.leaves, r.Leaves); diff != "" {
				t.Errorf("leaves (-want +got):\n%s", diff)
			}
			contain(t, "rejected", rejected(r), c.rejected)
			contain(t, "stays", r.Stays, c.stays)
			if !strings.Contains(r.Problem, c.problem) || c.problem == "" && r.Problem != "" {
				t.Errorf("problem %q, want %q", r.Problem, c.problem)
			}
		})
	}
}

// rejected are the reasons by node.
func rejected(r Result) map[protocol.NodeID]string {
	out := map[protocol.NodeID]string{}
	for _, x := range r.Rejected {
		out[x.Node] = x.Why
	}
	return out
}

// contain checks that each reason has its part, and that there is no other.
func contain(t *testing.T, what string, got, want map[protocol.NodeID]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s %v, want %v", what, got, want)
	}
	for id, part := range want {
		if !strings.Contains(got[id], part) {
			t.Errorf("node %s %s because %q, want it to say %q", id, what, got[id], part)
		}
	}
}

// TestDrainEnds checks that a drain takes what it placed elsewhere for placed, and never leaves fewer replicas than there were.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		running := 0
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			n := node(fmt.Sprint("n", i))
			n.Online = rapid.Bool().Draw(t, "online")
			if rapid.Bool().Draw(t, "runs") {
				runs(&n)
				running++
			}
			rapid.SampledFrom([]func(*Node){func(*Node) {}, cordoned, drained, forced, held}).Draw(t, "restricted")(&n)
			nodes = append(nodes, n)
		}
		replicas := rapid.Uint32Range(1, 4).Draw(t, "replicas")
		desired := []protocol.SiteEntry{{Deployment: "web", Placement: protocol.Placement{Replicas: replicas}}}
		first := Place(Input{Desired: desired, Nodes: nodes})["web"]
		if len(first.Nodes) < min(running, int(replicas)) {
			t.Fatalf("%d nodes run it, of %d wanted it is placed on %v", running, replicas, first.Nodes)
		}
		for i := range nodes {
			n := &nodes[i]
			was := len(n.Runs) > 0
			n.Runs = nil
			if _, placed := slices.BinarySearch(first.Nodes, n.ID); placed {
				n.Runs = []protocol.DeploymentName{"web"}
				if !was && n.Restricted.Closed != "" {
					t.Fatalf("it begins on node %s, which is %s", n.ID, n.Restricted.Closed)
				}
			} else if was && n.Restricted.Held != "" && len(first.Nodes) < int(replicas) {
				t.Fatalf("it leaves node %s, which is held", n.ID)
			}
		}
		if diff := cmp.Diff(first.Nodes, Place(Input{Desired: desired, Nodes: nodes})["web"].Nodes); diff != "" {
			t.Fatalf("once more it is placed otherwise (-first +second):\n%s", diff)
		}
	})
}
