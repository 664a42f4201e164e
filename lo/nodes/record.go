// Package nodes is what a Local Orchestrator knows of each node of its site:
// presence, inventory, the state of every deployment on it, and what the LO
// assigned to it. It folds the node's reports into that knowledge and says which
// events the journal must hold because of them. It is pure: state, message and
// time in; state and facts out.
//
// A Record is changed in place; a caller that must be able to undo a change works on a
// Clone. The methods of one Record may not be called concurrently.
package nodes

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// A Record is the LO's knowledge of one node. It is stored as JSON.
type Record struct {
	Node protocol.NodeID `json:"node"`

	// Agent names the agent's state directory, see protocol.DeploymentStatus.
	Agent string `json:"agent,omitempty"`
	// Presence is the last one that counted. Online is what the journal holds of it.
	Presence protocol.Presence `json:"presence"`
	// ChangedMillis is when Presence.Online changed last, by the LO's clock.
	ChangedMillis int64 `json:"changedMillis,omitempty"`
	// Inventory is nil until the node sent one.
	Inventory *protocol.Inventory `json:"inventory,omitempty"`

	// Position is that of the last NodeDesired of this node, Digest its ContentDigest, and
	// Fingerprint the ContentDigest without the position.
	Position    protocol.Position `json:"position,omitzero"`
	Digest      protocol.Digest   `json:"digest,omitempty"`
	Fingerprint protocol.Digest   `json:"fingerprint,omitempty"`

	// Stale is the greatest position of the tombstones that there were when the LO last began to decide about the node without a memory of what
	// it had decided before. What the node has no record of is not removed by them: it may be of later.
	Stale protocol.Position `json:"stale,omitzero"`

	// Complete says that the node has reported everything that it holds, to this record or
	// one that it follows. Until then nothing is decided about the node.
	Complete bool `json:"complete,omitempty"`
	// Expected is what the node ran as far as others know, while Complete is false or the
	// LO was restored.
	Expected []protocol.DeploymentName `json:"expected,omitempty"`
	// Ahead says why the LO does not go on above the position that the node holds; "": it
	// does.
	Ahead string `json:"ahead,omitempty"`

	// Restrictions are those that persons have set on the node, a hold last; Waits are the changes that are postponed
	// because of them.
	Restrictions []Restriction      `json:"restrictions,omitempty"`
	Waits        []restriction.Wait `json:"waits,omitempty"`
	// Unsaid says that a snapshot went to the CO in which the node had not reported everything, so that the CO kept all that it had of the node:
	// once the node has reported, the CO learns what it holds.
	Unsaid bool `json:"unsaid,omitempty"`
	// Commands are the last commands that the LO has carried out for the node, so that it carries none out twice.
	Commands []command.ID `json:"commands,omitempty"`

	// JournalEpoch and JournalSeq name the last journal record that is folded in.
	JournalEpoch string `json:"journalEpoch,omitempty"`
	JournalSeq   uint64 `json:"journalSeq,omitempty"`

	Deployments map[protocol.DeploymentName]*Deployment `json:"deployments,omitempty"` // that the LO knows of on the node
}

// A Deployment is the LO's knowledge of one deployment on one node.
type Deployment struct {
	// Status is the last one recorded, the LO's own transitions included. Its State is
	// the state of the deployment on this node.
	Status protocol.DeploymentStatus `json:"status"`
	// SinceMillis is when the state was entered, by the LO's clock.
	SinceMillis int64 `json:"sinceMillis,omitempty"`
	// FailedFrom is the state before FAILED, while it is FAILED.
	FailedFrom lifecycle.State `json:"failedFrom,omitempty"`

	// Agent and Seq name the node's last report on this deployment. Agent is empty
	// where the present agent made none.
	Agent string `json:"agent,omitempty"`
	Seq   uint64 `json:"seq,omitempty"`
	// Followed is the greatest position of the site's desired state that was assigned or reported of it, also of what was removed since.
	Followed protocol.Position `json:"followed,omitzero"`
	// Removed says that this report was DELETED, independently of later assignments.
	Removed bool `json:"removed,omitempty"`

	// Healthy are the versions that were INSTALLED, the last one first.
	Healthy []protocol.Digest `json:"healthy,omitempty"`
	// Faulty are those of Healthy that have failed on the node since, sorted: no rollback
	// goes to them.
	Faulty []protocol.Digest `json:"faulty,omitempty"`
	// InstalledMillis is when INSTALLED was entered last.
	InstalledMillis int64 `json:"installedMillis,omitempty"`

	// Desired is what the site's desired state asks for, Assigned what the LO decided:
	// it is in the NodeDesired.
	Desired  Desired    `json:"desired,omitzero"`
	Assigned Assignment `json:"assigned,omitzero"`
	// Met is the digest of the device constraints that the node met when the deployment was
	// placed on it; empty: there were none.
	Met protocol.Digest `json:"met,omitempty"`
	// Placement is the digest of the placement that the deployment was desired with when it was placed on the node last; empty: it is not known.
	Placement protocol.Digest `json:"placement,omitempty"`
	// Due says that the transition to Assigned was not made yet: the node is offline.
	Due bool `json:"due,omitempty"`
	Removal

	// Tries is how many attempts were made for Desired; RetryMillis when the next one is
	// due, 0 while none is planned.
	Tries       uint32 `json:"tries,omitempty"`
	RetryMillis int64  `json:"retryMillis,omitempty"`
	// Refused is the version that was given up, with the reason.
	Refused Refusal `json:"refused,omitzero"`
	// Tried are the highest attempt numbers used, so that none is used twice.
	Tried []Try `json:"tried,omitempty"`
}

// A Removal is what the node is asked to remove a deployment by.
type Removal struct {
	// Removing says that the node shall remove it: for the CO's tombstone at the position
	// Tombstone, with its volumes or without, or, where that is zero, because the LO placed
	// it elsewhere.
	Removing  bool              `json:"removing,omitempty"`
	Tombstone protocol.Position `json:"tombstone,omitzero"`
	// Statement is what the CO signed of that tombstone: a CO whose database was restored may not say it again.
	Statement []byte `json:"statement,omitempty"`
	Volumes   bool   `json:"volumes,omitempty"` // remove its volumes, too
}

// A Desired is what the site's desired state asks for of a deployment on a node. A
// version that was given up is assigned again only when its Desired changes.
type Desired struct {
	Digest   protocol.Digest `json:"digest"`
	Retry    uint32          `json:"retry,omitempty"`    // see protocol.SiteEntry
	Rollback bool            `json:"rollback,omitempty"` // see protocol.SiteEntry
}

// An Assignment is the entry of a deployment in the NodeDesired; zero: it has none.
type Assignment struct {
	Digest   protocol.Digest `json:"digest"`
	Attempt  uint32          `json:"attempt"`            // number of the try, from 1
	Rollback bool            `json:"rollback,omitempty"` // see protocol.Assignment
	// Position is of the first NodeDesired that had this entry, or had none.
	Position protocol.Position `json:"position,omitzero"`
	// Site is the position of the SiteEntry that it follows from.
	Site protocol.Position `json:"site,omitzero"`
}

// A Refusal is a version that was given up and why.
type Refusal struct {
	Digest  protocol.Digest `json:"digest"`
	Code    protocol.Code   `json:"code,omitempty"`
	Message string          `json:"message,omitempty"` // of the last failure, for people
}

// Follow notes what was assigned or reported of a deployment.
func (d *Deployment) Follow(at protocol.Position) {
	if at.After(d.Followed) {
		d.Followed = at
	}
}

// A Try is the highest attempt that was made with a digest.
type Try struct {
	Digest  protocol.Digest `json:"digest"`
	Attempt uint32          `json:"attempt"` // the highest that was made
}

// StateRole is the Role of a damaged Record; its Name is the id of the node.
const StateRole = "lo/node"

const (
	keepHealthy = 3 // versions to return to
	keepTried   = 8 // digests whose attempt numbers are remembered
)

// New returns the record of a node of which nothing is known.
func New(node protocol.NodeID) *Record {
	return &Record{Node: node, Deployments: map[protocol.DeploymentName]*Deployment{}}
}

// Heard reports whether anything in the record comes from the node. Without that the LO
// knows the node by its name alone: the CO has said what it ran, or the record was damaged.
func (r *Record) Heard() bool {
	return r.ChangedMillis != 0 || r.Agent != "" || r.Inventory != nil || len(r.Deployments) > 0
}

// Clone returns a copy that can be changed without a change of r.
func (r *Record) Clone() *Record {
	c := *r
	c.Restrictions, c.Waits, c.Commands = slices.Clone(r.Restrictions), slices.Clone(r.Waits), slices.Clone(r.Commands)
	c.Deployments = make(map[protocol.DeploymentName]*Deployment, len(r.Deployments))
	for name, d := range r.Deployments {
		dc := *d
		dc.Healthy, dc.Faulty = slices.Clone(d.Healthy), slices.Clone(d.Faulty)
		dc.Tried = slices.Clone(d.Tried)
		c.Deployments[name] = &dc
	}
	return &c
}

// Online reports whether the node is connected as far as the LO knows.
func (r *Record) Online() bool { return r.Presence.Online }

// Names returns the deployments that the record knows, sorted.
func (r *Record) Names() []protocol.DeploymentName {
	return slices.Sorted(maps.Keys(r.Deployments))
}

// State returns the state of a deployment, "" for one that is not known.
func (r *Record) State(name protocol.DeploymentName) lifecycle.State {
	if d := r.Deployments[name]; d != nil {
		return d.Status.State
	}
	return ""
}

// Phase returns how far the node is with bringing a deployment up, as it said since it connected last; "": it did not.
func (r *Record) Phase(name protocol.DeploymentName) protocol.Phase {
	if d := r.Deployments[name]; d != nil {
		return d.Status.Phase
	}
	return ""
}

// Runs reports whether the deployment is on this node, or on its way there.
func (r *Record) Runs(name protocol.DeploymentName) bool {
	d := r.Deployments[name]
	switch {
	case d == nil, d.Removing, d.Status.State == lifecycle.Deleted:
		return false
	case d.Status.State == lifecycle.Pending, d.Status.State == lifecycle.Deleting:
		return d.Assigned.Digest != "" // else the node does not hold it, and is not to
	}
	return true
}

// Active returns the version that the node keeps up; "": none, or it is not known. While an update gets its images, and once it has failed, that is the
// version before.
func (d *Deployment) Active() protocol.Digest {
	if d.Status.State == lifecycle.Installed {
		return d.Status.Digest
	}
	return d.Status.Running
}

// PlacementDigest names a placement as Deployment.Placement does.
func PlacementDigest(p *protocol.Placement) protocol.Digest {
	return protocol.DigestOf(protocol.Marshal(p))
}

// Digests returns every version that the record may still need, sorted.
func (r *Record) Digests() []protocol.Digest {
	set := map[protocol.Digest]bool{}
	for _, d := range r.Deployments {
		if d.Status.State == lifecycle.Deleted {
			continue
		}
		set[d.Assigned.Digest], set[d.Desired.Digest] = true, true
		for _, h := range d.Healthy {
			set[h] = true
		}
	}
	delete(set, "")
	return slices.Sorted(maps.Keys(set))
}

// NextAttempt returns a number for an attempt with digest that was not used, and
// remembers it.
func (d *Deployment) NextAttempt(digest protocol.Digest) uint32 {
	n := uint32(1)
	for i, t := range d.Tried {
		if t.Digest == digest {
			n = t.Attempt + 1
			d.Tried = slices.Delete(d.Tried, i, i+1)
			break
		}
	}
	d.noteTry(digest, n)
	return n
}

// noteTry remembers that attempt n was made with digest.
func (d *Deployment) noteTry(digest protocol.Digest, n uint32) {
	for i, t := range d.Tried {
		if t.Digest == digest {
			n = max(n, t.Attempt)
			d.Tried = slices.Delete(d.Tried, i, i+1)
			break
		}
	}
	d.Tried = append(d.Tried, Try{digest, n})
	if over := len(d.Tried) - keepTried; over > 0 {
		d.Tried = slices.Delete(d.Tried, 0, over)
	}
}

// tried reports whether attempt n with digest, or a later one, is known.
func (d *Deployment) tried(digest protocol.Digest, n uint32) bool {
	return slices.ContainsFunc(d.Tried, func(t Try) bool { return t.Digest == digest && t.Attempt >= n })
}

// judge notes what a status says of its version: whether a rollback may go to it.
func (d *Deployment) judge(m protocol.DeploymentStatus) {
	switch {
	case m.State == lifecycle.Installed:
		d.noteHealthy(m.Digest)
	case m.State == lifecycle.Failed && m.Actor == lifecycle.EN && !m.Recovering && m.Code.OfVersion():
		if slices.Contains(d.Healthy, m.Digest) {
			d.Faulty = slices.Compact(slices.Sorted(slices.Values(append(d.Faulty, m.Digest))))
		}
	}
}

// noteHealthy puts digest first among the versions to return to.
func (d *Deployment) noteHealthy(digest protocol.Digest) {
	if digest == "" {
		return
	}
	rest := slices.DeleteFunc(d.Healthy, func(h protocol.Digest) bool { return h == digest })
	d.Healthy = append([]protocol.Digest{digest}, rest...)
	d.Healthy = d.Healthy[:min(len(d.Healthy), keepHealthy)]
	d.Faulty = slices.DeleteFunc(d.Faulty, func(f protocol.Digest) bool { return f == digest || !slices.Contains(d.Healthy, f) })
}

// Forget drops the deployments that are DELETED, except for the latest keep: if their
// name is deployed again, their attempt numbers and sequence still count.
func (r *Record) Forget(keep int) {
	var removed []protocol.DeploymentName
	for name, d := range r.Deployments {
		if d.Status.State == lifecycle.Deleted {
			removed = append(removed, name)
		}
	}
	slices.SortFunc(removed, func(a, b protocol.DeploymentName) int {
		return cmp.Or(cmp.Compare(r.Deployments[b].SinceMillis, r.Deployments[a].SinceMillis), cmp.Compare(a, b))
	})
	for i, name := range removed {
		if i >= keep {
			delete(r.Deployments, name)
		}
	}
}

// A Fact is an event that the journal must hold.
type Fact struct {
	Event protocol.Event
	// Key is set where a later fact of the same key may replace this one in the journal.
	Key string
}

func fact(kind protocol.EventKind, node protocol.NodeID, body any, now time.Time) Fact {
	return Fact{Event: protocol.Event{UnixMillis: now.UnixMilli(), Kind: kind, Node: node, Body: protocol.Marshal(body)}}
}

// StatusFact returns the event of a status. Progress within a state supersedes
// earlier progress; nothing supersedes a transition.
func StatusFact(m protocol.DeploymentStatus, now time.Time) Fact {
	f := fact(protocol.StatusEvent, m.Node, m, now)
	if m.From == m.State {
		f.Key = "progress/" + string(m.Node) + "/" + string(m.Deployment)
	}
	return f
}
