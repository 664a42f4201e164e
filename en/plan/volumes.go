package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// Volumes is what the node keeps on disk of the volumes that outlived their deployments.
type Volumes struct {
	// Retained are sorted by deployment and name.
	Retained []RetainedVolume `cbor:"1,keyasint,omitempty"`
	// Purged is the greatest position up to which all purges were carried out, and Done are those after it that were, or are void, while
	// one before them waits or could not be.
	Purged protocol.Position    `cbor:"2,keyasint,omitzero"`
	Done   []protocol.NodePurge `cbor:"3,keyasint,omitempty"`
}

// A RetainedVolume is a volume of a deployment that was removed.
type RetainedVolume struct {
	Deployment protocol.DeploymentName `cbor:"1,keyasint"`
	Name       string                  `cbor:"2,keyasint"`
	// Bytes is its size when it was retained. Nothing has written to it since.
	Bytes uint64 `cbor:"3,keyasint,omitempty"`
	// UnixMillis is when it was retained, by the node's clock: a label for people.
	UnixMillis int64 `cbor:"4,keyasint,omitempty"`
	// Counted is for how long it has been retained while the agent ran, in seconds. It is
	// counted by the monotonic clock: no clock that is set shortens the retention.
	Counted uint64 `cbor:"5,keyasint,omitempty"`
	// Unsynced says that the clock of UnixMillis was not synchronised.
	Unsynced bool `cbor:"6,keyasint,omitempty"`
	// Site is what the node had followed of the deployment when the volume was looked at last: it is known so where the record
	// of that is lost. Absent: not known.
	Site protocol.Position `cbor:"7,keyasint,omitzero"`
}

// Volume is its name to the engine.
func (v RetainedVolume) Volume() engine.Volume {
	return engine.Volume{Deployment: v.Deployment, Name: v.Name}
}

// VolumesInput is what Update decides upon.
type VolumesInput struct {
	// Desired is what is obeyed, without tombstones and purges of before what the node has followed. It may be nil: none was received.
	Desired *protocol.NodeDesired
	Records []Record
	// Present are the volumes on the node, and Observed its containers.
	Present  []engine.Volume
	Observed []engine.Status
	// Followed is the greatest position of a deployment that the node has followed. Nil: none is known.
	Followed func(name protocol.DeploymentName) protocol.Position
	// Elapsed is the time since the Update before, by the monotonic clock.
	Elapsed time.Duration
	// Retention is how long a volume outlives its deployment; 0: for ever.
	Retention  time.Duration
	UnixMillis int64
	Unsynced   bool // the clock of UnixMillis is not synchronised
}

// Update returns which volumes are retained now and which of them are to be removed: by a
// tombstone with Volumes, by a purge, or as their retention ends. A volume of a deployment
// that the node holds, is assigned, or has containers of, is never among them. The caller
// stores the result after it has removed what is to be removed; what it could not remove it
// gives to Keep first.
func (v Volumes) Update(in VolumesInput) (next Volumes, remove []RetainedVolume) {
	next.Purged = in.purgeable(v.Purged)
	due := in.due(v, next.Purged)
	next.Done = slices.DeleteFunc(slices.Concat(v.Done, in.void(v)), func(p protocol.NodePurge) bool { return !p.Site.After(next.Purged) })
	for _, p := range in.Present {
		i := slices.IndexFunc(v.Retained, func(r RetainedVolume) bool { return r.Volume() == p })
		if in.used(p.Deployment) {
			if i >= 0 && in.removing(p.Deployment) { // of what was removed before: it is retained all the same
				next.Retained = append(next.Retained, v.Retained[i])
			}
			continue
		}
		held := RetainedVolume{Deployment: p.Deployment, Name: p.Name, UnixMillis: in.UnixMillis, Unsynced: in.Unsynced}
		if i >= 0 {
			held = v.Retained[i]
			held.Counted += uint64(max(0, in.Elapsed/time.Second))
		}
		if in.Followed != nil {
			if at := in.Followed(p.Deployment); at.After(held.Site) {
				held.Site = at
			}
		}
		expired := in.Retention > 0 && held.Counted >= uint64(in.Retention/time.Second)
		if expired || in.asked(p, due) {
			remove = append(remove, held)
			continue
		}
		next.Retained = append(next.Retained, held)
	}
	return next, remove
}

// Keep returns next, as Update gave it, with the volumes that could not be removed: they stay
// retained, and what asked for their removal is carried out once more. Purges of others are not.
func (v Volumes) Keep(in VolumesInput, next Volumes, failed []RetainedVolume) Volumes {
	if len(failed) == 0 {
		return next
	}
	next.Done = slices.Concat(v.Done, in.void(v))
	for _, p := range in.due(v, next.Purged) {
		if !slices.ContainsFunc(failed, func(f RetainedVolume) bool { return purges(p, f.Volume()) }) {
			next.Done = append(next.Done, protocol.NodePurge{Deployment: p.Deployment, Volume: p.Volume, Site: p.Site})
		}
	}
	next.Purged = v.Purged
	next.Retained = slices.Concat(next.Retained, failed)
	slices.SortFunc(next.Retained, func(a, b RetainedVolume) int {
		return cmp.Or(cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Name, b.Name))
	})
	return next
}

func (in *VolumesInput) assigned(name protocol.DeploymentName) bool {
	return in.Desired != nil && AssignmentFor(in.Desired, name).Assignment != nil
}

// removing reports whether a deployment is being removed that is not assigned and has no containers.
func (in *VolumesInput) removing(name protocol.DeploymentName) bool {
	return !in.assigned(name) && !slices.ContainsFunc(in.Observed, func(s engine.Status) bool { return s.ID.Deployment == name }) &&
		slices.ContainsFunc(in.Records, func(r Record) bool { return r.Deployment == name && r.State == lifecycle.Deleting })
}

// used reports whether a deployment may still need its volumes.
func (in *VolumesInput) used(name protocol.DeploymentName) bool {
	if in.assigned(name) {
		return true
	}
	if slices.ContainsFunc(in.Observed, func(s engine.Status) bool { return s.ID.Deployment == name }) {
		return true
	}
	return slices.ContainsFunc(in.Records, func(r Record) bool { return r.Deployment == name && r.State != lifecycle.Deleted })
}

// Unused returns those of the deployments of which the node has neither a record nor an assignment, a container or a volume.
func (in *VolumesInput) Unused(names []protocol.DeploymentName) []protocol.DeploymentName {
	return slices.DeleteFunc(names, func(name protocol.DeploymentName) bool {
		return in.used(name) || slices.ContainsFunc(in.Records, func(r Record) bool { return r.Deployment == name }) ||
			slices.ContainsFunc(in.Present, func(v engine.Volume) bool { return v.Deployment == name })
	})
}

// purgeable returns the position up to which purges are carried out now; purges up to done were
// carried out before. A purge of a deployment that is still being removed waits for the end of the
// removal, and all later purges wait with it, since a position covers all purges up to it. A purge
// of a deployment that is assigned is void.
func (in *VolumesInput) purgeable(done protocol.Position) protocol.Position {
	if in.Desired == nil {
		return done
	}
	purges := slices.DeleteFunc(slices.Clone(in.Desired.Purges), func(p protocol.NodePurge) bool { return !p.Site.After(done) })
	waits := slices.DeleteFunc(slices.Clone(purges), func(p protocol.NodePurge) bool {
		return in.assigned(p.Deployment) || !in.used(p.Deployment)
	})
	for _, p := range purges {
		early := !slices.ContainsFunc(waits, func(w protocol.NodePurge) bool { return !w.Site.After(p.Site) })
		if early && p.Site.After(done) {
			done = p.Site
		}
	}
	return done
}

// void returns the purges of deployments that are assigned, which end thereby: what the deployment leaves behind later is other data.
func (in *VolumesInput) void(v Volumes) (list []protocol.NodePurge) {
	if in.Desired == nil {
		return nil
	}
	for _, p := range in.Desired.Purges {
		if in.assigned(p.Deployment) && p.Site.After(v.Purged) && !v.done(p) {
			list = append(list, protocol.NodePurge{Deployment: p.Deployment, Volume: p.Volume, Site: p.Site})
		}
	}
	return list
}

// done reports whether a purge after Purged was carried out, or is void.
func (v Volumes) done(p protocol.NodePurge) bool {
	return slices.ContainsFunc(v.Done, func(d protocol.NodePurge) bool {
		return d.Deployment == p.Deployment && d.Volume == p.Volume && d.Site == p.Site
	})
}

// due returns the purges that are carried out now: those after what was, up to a position.
func (in *VolumesInput) due(v Volumes, now protocol.Position) (list []protocol.NodePurge) {
	if in.Desired == nil {
		return nil
	}
	for _, p := range in.Desired.Purges {
		if !v.done(p) && p.Site.After(v.Purged) && !p.Site.After(now) {
			list = append(list, p)
		}
	}
	return list
}

// purges reports whether a purge is about a volume.
func purges(p protocol.NodePurge, v engine.Volume) bool {
	return p.Deployment == v.Deployment && (p.Volume == "" || p.Volume == v.Name)
}

// asked reports whether a person asked for the removal of a volume, by a tombstone or by one of the purges that are due.
func (in *VolumesInput) asked(v engine.Volume, due []protocol.NodePurge) bool {
	return in.Desired != nil && slices.ContainsFunc(in.Desired.Removals, func(r protocol.NodeRemoval) bool {
		return r.Deployment == v.Deployment && r.Volumes
	}) || slices.ContainsFunc(due, func(p protocol.NodePurge) bool { return purges(p, v) })
}
