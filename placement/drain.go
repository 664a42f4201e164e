package placement

import (
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// stays returns why a deployment stays on a node that is drained; "": it moves where it can.
func (p *pass) stays(e *protocol.SiteEntry, n *Node) string {
	switch {
	case e.Placement.Node != "":
		return "it is for this node by its name"
	case e.Placement.Replicas == 0:
		return "it is for every node that matches, and not for a number of them"
	case n.Unreported:
		return "the node has not reported yet what it runs"
	case n.Restricted.Forced:
		return ""
	}
	d := p.asked[e.Deployment]
	switch {
	case len(d.Volumes) > 0:
		return "its data is in volumes of the node (" + strings.Join(d.Volumes, ", ") + "), which would stay behind"
	case len(d.Devices) > 0:
		return "it uses devices of the node (" + strings.Join(d.Devices, ", ") + ")"
	}
	return ""
}

// stay notes why a deployment stays on a node that is drained.
func (r *Result) stay(n *Node, why string) {
	if r.Stays == nil {
		r.Stays = map[protocol.NodeID]string{}
	}
	r.Stays[n.ID] = why
}

// drain returns the nodes that run a deployment, of those that were chosen and those that it is to leave: it leaves as many as are
// replaced.
func (p *pass) drain(e *protocol.SiteEntry, chosen, leave []int, r *Result) []int {
	for at, i := range leave {
		if missing := int(e.Placement.Replicas) - len(chosen); missing > 0 {
			r.stay(p.nodes[i], "no other node can run it"+because(r.Rejected))
			chosen = append(chosen, i)
			continue
		}
		for _, i := range leave[at:] {
			r.reject(p.nodes[i], "the node is "+p.nodes[i].Restricted.Drained)
			r.Leaves = append(r.Leaves, p.nodes[i].ID)
		}
		break
	}
	return chosen
}
