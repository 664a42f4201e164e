package reconciler

import (
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// brokenAfter is how long a version that works at times must have failed without a break until it counts as one that does not work: a
// probe that fails for a minute is no reason to update outside of the maintenance windows.
const brokenAfter = 10 * time.Minute

// installation is what changes about a deployment that a node does not have.
const installation = "the installation"

// offline is why something waits in a window.
const offline = "the node is offline, and the site is updated in its maintenance windows alone"

// shut says why what interrupts something that works has to wait; "": it has not to.
func (s *step) shut(anyTime bool) string {
	switch {
	case anyTime || !s.Windows:
		return ""
	case s.Closed == "" && !s.r.Online(): // it would begin whenever it is back
		return offline
	}
	return s.Closed
}

// waits reports whether something that would change about a deployment has to wait, as the node is held or the site outside of its maintenance
// windows, and notes what. What is kept up anyway interrupts nothing, and the next attempts are for retry to decide about.
func (s *step) waits(name protocol.DeploymentName, d *nodes.Deployment, desired nodes.Desired, anyTime bool) bool {
	what := change(d, desired)
	if s.Held != "" && what == "" {
		what = attempt(d)
	}
	if what == "" {
		return false
	}
	if s.Held != "" {
		s.wait(name, what+" waits: the node is "+s.Held)
		return true
	}
	why := s.shut(anyTime)
	switch {
	case why == "":
	case what == installation && s.Stays != nil && s.Stays(name):
		s.waitShut(name, what+" waits: it is up on another node, which keeps it", why)
		return true
	case s.works(d) && d.Active() != desired.Digest:
		s.waitShut(name, what+" waits", why)
		return true
	}
	return false
}

// refusedBefore reports whether the record of what was desired is lost, and the node reports that it gave the desired version up for the one
// before, however that does now: the refusal stands until another version is desired, or a person asks for a retry.
func refusedBefore(d *nodes.Deployment, desired nodes.Desired) bool {
	m := &d.Status
	if d.Desired != (nodes.Desired{}) || m.Refused == "" || m.Refused != desired.Digest || m.Digest == m.Refused {
		return false
	}
	return m.State == lifecycle.Installed || m.State == lifecycle.RollingBack || m.State == lifecycle.Failed
}

// refuse takes over from the node what it refuses, and has it go on with the version that it has in its place.
func (s *step) refuse(name protocol.DeploymentName, d *nodes.Deployment, desired nodes.Desired) {
	d.Desired, d.Refused = desired, nodes.Refusal{Digest: desired.Digest}
	if d.Status.State != lifecycle.Failed { // there it is why the other version has failed
		d.Refused.Code, d.Refused.Message = d.Status.Code, d.Status.Message
	}
	s.retain(name, d)
	d.Assigned.Rollback = true
}

// change says, for people, what would change about a deployment; "": nothing but what was decided before.
func change(d *nodes.Deployment, desired nodes.Desired) string {
	switch {
	case d == nil || d.Status.State == "" || d.Status.State == lifecycle.Deleted || d.Removing:
		return installation
	case refusedBefore(d, desired):
		return ""
	case d.Desired != desired && d.Status.State != lifecycle.Failed && (d.Assigned.Digest == desired.Digest || d.Status.State == lifecycle.Installed && d.Status.Digest == desired.Digest):
		return "" // it is there, or on its way
	case d.Desired.Digest != desired.Digest, d.Assigned.Digest != desired.Digest && d.Refused.Digest != desired.Digest:
		return "the update"
	case d.Desired != desired:
		return "the next attempt, or the rollback, that was asked for,"
	}
	return ""
}

// attempt says, for people, what follows a failure; "": nothing does.
func attempt(d *nodes.Deployment) string {
	if d.Status.State == lifecycle.Failed && !d.Due && !recovers(d) && !givenUp(d) && d.Status.Code != protocol.NodeLost {
		return "the next attempt, or the return to the version before,"
	}
	return ""
}

// works reports whether a node has a deployment up, or is bringing another version of one up, so that a change of it would interrupt that.
func (s *step) works(d *nodes.Deployment) bool {
	if d == nil || d.Removing {
		return false
	}
	switch d.Status.State {
	case lifecycle.Installed:
		return true
	case lifecycle.Updating, lifecycle.RollingBack:
		return len(d.Healthy) > 0 || d.Status.Running != ""
	case lifecycle.Failed:
		if d.Status.Code == protocol.NodeLost && d.Status.Actor == lifecycle.LO { // it went on while it was away
			return len(d.Healthy) > 0 || d.Status.Running != ""
		}
		if !d.Status.Recovering {
			return d.Status.Running != "" // the version before, or the one that the node refused to be assigned
		}
		broken := time.UnixMilli(d.SinceMillis).Add(brokenAfter)
		if s.Now.Before(broken) {
			s.runAt(broken)
			return true
		}
	case lifecycle.Pending, lifecycle.Installing, lifecycle.Deleting, lifecycle.Deleted:
	}
	return false
}

// takeBack has a node keep the version that it has up, where it was assigned another one before that had to wait and was offline all the time, or
// still gets the images of that when the window ends: else that would interrupt the work whenever it is back, or they have come. It is
// assigned anew in the next window in which the node is online.
func (s *step) takeBack(name protocol.DeploymentName, d *nodes.Deployment, anyTime bool) {
	if d == nil || d.Removing || s.Held != "" || s.shut(anyTime) == "" {
		return
	}
	keeps := d.Active()
	if _, ok := s.Specs(keeps); !ok || keeps == d.Assigned.Digest {
		return
	}
	if d.Status.State == lifecycle.Installed {
		s.retain(name, d)
		return
	}
	// The phase is the node's own word, since it connected last: after that of pulling it may have begun to replace the version.
	if d.Status.State == lifecycle.Updating && d.Status.Phase == protocol.Pulling && s.r.Online() {
		s.assign(name, d, keeps, false)
	}
}

// retain assigns the version that the node is at once more. The number of the attempt stays, so that the node has nothing to do.
func (s *step) retain(name protocol.DeploymentName, d *nodes.Deployment) {
	d.Assigned = nodes.Assignment{Digest: d.Status.Digest, Attempt: max(1, d.Status.Attempt), Site: s.entry}
	d.Due, s.out.Changed = false, true
	s.fresh[name] = true
}

// removalWaits reports whether the removal of a deployment has to wait, as waits says it, and notes it. One that has begun goes on. What is placed
// elsewhere leaves the node at any time, but where a person has changed the placement.
func (s *step) removalWaits(name protocol.DeploymentName, removed bool) bool {
	d := s.r.Deployments[name]
	why := s.shut(!removed && s.Entries[name].Policy.AnyTime)
	switch {
	case d.Removing || d.Status.State == lifecycle.Deleted:
	case s.Held != "" && removed:
		s.wait(name, "the removal waits: the node is "+s.Held)
		return true
	case s.Held != "":
		s.wait(name, "the move to another node waits: the node is "+s.Held)
		return true
	case why == "" || !s.works(d):
	case removed:
		s.waitShut(name, "the removal waits", why)
		return true
	case s.replaced(name, d):
		s.waitShut(name, "the move to another node waits", why)
		return true
	}
	return false
}

// replaced reports whether a person has changed where a deployment is to run, so that it leaves the node: not that the node is drained, or another
// one has taken its place while it was away.
func (s *step) replaced(name protocol.DeploymentName, d *nodes.Deployment) bool {
	entry, ok := s.Entries[name]
	return ok && d.Placement != "" && d.Placement != nodes.PlacementDigest(&entry.Placement) && s.r.Restricted(restriction.Drain) == nil
}

// wait notes that something waits.
func (s *step) wait(name protocol.DeploymentName, why string) {
	s.out.Waits = append(s.out.Waits, restriction.Wait{Deployment: name, Why: why})
}

// waitShut notes that something waits for a reason that shut has returned.
func (s *step) waitShut(name protocol.DeploymentName, what, why string) {
	w := restriction.Wait{Deployment: name, Why: what + ": " + why, Offline: why == offline}
	if !w.Offline && s.Held == "" && !s.Opens.IsZero() {
		w.UntilMillis = s.Opens.UnixMilli()
	}
	s.out.Waits = append(s.out.Waits, w)
}
