package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

// demands are what versions ask for, by the digest of the same name.
type demands map[protocol.Digest]demand.Demand

func (d demands) of(digest protocol.Digest) demand.Demand { return d[digest] }

func published(host uint16) []protocol.Port { return []protocol.Port{{Container: 80, Host: host}} }

func entry(name string, replicas uint32) protocol.SiteEntry {
	return protocol.SiteEntry{
		Deployment: protocol.DeploymentName(name), Digest: protocol.Digest(name), Placement: protocol.Placement{Replicas: replicas},
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	asked := demands{
		"web": {NanoCPUs: 5e8, MemoryBytes: 6 << 30, Ports: published(8080)}, "big": {MemoryBytes: 4 << 30}, "busy": {NanoCPUs: 4e9},
		"port": {Ports: published(8080)}, "udp": {Ports: []protocol.Port{{Host: 8080, Protocol: "udp"}}}, "light": {},
	}
	with := func(names ...protocol.DeploymentName) func(*Node) {
		return func(n *Node) {
			n.Runs, n.Versions = names, map[protocol.DeploymentName]protocol.Digest{}
			for _, name := range names {
				n.Versions[name] = protocol.Digest(name)
			}
		}
	}
	for _, c := range []struct {
		name     string
		nodes    []Node
		want     []protocol.NodeID
		rejected map[protocol.NodeID]string // a part of the reason
		problem  string
	}{
		{name: "an empty node", nodes: []Node{node("a")}, want: []protocol.NodeID{"a"}},
		{
			name: "memory", nodes: []Node{node("a", with("big")), node("b", with("light"))}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "it reserves 6144.0 MiB of memory, and of the 8192.0 MiB of the node 4096.0 MiB are free"},
		},
		{
			name: "processors", nodes: []Node{node("a", with("busy"))},
			rejected: map[protocol.NodeID]string{"a": "it reserves 0.5 of a processor core, and of the 4 cores of the node 0 are free"},
			problem:  "not placeable: no node matches (a: it reserves 0.5 of a processor core, and of the 4 cores of the node 0 are free)",
		},
		{
			name: "a port", nodes: []Node{node("a", with("port")), node("b", with("udp"))}, want: []protocol.NodeID{"b"},
			rejected: map[protocol.NodeID]string{"a": "it publishes port 8080/tcp, which deployment port has on this node"},
		},
		{name: "what is not known is enough", nodes: []Node{node("a", unknown, with("big"))}, want: []protocol.NodeID{"a"}},
		{name: "a node keeps what it runs", nodes: []Node{node("a", with("big", "busy", "web"))}, want: []protocol.NodeID{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := Place(Input{Desired: []protocol.SiteEntry{entry("web", 0)}, Nodes: c.nodes, Demand: asked.of})["web"]
			if diff := cmp.Diff(c.want, r.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			contain(t, "rejected", rejected(r), c.rejected)
			if r.Problem != c.problem {
				t.Errorf("problem %q, want %q", r.Problem, c.problem)
			}
		})
	}
}

// TestPlacedInOnePass: what is placed first takes its share before the next is looked at.
func TestPlacedInOnePass(t *testing.T) {
	t.Parallel()
	asked := demands{"a": {MemoryBytes: 6 << 30}, "b": {MemoryBytes: 6 << 30}, "c": {MemoryBytes: 2 << 30}}
	p := Place(Input{Desired: []protocol.SiteEntry{entry("a", 0), entry("b", 0), entry("c", 0)}, Nodes: []Node{node("n")}, Demand: asked.of})
	if diff := cmp.Diff(map[protocol.DeploymentName]bool{"a": true, "c": true}, p.On("n")); diff != "" {
		t.Errorf("on the node (-want +got):\n%s", diff)
	}
}

// TestNeverOverCapacity places any deployments on any nodes, twice: what begins on a node fits beside the rest, no port is published
// twice, what runs stays, and the second time all is as it was.
func TestNeverOverCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		asked := demands{}
		var desired []protocol.SiteEntry
		for i := range rapid.IntRange(1, 8).Draw(t, "deployments") {
			e := entry(fmt.Sprint("d", i), rapid.Uint32Range(0, 3).Draw(t, "replicas"))
			asked[e.Digest] = demand.Demand{
				NanoCPUs: uint64(rapid.IntRange(0, 3).Draw(t, "cores")) * 1e9, MemoryBytes: uint64(rapid.IntRange(0, 5).Draw(t, "memory")) << 30,
				Ports: published(uint16(rapid.IntRange(1, 4).Draw(t, "port"))),
			}
			desired = append(desired, e)
		}
		var nodes []Node
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			nodes = append(nodes, node(fmt.Sprint("n", i)))
		}
		place := func() Placement { return Place(Input{Desired: desired, Nodes: nodes, Demand: asked.of}) }
		first := place()
		for i := range nodes {
			n := &nodes[i]
			var cpus, memory uint64
			ports := map[uint16]bool{}
			for name := range first.On(n.ID) {
				d := asked[protocol.Digest(name)]
				cpus, memory = cpus+d.NanoCPUs, memory+d.MemoryBytes
				if ports[d.Ports[0].Host] {
					t.Fatalf("port %d of node %s is published twice", d.Ports[0].Host, n.ID)
				}
				ports[d.Ports[0].Host] = true
				n.Runs = append(n.Runs, name)
			}
			slices.Sort(n.Runs)
			if cpus > uint64(n.Inventory.Cores)*1e9 || memory > n.Inventory.MemoryBytes {
				t.Fatalf("node %s: %d ns of %d cores, %d of %d bytes", n.ID, cpus, n.Inventory.Cores, memory, n.Inventory.MemoryBytes)
			}
		}
		for name, r := range place() {
			if diff := cmp.Diff(first[name].Nodes, r.Nodes); diff != "" {
				t.Fatalf("%s the second time (-first +second):\n%s", name, diff)
			}
		}
	})
}

// TestASmallChangeMovesLittle adds a deployment to a site, and then a node: nothing that runs leaves its node.
func TestASmallChangeMovesLittle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		asked := demands{}
		var desired []protocol.SiteEntry
		add := func(i int) {
			e := entry(fmt.Sprintf("d%02d", i), rapid.Uint32Range(1, 3).Draw(t, "replicas"))
			asked[e.Digest] = demand.Demand{MemoryBytes: uint64(rapid.IntRange(0, 4).Draw(t, "memory")) << 30}
			desired = append(desired, e)
		}
		for i := range rapid.IntRange(1, 8).Draw(t, "deployments") {
			add(i + 1)
		}
		var nodes []Node
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			nodes = append(nodes, node(fmt.Sprint("n", i)))
		}
		before := Place(Input{Desired: desired, Nodes: nodes, Demand: asked.of})
		for i := range nodes {
			nodes[i].Runs = slices.Sorted(maps.Keys(before.On(nodes[i].ID)))
		}
		add(rapid.SampledFrom([]int{0, 50}).Draw(t, "first or last"))
		if rapid.Bool().Draw(t, "a node more") {
			nodes = append(nodes, node("n9"))
		}
		after := Place(Input{Desired: desired, Nodes: nodes, Demand: asked.of})
		for name, r := range before {
			for _, id := range r.Nodes {
				if _, stays := slices.BinarySearch(after[name].Nodes, id); !stays {
					t.Fatalf("%s left node %s: %s", name, id, rejected(after[name])[id])
				}
			}
		}
	})
}
