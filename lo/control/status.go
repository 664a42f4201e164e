package control

import (
	"cmp"

	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/protocol"
)

// Status returns all nodes in the order of their names. It waits for no disk.
func (s *Site) Status() []nodestatus.NodeStatus {
	out := []nodestatus.NodeStatus{}
	for _, n := range s.sorted() {
		st := nodestatus.Of(n.shown.Load(), n.beat.Load().at)
		gateways := protocol.NodeGateways{Gateways: s.names.Contested(n.id)}
		st.Reported = n.shownReported.Load()
		st.Problem = cmp.Or(gateways.Problem(), st.Problem)
		out = append(out, st)
	}
	return out
}

// Labels returns the labels of each node of the site, as its inventory has them. The caller must not change them. Labels
// does no I/O.
func (s *Site) Labels() map[protocol.NodeID]map[string]string {
	out := map[protocol.NodeID]map[string]string{}
	for _, n := range s.sorted() {
		out[n.id] = nil
		if inv := n.shown.Load().Inventory; inv != nil {
			out[n.id] = inv.Labels
		}
	}
	return out
}
