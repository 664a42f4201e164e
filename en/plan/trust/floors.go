package trust

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// A Floor is what a node remembers of a deployment, also once that is removed.
type Floor struct {
	Deployment protocol.DeploymentName `cbor:"1,keyasint"`
	// Position is the greatest one that was followed of what the CO signed. Absent: the node had no root key.
	Position protocol.Position `cbor:"2,keyasint,omitzero"`
	// Claimed is the greatest one that was followed on the LO's word. Removals and purges go by it, too. Absent: the node
	// had a root key.
	Claimed protocol.Position `cbor:"4,keyasint,omitzero"`
	// Earlier are versions that were INSTALLED here, the last one first, since the deployment
	// was removed last.
	Earlier []protocol.Digest `cbor:"3,keyasint,omitempty"`
}

// last is the greatest position that was followed.
func (f Floor) last() protocol.Position {
	if f.Claimed.After(f.Position) {
		return f.Claimed
	}
	return f.Position
}

// Followed is the greatest position of what was followed, also of deployments that were removed
// since; zero: nothing was.
func (c *Checker) Followed() protocol.Position {
	var last protocol.Position
	for _, f := range c.floors {
		if f.last().After(last) {
			last = f.last()
		}
	}
	return last
}

// FollowedOf is the greatest position that was followed of a deployment; zero: nothing was, or it is not known.
func (c *Checker) FollowedOf(name protocol.DeploymentName) protocol.Position {
	return c.floors[name].last()
}

// Retain says which volumes outlived their deployments. The node remembers that it has followed those up to the positions that they have: the State
// may have been lost since. Past the bound of floors, theirs stay.
func (c *Checker) Retain(volumes []plan.RetainedVolume) {
	clear(c.retained)
	for _, v := range volumes {
		c.retained[v.Deployment] = true
		c.claim(v.Deployment, v.Site)
	}
}

// Observe says which containers the node has, and up to where it says that it has followed deployments. It has followed what the containers were
// made for, also where the State is of before that. It reports whether that is later than what was known.
func (c *Checker) Observe(list []engine.Status, followed map[protocol.DeploymentName]protocol.Position) (later bool) {
	for _, s := range list {
		later = c.claim(s.ID.Deployment, s.Site) || later
	}
	for _, name := range slices.Sorted(maps.Keys(followed)) {
		later = c.claim(name, followed[name]) || later
	}
	return later
}

// claim remembers that a position of a deployment was followed, and reports whether it is later than what was known.
func (c *Checker) claim(name protocol.DeploymentName, at protocol.Position) (later bool) {
	f := c.floors[name]
	if !at.After(f.last()) {
		return false
	}
	f.Deployment, f.Claimed = name, at
	c.floors[name] = f
	return true
}

// Settle has the removals and purges of a NodeDesired that was adopted count as done, where nothing was stored of what was followed: the State was lost,
// and which of them are of before is not known. The record of a removal that has begun says so by itself; one that had not is asked for once more.
func (c *Checker) Settle(d *protocol.NodeDesired) {
	if c.stored {
		return
	}
	after := func(name protocol.DeploymentName, at protocol.Position) {
		f := c.floors[name]
		if at.IsZero() || f.Claimed.After(at) {
			return
		}
		f.Deployment, f.Claimed = name, protocol.Position{Epoch: at.Epoch, Generation: at.Generation + 1}
		c.floors[name] = f
	}
	for _, r := range d.Removals {
		after(r.Deployment, r.Site)
	}
	for _, p := range d.Purges {
		after(p.Deployment, p.Site)
	}
}

// state returns what must survive.
func (k *check) state() State {
	s := State{KeySet: k.keySet, Site: k.node.Site, LOSigns: k.loSigns}
	if !k.unverified {
		s.KeySet = k.trust.KeySet()
	}
	for _, f := range k.floors {
		s.Floors = append(s.Floors, f)
	}
	if len(s.Floors) > maxFloors {
		goes := func(f Floor) int {
			if _, recorded := k.records[f.Deployment]; recorded || k.retained[f.Deployment] {
				return 0
			}
			return 1
		}
		slices.SortFunc(s.Floors, func(a, b Floor) int { return cmp.Or(goes(a)-goes(b), b.last().Compare(a.last())) })
		s.Floors = s.Floors[:maxFloors]
	}
	slices.SortFunc(s.Floors, func(a, b Floor) int { return strings.Compare(string(a.Deployment), string(b.Deployment)) })
	return s
}
