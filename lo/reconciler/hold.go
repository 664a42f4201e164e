package reconciler

import (
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// waits reports whether something would change about a deployment on a node that is held, and notes what.
func (s *step) waits(name protocol.DeploymentName, d *nodes.Deployment, desired nodes.Desired) bool {
	switch {
	case d == nil || d.Status.State == "" || d.Status.State == lifecycle.Deleted || d.Removing:
		s.wait(name, "the installation")
	case d.Desired != desired && d.Status.State != lifecycle.Failed && (d.Assigned.Digest == desired.Digest || d.Status.State == lifecycle.Installed && d.Status.Digest == desired.Digest):
		return false // it is there, or on its way
	case d.Desired.Digest != desired.Digest, d.Assigned.Digest != desired.Digest && d.Refused.Digest != desired.Digest:
		s.wait(name, "the update")
	case d.Desired != desired:
		s.wait(name, "the next attempt, or the rollback, that was asked for,")
	case d.Status.State == lifecycle.Failed && !d.Due && !d.Status.Recovering && !givenUp(d) && d.Status.Code != protocol.NodeLost:
		s.wait(name, "the next attempt, or the return to the version before,")
	default:
		return false
	}
	return true
}

// removalWaits reports whether the removal of a deployment waits as the node is held, and notes it. One that has begun goes on.
func (s *step) removalWaits(name protocol.DeploymentName, removed bool) bool {
	d := s.r.Deployments[name]
	if s.Held == "" || d.Removing || d.Status.State == lifecycle.Deleted {
		return false
	}
	what := "the move to another node"
	if removed {
		what = "the removal"
	}
	s.wait(name, what)
	return true
}

func (s *step) wait(name protocol.DeploymentName, what string) {
	s.out.Waits = append(s.out.Waits, restriction.Wait{Deployment: name, Why: what + " waits: the node is " + s.Held})
}
