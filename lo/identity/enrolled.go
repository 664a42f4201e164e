package identity

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// Enrolled reports whether a node has enrolled, or was taken as enrolled for its certificate.
func (m *Machines) Enrolled(n protocol.NodeID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.s.Nodes[n]
	return ok
}

// NotEnrolled returns those of some nodes that have not enrolled, in their order.
func (m *Machines) NotEnrolled(nodes []protocol.NodeID) []protocol.NodeID {
	return slices.DeleteFunc(slices.Clone(nodes), m.Enrolled)
}
