package placement

import (
	"fmt"
	"testing"

	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

// fleet is a site of many nodes and deployments: half of these run on all nodes of a line, of which there are ten, the others as three replicas. All
// is placed.
func fleet(nodes, deployments int) Input {
	in := Input{Demand: func(protocol.Digest) demand.Demand { return demand.Demand{MemoryBytes: 1 << 20} }}
	for i := range nodes {
		n := node(fmt.Sprintf("n%05d", i))
		n.Inventory = &protocol.Inventory{Labels: map[string]string{"line": fmt.Sprint(i % 10)}, Architecture: "amd64", Cores: 4, MemoryBytes: 8 << 30}
		in.Nodes = append(in.Nodes, n)
	}
	for i := range deployments {
		e := protocol.SiteEntry{Deployment: protocol.DeploymentName(fmt.Sprintf("d%03d", i)), Digest: protocol.Digest(fmt.Sprint(i))}
		if i%2 == 0 {
			e.Placement.Selector = map[string]string{"line": fmt.Sprint(i / 2 % 10)}
			e.Placement.Constraints = []byte(`{"capacityRequirements":{"cpu":{"architectures":["amd64"]},"memory":"1Gi"}}`)
		} else {
			e.Placement.Replicas = 3
		}
		in.Desired = append(in.Desired, e)
	}
	settle(&in, Place(in))
	return in
}

// settle has the nodes run what is placed on them.
func settle(in *Input, p Placement) {
	at := map[protocol.NodeID]*Node{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		n.Runs, n.Met = nil, map[protocol.DeploymentName]protocol.Digest{}
		at[n.ID] = n
	}
	for _, e := range in.Desired {
		for _, id := range p[e.Deployment].Nodes {
			at[id].Runs = append(at[id].Runs, e.Deployment)
			if len(e.Placement.Constraints) > 0 {
				at[id].Met[e.Deployment] = protocol.DigestOf(e.Placement.Constraints)
			}
		}
	}
}

// BenchmarkPlace places all of a site whose work is placed.
func BenchmarkPlace(b *testing.B) {
	for _, size := range [][2]int{{100, 200}, {1000, 20}, {1000, 200}, {10_000, 200}} {
		b.Run(fmt.Sprintf("nodes=%d/deployments=%d", size[0], size[1]), func(b *testing.B) {
			in := fleet(size[0], size[1])
			for b.Loop() {
				Place(in)
			}
		})
	}
}
