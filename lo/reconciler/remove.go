package reconciler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// leave leaves a deployment as it is that is neither desired here nor to be removed. One
// that the node does not hold ends.
func (s *step) leave(name protocol.DeploymentName) {
	d := s.r.Deployments[name]
	state := d.Status.State
	if d.Removing || d.Agent != "" || d.Assigned.Digest != "" || !s.r.Complete || state != lifecycle.Pending && state != lifecycle.Deleting {
		return
	}
	if state == lifecycle.Pending && !s.transition(name, protocol.DeploymentStatus{State: lifecycle.Deleting, Digest: d.Status.Digest}) {
		return
	}
	s.transition(name, protocol.DeploymentStatus{
		State: lifecycle.Deleted, Actor: lifecycle.EN, Digest: d.Status.Digest, Message: "the node does not hold it",
	})
}

// remove removes a deployment, by a tombstone or, where that is zero, because it is
// placed elsewhere. The node answers every removal, also that of what it does not hold.
func (s *step) remove(name protocol.DeploymentName, tombstone protocol.Removal) {
	d := s.r.Deployments[name]
	state := d.Status.State
	if state != lifecycle.Deleted && (d.Tombstone != tombstone.Position || d.Volumes != tombstone.Volumes) {
		d.Tombstone, d.Volumes, s.out.Changed = tombstone.Position, tombstone.Volumes, true
	}
	switch {
	case state == lifecycle.Deleted:
	case !d.Removing || state != lifecycle.Deleting && state != lifecycle.Failed:
		if !s.transition(name, protocol.DeploymentStatus{State: lifecycle.Deleting, Digest: d.Status.Digest}) {
			return
		}
		d.Removing, d.Due, d.Tries, d.RetryMillis = true, false, 0, 0
		d.SinceMillis = s.Now.UnixMilli() // also where the node had begun by itself
		d.Desired, d.Refused, d.Assigned = nodes.Desired{}, nodes.Refusal{}, nodes.Assignment{}
		s.fresh[name] = true
	}
}

// removal returns what the node is asked to remove, with the CO's statement that it follows
// from: the tombstone, or the entry of what is placed elsewhere.
func (s *step) removal(name protocol.DeploymentName, d *nodes.Deployment) protocol.NodeRemoval {
	r := protocol.NodeRemoval{Deployment: name, Site: d.Tombstone, Volumes: d.Volumes}
	if tombstone, ok := s.Removals[name]; ok && tombstone.Position == d.Tombstone {
		r.Signature = tombstone.Signature
	} else if entry, ok := s.Entries[name]; ok && d.Tombstone.IsZero() {
		r.Signature = s.statement(entry, entry.Digest)
	}
	return r
}

// statement returns what the CO signed of a version: that of the entry in force, or where the version
// is an earlier one, what was stored with it.
func (s *step) statement(e protocol.SiteEntry, version protocol.Digest) []byte {
	if e.Digest == version && len(e.Signature) > 0 {
		return e.Signature
	}
	spec, _ := s.Specs(version)
	return spec.Signature
}

// removeRest adds the tombstones of what the LO has no record of and the node has parts
// of: containers whose record the agent lost, or volumes that are to go as well.
func (s *step) removeRest(desired *protocol.NodeDesired) {
	if s.r.Inventory == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Removals)) {
		if state := s.r.State(name); state != "" && state != lifecycle.Deleted {
			continue
		}
		r := s.Removals[name]
		volumes := r.Volumes && slices.ContainsFunc(s.r.Inventory.Volumes, func(v protocol.Volume) bool { return v.Deployment == name })
		if volumes || slices.Contains(s.r.Inventory.Unknown, name) {
			desired.Removals = append(desired.Removals, protocol.NodeRemoval{Deployment: name, Site: r.Position, Volumes: r.Volumes, Signature: r.Signature})
		}
	}
	slices.SortFunc(desired.Removals, func(a, b protocol.NodeRemoval) int { return cmp.Compare(a.Deployment, b.Deployment) })
}
