package proposal

import (
	"bytes"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// SameNodes reports whether two placements match the same nodes, for any number of replicas.
func SameNodes(a, b protocol.Placement) bool {
	return a.Node == b.Node && maps.Equal(a.Selector, b.Selector) && bytes.Equal(a.Constraints, b.Constraints)
}

// Stranded reports whether a deployment that nodes of a site run would run on none of them as an entry says. Such a change waits.
func Stranded(name protocol.DeploymentName, e protocol.SiteEntry, nodes []placement.Node) bool {
	e.Deployment = name
	runs := slices.ContainsFunc(nodes, func(n placement.Node) bool { return slices.Contains(n.Runs, name) })
	return runs && placement.Nowhere(e, nodes) != ""
}
