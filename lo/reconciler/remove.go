package reconciler

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// leave leaves a deployment as it is that is neither desired here nor to be removed. One
// that the node does not hold ends.
func (s *step) leave(name protocol.DeploymentName) {
	if s.absent(name) {
		s.end(name)
	}
}

// absent reports whether the node does not hold a deployment, as its report of everything says, and was not assigned it since.
func (s *step) absent(name protocol.DeploymentName) bool {
	d := s.r.Deployments[name]
	state := d.Status.State
	return s.r.Complete && !d.Removing && d.Agent == "" && d.Assigned.Digest == "" && (state == lifecycle.Pending || state == lifecycle.Deleting)
}

// end ends a deployment that is absent.
func (s *step) end(name protocol.DeploymentName) {
	d := s.r.Deployments[name]
	if d.Status.State == lifecycle.Pending && !s.transition(name, protocol.DeploymentStatus{State: lifecycle.Deleting, Digest: d.Status.Digest}) {
		return
	}
	s.transition(name, protocol.DeploymentStatus{
		State: lifecycle.Deleted, Actor: lifecycle.EN, Digest: d.Status.Digest, Message: "the node does not hold it",
	})
}

// later reports whether the node was assigned a deployment that the CO desired later than a tombstone: a CO whose database
// was restored says that again, of what was there before.
func (s *step) later(name protocol.DeploymentName, tombstone protocol.Removal) bool {
	d := s.r.Deployments[name]
	switch d.Status.State {
	case lifecycle.Deleting, lifecycle.Deleted:
		return false
	case lifecycle.Pending, lifecycle.Installing, lifecycle.Installed, lifecycle.Updating, lifecycle.Failed, lifecycle.RollingBack:
	}
	return !d.Removing && s.desiredAt(name).After(tombstone.Position)
}

// desiredAt is when the CO desired what the node has, or had, of a deployment, as the LO assigned it, or as the node has said at any time. A record of an
// earlier release has no more than the last of both.
func (s *step) desiredAt(name protocol.DeploymentName) protocol.Position {
	d := s.r.Deployments[name]
	if d == nil {
		return protocol.Position{}
	}
	return slices.MaxFunc([]protocol.Position{d.Followed, d.Status.Site, d.Assigned.Site}, protocol.Position.Compare)
}

// noteStale notes which tombstones there are where the LO has no memory of what it decided about the node: it was lost, or the node has gone on without it.
func (s *step) noteStale() {
	if s.r.Fingerprint != "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Removals)) {
		if t := s.Removals[name]; t.Position.After(s.r.Stale) {
			s.r.Stale, s.out.Changed = t.Position, true
		}
	}
}

// stale reports whether a tombstone may be of before what the node has of a deployment without a record.
func (s *step) stale(tombstone protocol.Removal) bool {
	return !tombstone.Position.After(s.r.Stale) || s.desiredAt(tombstone.Deployment).After(tombstone.Position)
}

// remove removes a deployment, by a tombstone or, where that is zero, because it is
// placed elsewhere. The node answers every removal, also that of a deployment that it does not hold, except where the tombstone is
// older than the position that the node has followed for that deployment. Only the node knows that position for a deployment that it
// no longer holds: the LO therefore ends the removal itself, and removeRest removes containers without a record. A removal whose
// tombstone may be stale ends as well.
func (s *step) remove(name protocol.DeploymentName, tombstone protocol.Removal) {
	if s.absent(name) && !tombstone.Position.IsZero() && (s.Follows.After(tombstone.Position) || s.stale(tombstone)) {
		s.end(name)
		return
	}
	d := s.r.Deployments[name]
	state := d.Status.State
	if d.Removing && d.Tombstone.After(tombstone.Position) {
		return // the one that is carried out is later: this one is of a CO whose database was restored
	}
	if state != lifecycle.Deleted && (d.Tombstone != tombstone.Position || d.Volumes != tombstone.Volumes || !bytes.Equal(d.Statement, tombstone.Signature)) {
		d.Tombstone, d.Volumes, d.Statement, s.out.Changed = tombstone.Position, tombstone.Volumes, tombstone.Signature, true
	}
	switch {
	case state == lifecycle.Deleted:
	case !d.Removing || state != lifecycle.Deleting && state != lifecycle.Failed:
		if !s.transition(name, protocol.DeploymentStatus{State: lifecycle.Deleting, Digest: d.Status.Digest}) {
			return
		}
		d.Removing, d.Due, d.Tries, d.RetryMillis = true, false, 0, 0
		d.SinceMillis = s.Now.UnixMilli() // also where the node had begun by itself
		d.Follow(d.Assigned.Site)
		d.Desired, d.Refused, d.Assigned = nodes.Desired{}, nodes.Refusal{}, nodes.Assignment{}
		s.fresh[name] = true
	}
}

// removal returns what the node is asked to remove, with the CO's statement that it follows
// from: the tombstone, or the entry of what is placed elsewhere.
func (s *step) removal(name protocol.DeploymentName, d *nodes.Deployment) protocol.NodeRemoval {
	r := protocol.NodeRemoval{Deployment: name, Site: d.Tombstone, Volumes: d.Volumes, Signature: d.Statement}
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
// of: containers whose record the agent lost, or volumes that are to go as well. One that may be stale waits until it is asked for
// once more.
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
		switch {
		case !volumes && !slices.Contains(s.r.Inventory.Unknown, name):
		case s.stale(r):
			what, remedy := "what the node has of it without a record", "delete the deployment once more, or deploy it"
			if !slices.Contains(s.r.Inventory.Unknown, name) {
				what, remedy = "the volumes that the node keeps of it", "purge the volumes that colony volume list shows, or deploy it"
			}
			s.wait(name, fmt.Sprintf("its removal is of %s, and %s may be of later: records of what was assigned to the node were lost; %s", r.Position, what, remedy))
		default:
			desired.Removals = append(desired.Removals, protocol.NodeRemoval{Deployment: name, Site: r.Position, Volumes: r.Volumes, Signature: r.Signature})
		}
	}
	slices.SortFunc(desired.Removals, func(a, b protocol.NodeRemoval) int { return cmp.Compare(a.Deployment, b.Deployment) })
}
