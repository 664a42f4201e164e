package plan

import (
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
	// Purged is the greatest position of a purge that was carried out.
	Purged protocol.Position `cbor:"2,keyasint,omitzero"`
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
}

func (v RetainedVolume) volume() engine.Volume {
	return engine.Volume{Deployment: v.Deployment, Name: v.Name}
}

// VolumesInput is what Update decides upon.
type VolumesInput struct {
	// Desired may be nil: none was received.
	Desired *protocol.NodeDesired
	Records []Record
	// Present are the volumes on the node, and Observed its containers.
	Present  []engine.Volume
	Observed []engine.Status
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
// stores the result after it has removed what is to be removed.
func (v Volumes) Update(in VolumesInput) (next Volumes, remove []engine.Volume) {
	next.Purged = in.purgeable(v.Purged)
	for _, p := range in.Present {
		if in.used(p.Deployment) {
			continue
		}
		held := RetainedVolume{Deployment: p.Deployment, Name: p.Name, UnixMillis: in.UnixMillis, Unsynced: in.Unsynced}
		if i := slices.IndexFunc(v.Retained, func(r RetainedVolume) bool { return r.volume() == p }); i >= 0 {
			held = v.Retained[i]
			held.Counted += uint64(max(0, in.Elapsed/time.Second))
		}
		expired := in.Retention > 0 && held.Counted >= uint64(in.Retention/time.Second)
		if expired || in.asked(p, v.Purged, next.Purged) {
			remove = append(remove, p)
			continue
		}
		next.Retained = append(next.Retained, held)
	}
	return next, remove
}

func (in *VolumesInput) assigned(name protocol.DeploymentName) bool {
	return in.Desired != nil && AssignmentFor(in.Desired, name).Assignment != nil
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

// purgeable returns up to which position purges are carried out now; those up to done
// were before. One of a deployment that is still being removed waits for the end of that,
// and those after it wait with it: a position says of all up to it that they are done. One
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

// asked reports whether a person asked for the removal of a volume; purges up to done
// were carried out, and those up to now can be.
func (in *VolumesInput) asked(v engine.Volume, done, now protocol.Position) bool {
	if in.Desired == nil {
		return false
	}
	return slices.ContainsFunc(in.Desired.Removals, func(r protocol.NodeRemoval) bool {
		return r.Deployment == v.Deployment && r.Volumes
	}) || slices.ContainsFunc(in.Desired.Purges, func(p protocol.NodePurge) bool {
		return p.Deployment == v.Deployment && (p.Volume == "" || p.Volume == v.Name) && p.Site.After(done) && !p.Site.After(now)
	})
}
