package placement

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// Known is what was known of the nodes when a placement was decided. A report that arrives
// later counts for the next placement only.
type Known struct {
	// Reported are the nodes that had reported everything that they run.
	Reported map[protocol.NodeID]bool
	// Certain are the deployments that may be removed from other nodes: all nodes that they
	// are placed on had reported; a deployment that is placed on none needs the reports of
	// all nodes that the LO still waits for.
	Certain map[protocol.DeploymentName]bool
}

// KnownOf returns what was known for a placement that was decided upon nodes. Once it is
// settled, a node that is offline, and may never come back, holds up no removal from others.
func KnownOf(p Placement, nodes []Node, unsettled bool) Known {
	k := Known{Reported: map[protocol.NodeID]bool{}, Certain: map[protocol.DeploymentName]bool{}}
	all := true
	for _, n := range nodes {
		k.Reported[n.ID] = !n.Unreported
		all = all && (!n.Unreported || !n.Online && !unsettled)
	}
	for name, r := range p {
		if len(r.Nodes) == 0 && all || len(r.Nodes) > 0 && !slices.ContainsFunc(r.Nodes, func(id protocol.NodeID) bool { return !k.Reported[id] }) {
			k.Certain[name] = true
		}
	}
	return k
}
