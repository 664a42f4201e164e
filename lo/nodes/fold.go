package nodes

import (
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// reinstalled is the message of a return to PENDING. Replay recognises it, and that of
// releases before 0.3.
const (
	reinstalled    = "the node has no record of it, as its state was lost or is older: it is assigned anew"
	reinstalledOld = "the node does not hold it any more"
)

// An Outcome is what a message from a node led to.
type Outcome struct {
	// Facts are to be journalled, in this order, before the message is acknowledged.
	Facts []Fact
	// Changed says that the record differs in something that a restart must find
	// again; progress alone does not count.
	Changed bool
	// Reported says that a restart finds all that changed in Facts too, so that the
	// record need not be stored before they leave the journal.
	Reported bool
	// Duplicate and Stale say why there is nothing to journal: the report was applied
	// before, or is about an assignment that was replaced meanwhile.
	Duplicate, Stale bool
	// Raised says that the node held a desired state which the record does not remember.
	Raised bool
	// Anomaly says that the report was recorded but does not fit the lifecycle.
	Anomaly bool
	// Damaged are the files of the node's state that it reports as damaged for the first time.
	Damaged []string
}

// ApplyPresence folds a presence in. The last will of an earlier connection changes
// nothing.
func (r *Record) ApplyPresence(p protocol.Presence, now time.Time) Outcome {
	if !p.Online {
		if !r.Presence.Online || r.otherSession(p) {
			return Outcome{Stale: true}
		}
		return r.goOffline(now)
	}
	var out Outcome
	if p.Agent != "" && p.Agent != r.Agent {
		out = r.newAgent(p.Agent)
	}
	old := r.Presence
	r.Presence = p
	if !old.Online || old.Session != p.Session {
		r.ForgetPhases()
	}
	if old.Session != p.Session {
		out.Changed = true
	}
	if !old.Online || old.Agent != p.Agent || old.Boot != p.Boot || old.Version != p.Version {
		if !old.Online {
			r.ChangedMillis = now.UnixMilli()
		}
		out.Changed = true
		out.Facts = append(out.Facts, r.presenceFact(protocol.NodeOnlineEvent, now))
	}
	return out
}

// ForgetPhases forgets how far the node was with what it brings up: it went on while it was away, or while the LO was.
func (r *Record) ForgetPhases() {
	for _, d := range r.Deployments {
		d.Status.Phase = ""
	}
}

// Lost makes the node offline without a message of it: it did not come back after a
// restart of the LO, or its last will could not be recorded.
func (r *Record) Lost(now time.Time) Outcome {
	if !r.Presence.Online {
		return Outcome{}
	}
	return r.goOffline(now)
}

func (r *Record) otherSession(p protocol.Presence) bool {
	return p.Session != "" && r.Presence.Session != "" && p.Session != r.Presence.Session
}

func (r *Record) goOffline(now time.Time) Outcome {
	r.Presence.Online = false
	r.ChangedMillis = now.UnixMilli()
	return Outcome{Changed: true, Facts: []Fact{r.presenceFact(protocol.NodeOfflineEvent, now)}}
}

func (r *Record) presenceFact(kind protocol.EventKind, now time.Time) Fact {
	p := r.Presence
	p.V = protocol.Version
	f := fact(kind, r.Node, p, now)
	f.Key = "presence/" + string(r.Node)
	return f
}

// ApplyInventory folds an inventory in; an equal one changes nothing.
func (r *Record) ApplyInventory(inv protocol.Inventory, now time.Time) Outcome {
	if r.Inventory != nil && string(protocol.Marshal(*r.Inventory)) == string(protocol.Marshal(inv)) {
		return Outcome{Duplicate: true}
	}
	var known []string
	if r.Inventory != nil {
		known = r.Inventory.Damaged
	}
	r.Inventory = &inv
	f := fact(protocol.InventoryChanged, r.Node, inv, now)
	f.Key = "inventory/" + string(r.Node)
	out := Outcome{Changed: true, Facts: []Fact{f}}
	// The inventory of a later start of the agent does not name them any more.
	for _, file := range inv.Damaged {
		if !slices.Contains(known, file) {
			out.Damaged = append(out.Damaged, file)
			out.Facts = append(out.Facts, fact(protocol.StateDamaged, r.Node, &protocol.Loss{V: protocol.Version, Class: file, Records: 1}, now))
		}
	}
	return out
}

// newAgent notes that the agent is another one, as after it was installed anew. What it
// holds its NodeReport says.
func (r *Record) newAgent(agent string) Outcome {
	if r.Agent != "" {
		r.Complete = false
	}
	r.Agent = agent
	for _, d := range r.Deployments {
		d.Agent, d.Seq = "", 0
	}
	return Outcome{Changed: true}
}

// catchUp makes the transitions between what is recorded of a deployment and a report of it. last is
// the state that the report follows then; ok is false where no way leads to it.
func (r *Record) catchUp(d *Deployment, m protocol.DeploymentStatus, now time.Time) (missed []Fact, last lifecycle.State, ok bool) {
	way, last, ok := route(d.Status.State, m.State, d.Status.Recovering)
	if !ok {
		return nil, last, false
	}
	for _, s := range way {
		mid, err := r.Transition(bridge(m, s), now)
		if err != nil {
			return missed, last, false
		}
		missed = append(missed, StatusFact(mid, now))
	}
	return missed, last, true
}

// ApplyReport folds a report of the node in. Transitions that the LO never recorded are
// put before it, so that the journal always obeys the lifecycle.
func (r *Record) ApplyReport(m protocol.DeploymentStatus, now time.Time) Outcome {
	var out Outcome
	if m.Agent != "" && m.Agent != r.Agent {
		out = r.newAgent(m.Agent)
	}
	d := r.Deployments[m.Deployment]
	if d == nil {
		d = &Deployment{}
	}
	if m.Agent == d.Agent && m.Seq != 0 && m.Seq <= d.Seq {
		out.Duplicate = true
		return out
	}
	if m.Actor != lifecycle.EN || !m.State.Valid() || m.State == lifecycle.Pending {
		return r.anomaly(m, out, now)
	}
	if d.Status.State == "" && m.State == lifecycle.Deleted {
		out.Duplicate = true // nothing of it was ever recorded, so there is nothing to end
		return out
	}
	r.Deployments[m.Deployment] = d
	if m.Seq != 0 || m.Agent != d.Agent { // progress may come without a number
		d.Agent, d.Seq = m.Agent, m.Seq
	}
	d.Removed = m.State == lifecycle.Deleted
	if d.replaced(m) {
		d.judge(m)
		out.Stale, out.Changed = true, true
		return out
	}
	from := d.Status.State
	missed, last, ok := r.catchUp(d, m, now)
	out.Facts = append(out.Facts, missed...)
	if !ok {
		return r.anomaly(m, out, now)
	}
	m.From = last
	if m.State == lifecycle.Installed && (m.Refused == "" || m.Refused == d.Refused.Digest && m.Code == "") && d.Refused.Digest != "" && d.Refused.Digest != m.Digest {
		m.Refused, m.Code, m.Message = d.Refused.Digest, d.Refused.Code, d.Refused.Message
	}
	// The other changes that this function makes are in no event.
	reported := !out.Changed && !d.Due && !d.Removed && d.Agent == r.Agent
	if m.Digest == d.Assigned.Digest && (m.Attempt == 0 || m.Attempt == d.Assigned.Attempt) {
		d.Due = false // the node was faster than the LO's own transition
	}
	// A failure is never mere progress: where it is of another attempt, or follows the
	// LO's own FAILED (node_lost), it alone says that the node waits for an assignment.
	out.Changed = out.Changed || from != m.State || d.Status.Digest != m.Digest || m.State == lifecycle.Failed
	out.Reported = reported
	news := !repeats(m, d.Status)
	d.record(m, now)
	if news {
		out.Facts = append(out.Facts, StatusFact(m, now))
	}
	return out
}

// repeats reports whether m says of an INSTALLED version what the last status said: a node that
// connects anew reports its containers once more.
func repeats(m, last protocol.DeploymentStatus) bool {
	if m.State != lifecycle.Installed || last.State != m.State {
		return false
	}
	for _, s := range []*protocol.DeploymentStatus{&m, &last} {
		s.V, s.Boot, s.Agent, s.Seq, s.From, s.Position, s.UnixMillis, s.Unsynced = 0, "", "", 0, "", protocol.Position{}, 0, false
	}
	return string(protocol.Marshal(&m)) == string(protocol.Marshal(&last))
}

// replaced reports whether m is about an assignment that the LO replaced meanwhile.
func (d *Deployment) replaced(m protocol.DeploymentStatus) bool {
	a := d.Assigned
	if m.Digest == a.Digest && m.Attempt == a.Attempt {
		return false
	}
	if m.State == lifecycle.Deleted && d.Removing {
		return false
	}
	if d.Status.State == lifecycle.Deleted && a.Digest == "" {
		return false // nothing was assigned in its place: the node has begun it after the removal that its last report ended
	}
	older := !m.Position.IsZero() && a.Position.After(m.Position)
	earlier := m.State == lifecycle.Failed && m.Digest == a.Digest && m.Attempt != 0 && m.Attempt < a.Attempt
	return older || earlier
}

func (r *Record) anomaly(m protocol.DeploymentStatus, out Outcome, now time.Time) Outcome {
	out.Anomaly = true
	out.Facts = append(out.Facts, fact(protocol.AnomalyEvent, r.Node, m, now))
	return out
}

// bridge returns the LO's transition to s that the report m presupposes. It has no
// attempt, for it assigns nothing.
func bridge(m protocol.DeploymentStatus, s lifecycle.State) protocol.DeploymentStatus {
	return protocol.DeploymentStatus{
		Deployment: m.Deployment, State: s, Digest: m.Digest, App: m.App, AppVersion: m.AppVersion,
		Position: m.Position,
	}
}

// route returns the LO's transitions that must precede a report of to, and the state
// that the report then follows. Only a version that was recovering can have become
// INSTALLED with no attempt of the LO's in between.
func route(from, to lifecycle.State, recovering bool) (way []lifecycle.State, last lifecycle.State, ok bool) {
	if from == lifecycle.Failed && to == lifecycle.Installed && !recovering {
		return []lifecycle.State{lifecycle.Installing}, lifecycle.Installing, true
	}
	if lifecycle.Check(from, to, lifecycle.EN) == nil {
		return nil, from, true
	}
	if lifecycle.Check(from, to, lifecycle.LO) == nil {
		return []lifecycle.State{to}, to, true
	}
	if way, ok := lifecycle.Bridge(from, to); ok && len(way) > 0 {
		return way, way[len(way)-1], true
	}
	if way := loRoute(from, to); way != nil {
		return way, to, true
	}
	return nil, from, false
}

// loRoute returns the shortest route from one state to another by transitions of the LO
// alone, to included; nil if there is none.
func loRoute(from, to lifecycle.State) []lifecycle.State {
	type path struct {
		at  lifecycle.State
		way []lifecycle.State
	}
	seen := map[lifecycle.State]bool{from: true}
	for queue := []path{{at: from}}; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		for _, s := range lifecycle.States {
			if seen[s] || lifecycle.Check(p.at, s, lifecycle.LO) != nil {
				continue
			}
			seen[s] = true
			way := append(p.way[:len(p.way):len(p.way)], s)
			if s == to {
				return way
			}
			queue = append(queue, path{s, way})
		}
	}
	return nil
}

// Transition records a transition of the LO and returns its status, completed, for the
// journal. It changes nothing and returns an error where the lifecycle does not allow
// the transition.
func (r *Record) Transition(m protocol.DeploymentStatus, now time.Time) (protocol.DeploymentStatus, error) {
	m.From = r.State(m.Deployment)
	if m.Actor == "" {
		m.Actor = lifecycle.LO
	}
	if err := lifecycle.Check(m.From, m.State, m.Actor); err != nil {
		return m, err
	}
	d := r.Deployments[m.Deployment]
	if d == nil {
		d = &Deployment{}
		r.Deployments[m.Deployment] = d
	}
	m.V, m.Node, m.UnixMillis = protocol.Version, r.Node, now.UnixMilli()
	m.Running, m.RunningVersion = d.running(m.State)
	d.record(m, now)
	return m, nil
}

// running returns what the node keeps up once the LO has moved the deployment to a state:
// what it reported last.
func (d *Deployment) running(next lifecycle.State) (protocol.Digest, string) {
	switch next {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack, lifecycle.Failed:
	case lifecycle.Pending, lifecycle.Installed, lifecycle.Deleting, lifecycle.Deleted:
		return "", ""
	}
	if d.Status.State == lifecycle.Installed {
		return d.Status.Digest, d.Status.AppVersion
	}
	return d.Status.Running, d.Status.RunningVersion
}

// record makes m the last status. m.From is the state before.
func (d *Deployment) record(m protocol.DeploymentStatus, now time.Time) {
	if d.Status.State != m.State {
		d.SinceMillis = now.UnixMilli()
		d.FailedFrom = ""
		d.RetryMillis = 0
		switch m.State {
		case lifecycle.Failed:
			d.FailedFrom = d.Status.State
		case lifecycle.Installed:
			d.InstalledMillis = now.UnixMilli()
		case lifecycle.Deleted:
			*d = Deployment{Agent: d.Agent, Seq: d.Seq, Followed: d.Followed, Removed: d.Removed, Tried: d.Tried, Assigned: Assignment{Position: d.Assigned.Position}, SinceMillis: now.UnixMilli()}
		case lifecycle.Pending, lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack, lifecycle.Deleting:
		}
	}
	if m.State == lifecycle.Failed && m.RetryMillis != 0 {
		d.RetryMillis = m.RetryMillis // also of a record that is restored from the journal
	}
	d.Follow(m.Site)
	d.judge(m)
	d.Status = m
}
