package placement

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// Nowhere returns why none of a site's nodes would run a deployment, were all of them online and none restricted: a node that is
// away comes back, and a restriction ends. "": one would.
func Nowhere(e protocol.SiteEntry, nodes []Node) string {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].Online, nodes[i].Restricted = true, Restricted{}
	}
	r := Place(Input{Desired: []protocol.SiteEntry{e}, Nodes: nodes})[e.Deployment]
	if len(r.Nodes) > 0 {
		return ""
	}
	return r.Problem
}

// RestrictedBy returns what the restrictions in force on a node mean for the scheduler.
func RestrictedBy(in ...restriction.Restriction) (r Restricted) {
	for i := range in {
		why := in[i].String()
		switch in[i].Kind {
		case restriction.Cordon:
			r.Closed = why
		case restriction.Drain:
			r.Closed, r.Drained, r.Forced = why, why, in[i].Force
		case restriction.Hold:
			r.Held = why
			if r.Closed == "" {
				r.Closed = why
			}
		}
	}
	return r
}
