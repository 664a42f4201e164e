// Package reconciler decides what one node shall run: it compares the deployments that
// are placed on the node with what the LO knows of it, and owns retry and rollback. It
// is pure: a record, the desired deployments, the time and a source of jitter in; the
// changed record, the transitions to journal and the next NodeDesired out.
//
// Step compares states and waits for no event, so that it may be called at any time and
// any number of times: where nothing is to be done it does nothing.
//
// The caller journals Facts, then stores the record, then publishes Desired. The next
// Step repairs what a crash between two of them left.
package reconciler

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

const (
	defaultAttempts = 3
	defaultBackoff  = 10 * time.Second
	maxBackoff      = 5 * time.Minute

	// stableAfter is how long a version must be INSTALLED before a failure begins
	// a new count of attempts. Without it a version that dies a minute after each
	// start would be retried without end.
	stableAfter = 10 * time.Minute

	// clockSlack is how far a time may lie ahead of Now without a clock that was set back: Step and
	// the code that records times read the clock at different moments.
	clockSlack = time.Second

	// keepDeleted is how many deployments that are DELETED a record remembers.
	keepDeleted = 32
)

// A Spec is one version of a deployment, as it goes to a node.
type Spec struct {
	Bytes, Signature []byte // the encoded spec, and the signature of its statement
	App, AppVersion  string // id and version of the application
}

// An Input is what Step decides upon, beside the record.
type Input struct {
	Now time.Time
	// Desired are the deployments that are placed on this node.
	Desired map[protocol.DeploymentName]protocol.SiteEntry
	// Removals are the tombstones of the site. Moved are the deployments of the site that
	// are placed on other nodes for certain. A deployment that none of the three names
	// stays on the node as it is.
	Removals map[protocol.DeploymentName]protocol.Removal
	Moved    map[protocol.DeploymentName]bool
	// Entries are the deployments of the site, wherever they are placed: what a node is asked to
	// remove because it is placed elsewhere cites its entry.
	Entries map[protocol.DeploymentName]protocol.SiteEntry
	// Purges are those for this node.
	Purges []protocol.NodePurge
	// Follows is the position of the site's desired state up to which the node says that it has followed it; zero: it has not said.
	Follows protocol.Position
	// KeySet is the CO's, for the node.
	KeySet []byte
	// Specs returns a version that the LO has stored.
	Specs func(protocol.Digest) (Spec, bool)
	// Held says, for people, that a person holds the node: nothing on it is installed, updated or removed, except what
	// was assigned to it before; "": it is not held.
	Held string
	// Windows says that the site has maintenance windows.
	Windows bool
	// Closed says, for people, that the site is outside of its maintenance windows: nothing that works is updated or removed, unless its
	// policy allows it; "": it is inside of one, or has none.
	Closed string
	// Opens is when the next window begins, by the time that the LO goes by; zero: that is not known.
	Opens time.Time
	// Stays reports whether another node of the site has a deployment up that has to wait for a window to be updated, or to leave that node, so that
	// the new version does not come to run beside it. Nil: none does.
	Stays func(protocol.DeploymentName) bool
	// LostAfter is how long a node may be offline before an install or an update
	// on it counts as failed.
	LostAfter time.Duration
	// Jitter spreads waits. Nil: the process's own source.
	Jitter *rand.Rand
}

// An Output is what Step decided.
type Output struct {
	// Transitions are the LO's own, in order; Facts the same as events to journal.
	Transitions []protocol.DeploymentStatus
	Facts       []nodes.Fact
	// Desired is what the node shall run. It is valid if Faults is empty.
	Desired protocol.NodeDesired
	// Reassigned says that the assignments in Desired differ from those before the Step.
	Reassigned bool
	// Changed says that the record changed and must be stored.
	Changed bool
	// NextAt is when Step is to be called though nothing happens; zero: never.
	NextAt time.Time
	// Waits are what is not carried out because the node is held, sorted by deployment.
	Waits []restriction.Wait
	// Withheld are the assignments that Desired leaves out because the LO has no spec of
	// them: its file was damaged or lost. Absence says nothing to the node.
	Withheld []error
	// Faults are decisions that could not be carried out: defects of Colony.
	Faults []error
}

// step is one run of Step.
type step struct {
	Input
	r     *nodes.Record
	out   Output
	entry protocol.Position                // of the SiteEntry that is being decided about
	fresh map[protocol.DeploymentName]bool // whose assignment changed
}

// Step decides for one node. It changes r.
func Step(r *nodes.Record, in Input) Output {
	s := &step{Input: in, r: r, fresh: map[protocol.DeploymentName]bool{}}
	names := map[protocol.DeploymentName]bool{}
	for name := range r.Deployments {
		names[name] = true
	}
	for name := range in.Desired {
		names[name] = true
	}
	s.rebase()
	s.noteStale()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		entry, desired := in.Desired[name]
		tombstone, removed := in.Removals[name]
		switch {
		case desired:
			s.keep(entry)
		case removed && s.later(name, tombstone):
			s.wait(name, fmt.Sprintf("its removal is of %s, and what runs was desired later, at %s: a CO whose database was restored says it again; delete the deployment once more, or deploy it",
				tombstone.Position, s.desiredAt(name)))
		case removed || in.Moved[name]:
			if !s.removalWaits(name, removed) {
				s.remove(name, tombstone)
			}
		default:
			s.leave(name)
		}
	}
	s.finish()
	return s.out
}

// rebase corrects the times that lie ahead of Now: the machine's clock was set back
// since. What they are the beginning of counts from now on, so that no wait takes
// longer than it is meant to, however far the clock was ahead.
func (s *step) rebase() {
	ahead := func(at *int64) bool {
		if *at <= s.Now.Add(clockSlack).UnixMilli() {
			return false
		}
		*at, s.out.Changed = s.Now.UnixMilli(), true
		return true
	}
	ahead(&s.r.ChangedMillis)
	for _, d := range s.r.Deployments {
		ahead(&d.InstalledMillis)
		if ahead(&d.SinceMillis) {
			d.RetryMillis = 0 // it is planned again
		}
	}
}

// keep brings a deployment towards its desired version.
func (s *step) keep(e protocol.SiteEntry) {
	name := e.Deployment
	s.entry = e.Position
	desired := nodes.Desired{Digest: e.Digest, Retry: e.Retry, Rollback: e.Rollback}
	d := s.r.Deployments[name]
	s.takeBack(name, d, e.Policy.AnyTime)
	held := s.waits(name, d, desired, e.Policy.AnyTime)
	switch {
	case held && (d == nil || d.Status.State == "" || d.Status.State == lifecycle.Deleted || d.Removing || d.Assigned.Digest == ""):
		return // of what the node was not assigned, as the LO has lost its record, it goes on with what it has
	case held:
	case d == nil || d.Status.State == "" || d.Status.State == lifecycle.Deleted || d.Removing:
		if !s.place(name, desired) {
			return
		}
		d = s.r.Deployments[name]
	case refusedBefore(d, desired):
		s.refuse(name, d, desired)
	case d.Desired != desired, d.Assigned.Digest != desired.Digest && d.Refused.Digest != desired.Digest:
		// The second condition holds for a record that was restored from the journal,
		// which has transitions but not what was desired.
		s.changeDesired(name, d, desired)
	}
	if placed := nodes.PlacementDigest(&e.Placement); d.Placement != placed {
		d.Placement, s.out.Changed = placed, true
	}
	if met := constraints(e); d.Met != met {
		d.Met, s.out.Changed = met, true
	}
	if d.Assigned.Digest != "" && d.Assigned.Site != e.Position {
		d.Assigned.Site, s.out.Changed = e.Position, true
		d.Follow(e.Position)
	}
	if d.Status.State == lifecycle.Failed && !d.Due && !held {
		s.failed(e, d)
	}
	if s.r.Online() {
		s.advance(name, d)
	} else {
		s.lost(name, d)
	}
}

// constraints is the digest of the device constraints of an entry; "": it has none.
func constraints(e protocol.SiteEntry) protocol.Digest {
	if len(e.Placement.Constraints) == 0 {
		return ""
	}
	return protocol.DigestOf(e.Placement.Constraints)
}

// place begins a deployment on a node that does not run it.
func (s *step) place(name protocol.DeploymentName, desired nodes.Desired) bool {
	m := protocol.DeploymentStatus{State: lifecycle.Pending, Digest: desired.Digest}
	if !s.r.Online() {
		m.Message = "waiting for the node: it is offline"
	}
	if !s.transition(name, m) {
		return false
	}
	d := s.r.Deployments[name]
	d.Removing, d.Desired, d.Refused = false, desired, nodes.Refusal{}
	d.Tombstone, d.Volumes, d.Statement = protocol.Position{}, false, nil
	s.assign(name, d, desired.Digest, false)
	d.Tries = 1
	return true
}

// changeDesired applies a changed Desired. It lifts every refusal: either the version
// changed, or a person asked for a retry.
func (s *step) changeDesired(name protocol.DeploymentName, d *nodes.Deployment, desired nodes.Desired) {
	d.Desired, d.Refused, d.RetryMillis = desired, nodes.Refusal{}, 0
	s.out.Changed = true
	state := d.Status.State
	if d.Assigned.Digest == desired.Digest && state != lifecycle.Failed {
		d.Tries = max(d.Tries, 1)
		return // it is there, or on its way
	}
	d.Tries = 1
	if state == lifecycle.Installed && d.Status.Digest == desired.Digest {
		s.retain(name, d) // it still runs what is desired once more
		return
	}
	s.assign(name, d, desired.Digest, desired.Rollback)
}

// failed decides what follows a failure: wait, retry, roll back, or give up.
func (s *step) failed(e protocol.SiteEntry, d *nodes.Deployment) {
	if d.Status.Code == protocol.NodeLost && d.Status.Actor == lifecycle.LO {
		if s.r.Online() { // it goes on with the attempt that it has
			d.Due, s.out.Changed = true, true
		}
		return
	}
	if untried(d) && !recovers(d) && !givenUp(d) {
		s.retry(e, d)
		return
	}
	if d.FailedFrom == lifecycle.RollingBack {
		s.giveUp(e.Deployment, d) // the earlier version does not start either: a person must decide
		return
	}
	if recovers(d) {
		return // it worked for the minimum time: the node brings it up again, and reports it
	}
	if d.FailedFrom == lifecycle.Installed && d.RetryMillis == 0 && d.Tries > 0 &&
		d.SinceMillis-d.InstalledMillis >= stableAfter.Milliseconds() {
		d.Tries = 0
	}
	// Whether the LO has given up is read from the status first: Tries is too low in a
	// record that was stored before its last transitions and restored from the journal.
	attempts := cmp.Or(e.Policy.Attempts, defaultAttempts)
	if !givenUp(d) && d.Tries < attempts && d.Refused.Digest != d.Assigned.Digest {
		s.retry(e, d)
		return
	}
	if d.Assigned.Digest != d.Desired.Digest {
		s.giveUp(e.Deployment, d) // the version that was returned to is used up as well
		return
	}
	if d.Refused.Digest != d.Assigned.Digest {
		d.Refused = nodes.Refusal{Digest: d.Assigned.Digest, Code: d.Status.Code, Message: d.Status.Message}
		s.out.Changed = true
	}
	for _, h := range d.Healthy {
		if _, ok := s.Specs(h); ok && h != d.Desired.Digest && !e.Policy.NoRollback && !slices.Contains(d.Faulty, h) {
			s.assign(e.Deployment, d, h, true)
			d.Tries = 1
			return
		}
	}
	s.giveUp(e.Deployment, d)
}

// giveUp reports that nothing more will be tried: it repeats the failure, with the
// version that is refused from now on.
func (s *step) giveUp(name protocol.DeploymentName, d *nodes.Deployment) {
	if givenUp(d) {
		return
	}
	m := d.Status
	s.transition(name, protocol.DeploymentStatus{
		State: lifecycle.Failed, Digest: m.Digest, Attempt: m.Attempt, Refused: d.Desired.Digest,
		Code: m.Code, Message: m.Message, Components: m.Components, Recovering: m.Recovering, Presumed: m.Presumed,
	})
}

// recovers reports whether a node brings a version that has failed up again by itself, because it was healthy for the minimum time. Where the node
// only presumes that, as its record was lost, the LO must have seen the version healthy there, or no other one.
func recovers(d *nodes.Deployment) bool {
	m := &d.Status
	return m.Recovering && (!m.Presumed || len(d.Healthy) == 0 || slices.Contains(d.Healthy, m.Digest))
}

// givenUp reports whether the LO has given up a deployment that is FAILED. Only the LO's
// own status counts: a node names a refused version also during a rollback.
func givenUp(d *nodes.Deployment) bool {
	return d.Status.Actor == lifecycle.LO && d.Status.Refused == d.Desired.Digest
}

// assign changes the assignment. The transition follows when the node is online.
func (s *step) assign(name protocol.DeploymentName, d *nodes.Deployment, digest protocol.Digest, rollback bool) {
	d.Assigned = nodes.Assignment{Digest: digest, Attempt: d.NextAttempt(digest), Rollback: rollback, Site: s.entry}
	d.Follow(s.entry)
	d.Due, d.RetryMillis = true, 0
	s.fresh[name] = true
	s.out.Changed = true
}

// advance makes the transition that the assignment implies. It does so only while the
// node is online: until then the node's state is what it was when it went offline.
func (s *step) advance(name protocol.DeploymentName, d *nodes.Deployment) {
	there := d.Status.Digest == d.Assigned.Digest
	var to lifecycle.State
	switch d.Status.State {
	case lifecycle.Pending:
		to = lifecycle.Installing
	case lifecycle.Failed:
		switch {
		case !d.Due:
		case d.Assigned.Rollback:
			to = lifecycle.RollingBack
		case len(d.Healthy) > 0:
			to = lifecycle.Updating
		default:
			to = lifecycle.Installing
		}
	case lifecycle.Installing:
		if !there {
			to = lifecycle.Updating
		}
	case lifecycle.Installed, lifecycle.Updating, lifecycle.RollingBack:
		if !there {
			to = lifecycle.Updating
			if d.Assigned.Rollback {
				to = lifecycle.RollingBack
			}
		}
	case lifecycle.Deleting, lifecycle.Deleted:
	}
	if to != "" && !s.transition(name, protocol.DeploymentStatus{State: to}) {
		return
	}
	if d.Due {
		d.Due, s.out.Changed = false, true
	}
}

// lost fails an install or an update whose node has been offline for too long.
func (s *step) lost(name protocol.DeploymentName, d *nodes.Deployment) {
	if d.Status.State != lifecycle.Installing && d.Status.State != lifecycle.Updating {
		return
	}
	due := time.UnixMilli(max(d.SinceMillis, s.r.ChangedMillis)).Add(s.LostAfter)
	if s.Now.Before(due) {
		s.runAt(due)
		return
	}
	s.transition(name, protocol.DeploymentStatus{
		State: lifecycle.Failed, Code: protocol.NodeLost,
		Message: fmt.Sprintf("node %s has been offline for %s; it goes on when it is back", s.r.Node, s.LostAfter),
	})
}

// transition records a transition of the LO. What m does not say it has from the
// assignment.
func (s *step) transition(name protocol.DeploymentName, m protocol.DeploymentStatus) bool {
	m.Deployment = name
	if d := s.r.Deployments[name]; d != nil {
		if m.Digest == "" {
			m.Digest, m.Attempt = d.Assigned.Digest, d.Assigned.Attempt
		}
		if m.State == lifecycle.RollingBack && d.Refused.Digest != "" {
			m.Refused, m.Code, m.Message = d.Refused.Digest, d.Refused.Code, d.Refused.Message
		}
		m.App, m.AppVersion = d.Status.App, d.Status.AppVersion
	}
	if spec, ok := s.Specs(m.Digest); ok {
		m.App, m.AppVersion = spec.App, spec.AppVersion
	}
	m, err := s.r.Transition(m, s.Now)
	if err != nil {
		s.out.Faults = append(s.out.Faults, fmt.Errorf("record transition of deployment %s on node %s: %w", name, s.r.Node, err))
		return false
	}
	s.out.Changed = true
	s.out.Transitions = append(s.out.Transitions, m)
	return true
}

// runAt asks for a Step at t or earlier.
func (s *step) runAt(t time.Time) {
	if s.out.NextAt.IsZero() || t.Before(s.out.NextAt) {
		s.out.NextAt = t
	}
}

// finish numbers the assignments if they changed, and encodes them for the node and the
// journal.
func (s *step) finish() {
	s.r.Forget(keepDeleted)
	desired := protocol.NodeDesired{V: protocol.Version, Node: s.r.Node, KeySet: s.KeySet}
	for _, name := range s.r.Names() {
		d := s.r.Deployments[name]
		if d.Removing && d.Status.State != lifecycle.Deleted {
			desired.Removals = append(desired.Removals, s.removal(name, d))
			continue
		}
		a := d.Assigned
		if a.Digest == "" {
			continue
		}
		spec, ok := s.Specs(a.Digest)
		entry, here := s.Input.Desired[name]
		if !ok && !here {
			continue // without an entry the node keeps it as it is
		}
		if !ok {
			s.out.Withheld = append(s.out.Withheld, fmt.Errorf(
				"assign deployment %s to node %s: the spec %s is not in the LO's store; the node keeps what it has of it until another version is desired", name, s.r.Node, a.Digest))
			continue
		}
		refused := d.Refused.Digest
		if refused == a.Digest { // there is none to return to
			refused = ""
		}
		desired.Assignments = append(desired.Assignments, protocol.Assignment{
			Deployment: name, Digest: a.Digest, Spec: spec.Bytes, Signature: s.statement(entry, a.Digest), Attempt: a.Attempt, Rollback: a.Rollback, Site: a.Site,
			MinHealthyMillis: entry.Policy.MinHealthyMillis, NoRollback: entry.Policy.NoRollback, Refused: refused,
		})
	}
	if s.Held == "" {
		s.removeRest(&desired)
		desired.Purges = s.Purges
	}
	fingerprint := desired.ContentDigest() // without a position
	reassigned := fingerprint != s.r.Fingerprint
	if reassigned {
		s.r.Fingerprint, s.r.Position = fingerprint, s.r.Position.Next()
		s.out.Reassigned, s.out.Changed = true, true
	}
	desired.Position = s.r.Position
	if reassigned {
		s.r.Digest = desired.ContentDigest()
	}
	desired.Content = s.r.Digest
	s.out.Desired = desired
	for name := range s.fresh {
		if d := s.r.Deployments[name]; d != nil {
			d.Assigned.Position = s.r.Position
		}
	}
	for i := range s.out.Transitions {
		m := &s.out.Transitions[i]
		m.Position = s.r.Position
		if d := s.r.Deployments[m.Deployment]; d != nil && d.Status.State == m.State && d.Status.Actor == m.Actor {
			d.Status.Position = m.Position
		}
		s.out.Facts = append(s.out.Facts, nodes.StatusFact(*m, s.Now))
	}
}
