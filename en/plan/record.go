// Package plan decides what a node does: it compares what should run with the
// node's own records and with the containers there are, and says what to do. It
// is pure: state and time come in, actions go out, and package agent
// performs them. Next and Plan decide about whole deployments; a Watch decides
// about the containers of one version, while it is installed and afterwards.
package plan

import (
	"hash/fnv"
	"slices"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Record is what the node keeps on disk of one deployment. It is written
// before the side effect that it speaks of, so that a crash at any moment leaves
// either nothing done, or something done that is done again because of the record.
type Record struct {
	Deployment protocol.DeploymentName `cbor:"1,keyasint"`
	State      lifecycle.State         `cbor:"2,keyasint"`

	// Digest and Spec are the version that State speaks of. Spec is nil if the
	// version was refused unread.
	Digest  protocol.Digest `cbor:"3,keyasint,omitempty"`
	Spec    []byte          `cbor:"4,keyasint,omitempty"`
	Attempt uint32          `cbor:"5,keyasint,omitempty"` // at this version, from 1

	// Rollback says that Digest was assigned as a return to an earlier version.
	Rollback bool `cbor:"6,keyasint,omitempty"`

	// Active is the version whose containers should be running now. It is the old
	// one until an update has pulled all it needs, and empty from then until the
	// new one is INSTALLED. Where the update fails it is the old one again.
	Active     protocol.Digest `cbor:"7,keyasint,omitempty"`
	ActiveSpec []byte          `cbor:"8,keyasint,omitempty"` // encoded spec of the Active version; absent: none

	Fallback

	// Refused is the version given up for the present one, with Code and Message
	// of its failure. In FAILED, Code and Message are those of Digest; once it has
	// recovered there are none.
	Refused protocol.Digest `cbor:"11,keyasint,omitempty"`
	Code    protocol.Code   `cbor:"12,keyasint,omitempty"`
	Message string          `cbor:"13,keyasint,omitempty"`

	// Position is that of the NodeDesired that was last acted on, and Site the position of
	// the site's desired state that this part of it follows from. Keys 14 and 15 were a
	// generation and a textual epoch.
	Position protocol.Position `cbor:"19,keyasint,omitzero"`
	Site     protocol.Position `cbor:"20,keyasint,omitzero"`

	// Volumes says, in DELETING, that the volumes are removed too.
	Volumes bool `cbor:"21,keyasint,omitempty"`

	// Reports are the moves that the LO has not acknowledged, oldest first.
	Reports []protocol.DeploymentStatus `cbor:"16,keyasint,omitempty"`

	// MinHealthyMillis is the minimum time of the policy; 0: that of the Limits.
	MinHealthyMillis uint32 `cbor:"22,keyasint,omitempty"`

	// NoRollback is that of the policy: the former version does not run again by itself.
	NoRollback bool `cbor:"24,keyasint,omitempty"`

	// Ending are the runs of containers that a restart on request ends. They are written down before it does, and stay until all of
	// them are followed by another run: the exit of such a run is no crash, also where the agent that stopped it is killed meanwhile.
	Ending []Run `cbor:"26,keyasint,omitempty"`

	// Unseen says that the deployment was begun without a record of before, and that it is not known yet what the node has of it.
	Unseen bool `cbor:"27,keyasint,omitempty"`
}

// A Fallback is what a Record holds of the version that was healthy last.
type Fallback struct {
	// Healthy is the last version that was INSTALLED, HealthyImages its images and
	// HealthyContainers the identities of its containers. Both stay on the node, where
	// they are there, in case it is to return.
	Healthy           protocol.Digest   `cbor:"9,keyasint,omitempty"`
	HealthyImages     []string          `cbor:"10,keyasint,omitempty"`
	HealthyContainers []protocol.Digest `cbor:"17,keyasint,omitempty"`

	// Proven is the version that was up for the minimum time last (see
	// Limits.MinHealthy). A later failure of it is reported, and ends nothing.
	Proven protocol.Digest `cbor:"18,keyasint,omitempty"`

	// Presumed says that Proven was found without a record, and did not work since: it may have been up, or not.
	Presumed bool `cbor:"28,keyasint,omitempty"`

	// FormerSpec is the spec of Healthy from the moment when that gave way to an update
	// until the update is INSTALLED or has failed: what runs again if it fails.
	FormerSpec []byte `cbor:"23,keyasint,omitempty"`

	// EarlierSpec is what FormerSpec was, from the moment when the update is INSTALLED
	// until it is proven or has failed: what runs again if it fails. Healthy is the update
	// then.
	EarlierSpec []byte `cbor:"25,keyasint,omitempty"`
}

// Clone returns a copy whose slices may be appended to. The contents of specs and reports are
// shared; they must not be changed.
func (r Record) Clone() Record {
	r.Reports = slices.Clone(r.Reports)
	return r
}

// Report returns a report of the record as it stands. The caller fills in what
// the node knows: Node, Agent, Boot, Seq and the time.
func (r *Record) Report(from lifecycle.State) protocol.DeploymentStatus {
	m := protocol.DeploymentStatus{
		V: protocol.Version, Deployment: r.Deployment, Position: r.Position, Site: r.Site,
		From: from, State: r.State, Actor: lifecycle.EN,
		Digest: r.Digest, Attempt: r.Attempt, Refused: r.Refused,
	}
	m.Recovering = r.Recovers()
	m.Presumed = m.Recovering && r.Presumed
	if r.State == lifecycle.Failed || r.State == lifecycle.Installed {
		m.Code, m.Message = r.Code, r.Message
	}
	if spec, err := Decode(r.Spec); err == nil {
		m.App, m.AppVersion = spec.App, spec.AppVersion
	}
	if active, err := Decode(r.ActiveSpec); err == nil && r.keepsUp() {
		m.Running, m.RunningVersion = r.Active, active.AppVersion
	}
	return m
}

// keepsUp reports whether the agent keeps the Active version up although the state is not
// INSTALLED.
func (r *Record) keepsUp() bool {
	switch r.State {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack, lifecycle.Failed:
		return r.Active != ""
	case lifecycle.Pending, lifecycle.Installed, lifecycle.Deleting, lifecycle.Deleted:
	}
	return false
}

// Installed returns the record after its version came up healthy. The version before it stays
// available for a rollback until the new one is proven, unless the new one is itself that rollback.
func (r Record) Installed() Record {
	former := r.FormerSpec
	r.FormerSpec, r.EarlierSpec = nil, nil
	if r.State == lifecycle.Updating && r.Proven != r.Digest && r.Healthy != r.Digest {
		r.EarlierSpec = former
	}
	r.State = lifecycle.Installed
	r.Active, r.ActiveSpec = r.Digest, r.Spec
	r.Presumed = r.Presumed && r.Proven != r.Digest
	r = r.healthy(r.Digest, r.Spec)
	if r.Refused == "" {
		r.Code, r.Message = "", ""
	}
	return r
}

// healthy makes a version the one that was healthy last.
func (r Record) healthy(d protocol.Digest, spec []byte) Record {
	r.Healthy, r.HealthyImages, r.HealthyContainers = d, Images(spec), identitiesOf(spec)
	return r
}

// HasProven returns the record after its version was up for the minimum time.
func (r Record) HasProven() Record {
	r.Proven, r.Presumed, r.EarlierSpec = r.Digest, false, nil
	return r
}

// Seen returns the record once the node's containers are known. Where there are some of its version although nothing was on record, the record
// of before was lost or damaged: the version counts as proven, because it may have been, and what was once proven is not given up. Until it works
// that is presumed: the LO may know better.
func (r Record) Seen(observed []engine.Status) Record {
	if !r.Unseen {
		return r
	}
	r.Unseen = false
	for _, id := range identitiesOf(r.Spec) {
		if slices.ContainsFunc(observed, func(s engine.Status) bool { return s.ID.Deployment == r.Deployment && s.Digest == id }) {
			r = r.healthy(r.Digest, r.Spec).HasProven()
			r.Presumed = true
			if r.Recovers() { // it has failed meanwhile
				r.Active, r.ActiveSpec = r.Digest, r.Spec
			}
			break
		}
	}
	return r
}

// Recovered returns the record of a version that recovered by itself. What was given up for it stays so: an LO that has lost its own record
// knows it from here alone.
func (r Record) Recovered() Record {
	r.Code, r.Message = "", "" // those of the refused version gave way to those of the failure; the LO knows them
	return r.Installed()
}

// Recovers reports whether the version has failed and is being brought up again
// by the node: it was proven before.
func (r *Record) Recovers() bool {
	return r.State == lifecycle.Failed && r.Proven != "" && r.Proven == r.Digest && len(r.Spec) > 0
}

// Failed returns the record after a failure of its version. If an update fails before it is
// INSTALLED, or before it is proven, the version before it is Active again until the next attempt
// can start.
func (r Record) Failed(f Failure) Record {
	update := r.State == lifecycle.Updating
	former, earlier := r.FormerSpec, r.EarlierSpec
	r.State, r.Code, r.Message, r.FormerSpec, r.EarlierSpec = lifecycle.Failed, f.Code, f.Message, nil, nil
	switch {
	case r.Recovers():
		r.Active, r.ActiveSpec = r.Digest, r.Spec
	case r.Active == r.Digest && len(earlier) > 0 && !r.NoRollback:
		r.Active, r.ActiveSpec = protocol.DigestOf(earlier), earlier
		r = r.healthy(r.Active, earlier)
	case r.Active == r.Digest:
		r.Active, r.ActiveSpec = "", nil
	case update && r.Active == "" && len(former) > 0 && r.Healthy != r.Digest && !r.NoRollback:
		r.Active, r.ActiveSpec = r.Healthy, former
	}
	return r
}

// Stranger reports whether the record is only of a refusal: the node never held the deployment, or
// not since it was removed, and was assigned a version of it that the CO did not sign.
func (r *Record) Stranger() bool {
	return r.State == lifecycle.Failed && r.Code == protocol.SignatureInvalid && r.Site.IsZero() &&
		len(r.Spec) == 0 && r.Active == "" && r.Healthy == ""
}

// StaysUp returns what is to run in FAILED: the active version, or what a failed
// update has in common with the version before it. The result
// may have no components.
func (r *Record) StaysUp() *protocol.DeploymentSpec {
	if active, err := Decode(r.ActiveSpec); err == nil && r.Active != "" {
		return active
	}
	failed, err := Decode(r.Spec)
	if err != nil || r.Healthy == r.Digest {
		return &protocol.DeploymentSpec{Deployment: r.Deployment}
	}
	return Only(failed, r.HealthyContainers)
}

// CutOver returns the record at the moment when the old version gives way.
func (r Record) CutOver() Record {
	if r.Active != "" && r.Active == r.Healthy {
		r.FormerSpec = r.ActiveSpec
	}
	r.Active, r.ActiveSpec = "", nil
	return r
}

// Deleted returns the record once nothing of the deployment is left.
func (r Record) Deleted() Record {
	return Record{
		Deployment: r.Deployment, State: lifecycle.Deleted, Digest: r.Digest, Spec: r.Spec, Attempt: r.Attempt,
		Position: r.Position, Site: r.Site, Reports: r.Reports,
	}
}

// ImagesInUse lists the images that must stay on the node for the record's sake.
func (r *Record) ImagesInUse() []string {
	if r.State == lifecycle.Deleted || r.State == lifecycle.Deleting {
		return nil
	}
	return slices.Concat(r.HealthyImages, Images(r.Spec), Images(r.ActiveSpec), Images(r.EarlierSpec))
}

// A Failure says why a deployment failed.
type Failure struct {
	Code    protocol.Code
	Message string
}

// Images lists the images of an encoded spec, each once, in order of first use.
func Images(spec []byte) []string {
	s, err := Decode(spec)
	if err != nil {
		return nil
	}
	var refs []string
	for _, c := range s.Components {
		for _, k := range c.Containers {
			if !slices.Contains(refs, k.Image) {
				refs = append(refs, k.Image)
			}
		}
	}
	return refs
}

// Decode reads an encoded spec.
func Decode(spec []byte) (*protocol.DeploymentSpec, error) {
	if len(spec) == 0 {
		return nil, protocol.Errorf(protocol.Invalid, "no spec")
	}
	var s protocol.DeploymentSpec
	if err := protocol.Unmarshal(spec, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// StatusDigest sums up what a node says of all its deployments, for the
// heartbeat: the 64-bit FNV-1a hash of name, state, digest and attempt (in
// decimal), each followed by a zero byte, in order of the names. It is 0 for a
// node without deployments.
func StatusDigest(records []Record) uint64 {
	if len(records) == 0 {
		return 0
	}
	h := fnv.New64a()
	for _, r := range byName(records) {
		for _, s := range []string{string(r.Deployment), string(r.State), string(r.Digest), decimal(r.Attempt)} {
			_, _ = h.Write(append([]byte(s), 0)) // a hash takes everything
		}
	}
	return h.Sum64()
}
