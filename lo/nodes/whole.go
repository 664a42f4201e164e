package nodes

import (
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// ApplyNodeReport folds everything that the node holds in: what the record lacks is
// learned, and what the node lacks is PENDING once more. The record is Complete then.
//
// Where the node holds a desired state that the record does not remember, the record is
// older than what the node does: the LO was restored, or lost its state. The decisions
// in it are dropped then, and the NodeDesired goes on above what the node holds.
func (r *Record) ApplyNodeReport(m protocol.NodeReport, now time.Time) Outcome {
	var out Outcome
	whole := r.Complete
	if m.Agent != r.Agent {
		out = r.newAgent(m.Agent)
	}
	if last := r.Held(); m.Held.Unknown(last) {
		raised := protocol.EpochRaised{V: protocol.Version, Held: m.Held, Last: last}
		next, err := r.Position.Raise(m.Held.Position)
		if err != nil {
			return r.refuse(raised, err, now, out)
		}
		r.dropDecisions()
		r.Position, raised.Position = next, next
		out.Facts = append(out.Facts, fact(protocol.NodeEpochRaised, r.Node, &raised, now))
		out.Changed, out.Raised = true, true
	}
	held := map[protocol.DeploymentName]bool{}
	for _, s := range m.Statuses {
		held[s.Deployment] = true
		s.V, s.Node, s.Agent, s.Boot, s.Seq = protocol.Version, m.Node, m.Agent, m.Boot, m.Seq
		out.add(r.applyHeld(s, now))
		if d := r.Deployments[s.Deployment]; d != nil && out.Raised && s.Presumed { // neither knows that it was not
			d.noteHealthy(s.Digest)
		}
	}
	for _, name := range r.Names() {
		if !held[name] {
			out.add(r.applyMissing(name, now))
		}
	}
	if !r.Complete || len(r.Expected) > 0 || r.Ahead != "" {
		r.Complete, r.Expected, r.Ahead, out.Changed = true, nil, "", true
	}
	if !whole || out.Raised || r.Unsaid {
		r.Unsaid, out.Changed = false, true
		out.Facts = append(out.Facts, r.holdings(now))
	}
	return out
}

// holdings is the event that says everything that the node holds, and what restricts it: the CO may have that of events
// which the record lacks.
func (r *Record) holdings(now time.Time) Fact {
	report := r.RestrictionReport()
	h := protocol.Holdings{V: protocol.Version, Restrictions: protocol.Marshal(&report)}
	for _, name := range r.Names() {
		if r.State(name) != lifecycle.Deleted {
			h.Deployments = append(h.Deployments, name)
		}
	}
	f := fact(protocol.NodeHoldings, r.Node, &h, now)
	f.Key = "holdings/" + string(r.Node)
	return f
}

// Held returns what the node holds once it has adopted the last NodeDesired.
func (r *Record) Held() protocol.Held { return protocol.Held{Position: r.Position, Digest: r.Digest} }

// refuse notes that a person must decide about a node whose position is too far ahead.
func (r *Record) refuse(raised protocol.EpochRaised, why error, now time.Time, out Outcome) Outcome {
	if r.Ahead == why.Error() {
		return out
	}
	r.Complete, r.Ahead, out.Changed = false, why.Error(), true
	raised.Reason = r.Ahead + ": check who else publishes to this node, and remove the agent's state directory to begin anew"
	out.Facts = append(out.Facts, fact(protocol.NodeEpochRaised, r.Node, &raised, now))
	return out
}

// dropDecisions forgets what the LO decided about the node: its state is left.
func (r *Record) dropDecisions() {
	r.Fingerprint, r.Digest = "", ""
	for _, name := range slices.Sorted(maps.Keys(r.Deployments)) {
		d := r.Deployments[name]
		d.Follow(d.Assigned.Site)
		d.Desired, d.Assigned, d.Refused = Desired{}, Assignment{}, Refusal{}
		d.Removing, d.Due, d.Tries, d.RetryMillis = false, false, 0, 0
		d.Tombstone, d.Volumes, d.Statement = protocol.Position{}, false, nil
	}
}

// applyHeld folds in what the node says of a deployment that it holds.
func (r *Record) applyHeld(s protocol.DeploymentStatus, now time.Time) Outcome {
	d := r.Deployments[s.Deployment]
	if s.State == lifecycle.Updating && s.Running != "" { // nothing gives way before the images are there
		s.Phase = protocol.Pulling
	}
	refuses := s.Refused != "" && d != nil && d.Status.Refused != s.Refused // the record, or the agent that it is of, is of before
	if d == nil || d.Status.State != s.State || d.Status.Digest != s.Digest || d.Status.Attempt != s.Attempt || d.Status.Unassigned != s.Unassigned || refuses {
		if d != nil {
			// The report is the whole truth: a node that was put back from an old copy of its
			// disk counts its reports from an earlier number.
			d.Seq = 0
		}
		out := r.ApplyReport(s, now)
		if d = r.Deployments[s.Deployment]; d != nil && s.Attempt > 0 && s.Digest != "" {
			d.noteTry(s.Digest, s.Attempt) // the node would not begin this attempt once more
		}
		return out
	}
	if s.State == lifecycle.Updating {
		d.Status.Phase, d.Status.Running, d.Status.RunningVersion = s.Phase, s.Running, s.RunningVersion
	}
	changed := d.Agent != s.Agent || d.Removed != (s.State == lifecycle.Deleted) || s.Site.After(d.Followed)
	d.Follow(s.Site)
	d.Agent, d.Seq, d.Removed = s.Agent, s.Seq, s.State == lifecycle.Deleted
	return Outcome{Changed: changed}
}

// applyMissing notes that the node does not hold a deployment of the record. A removal that is under way is decided about anew: a node that has
// followed a later desired state answers none of before.
func (r *Record) applyMissing(name protocol.DeploymentName, now time.Time) Outcome {
	d := r.Deployments[name]
	out := Outcome{Changed: d.Agent != "" || d.Removing}
	d.Agent, d.Seq, d.Removed, d.Removing = "", 0, false, false
	switch d.Status.State {
	case lifecycle.Pending, lifecycle.Deleting, lifecycle.Deleted:
		return out
	case lifecycle.Installing, lifecycle.Installed, lifecycle.Updating, lifecycle.Failed, lifecycle.RollingBack:
	}
	m, err := r.Transition(protocol.DeploymentStatus{
		Deployment: name, State: lifecycle.Pending, Digest: d.Assigned.Digest, App: d.Status.App, AppVersion: d.Status.AppVersion,
		Message: reinstalled,
	}, now)
	if err == nil {
		out.Facts, out.Changed = append(out.Facts, StatusFact(m, now)), true
	}
	return out
}

// add puts what a part of a report led to behind what led out so far.
func (out *Outcome) add(o Outcome) {
	out.Facts = append(out.Facts, o.Facts...)
	out.Changed = out.Changed || o.Changed
	out.Anomaly = out.Anomaly || o.Anomaly
}
