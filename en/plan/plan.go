package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Kind is a sort of Action.
type Kind int

// The kinds.
const (
	// Begin starts work on a deployment, in the place of what is going on there.
	Begin Kind = iota + 1
	// Note writes new facts into the record; the work goes on. The state is
	// reported once more.
	Note
	// Forget ends a record that is no longer needed: the deployment is DELETED, or was refused from
	// the start; the LO knows of it, and the desired state does not name it any more.
	Forget
	// Sweep removes what the engine holds of deployments that are DELETED.
	Sweep
)

// An Action is one difference between what should be and what is.
type Action struct {
	Kind Kind
	// Record is what to write down before anything else, or to forget. Empty in Sweep.
	Record Record
	// From is the state before, for the report.
	From lifecycle.State
}

// Plan compares what should run with the node's records and containers. Only what
// desired names as a removal is removed; what it does not name stays as it is. A nil
// desired means that none was received. The actions are sorted by deployment, Sweep
// comes last.
func Plan(desired *protocol.NodeDesired, records []Record, observed []engine.Status) []Action {
	if desired == nil {
		return nil
	}
	known := map[protocol.DeploymentName]*Record{}
	names := make([]protocol.DeploymentName, 0, len(records)+len(desired.Assignments))
	for i := range records {
		known[records[i].Deployment] = &records[i]
		names = append(names, records[i].Deployment)
	}
	for _, a := range desired.Assignments {
		names = append(names, a.Deployment)
	}
	for _, r := range desired.Removals {
		names = append(names, r.Deployment)
	}
	slices.Sort(names)
	var actions []Action
	for _, name := range slices.Compact(names) {
		if a, ok := Next(known[name], AssignmentFor(desired, name)); ok {
			actions = append(actions, a)
		}
	}
	for _, s := range observed {
		if r := known[s.ID.Deployment]; r != nil && r.State == lifecycle.Deleted {
			return append(actions, Action{Kind: Sweep})
		}
	}
	return actions
}

// Unknown returns the deployments that have containers and no record, sorted: the record was lost.
// Their removal was not asked for, so they stay.
func Unknown(records []Record, observed []engine.Status) []protocol.DeploymentName {
	var out []protocol.DeploymentName
	for _, s := range observed {
		if !slices.ContainsFunc(records, func(r Record) bool { return r.Deployment == s.ID.Deployment }) {
			out = append(out, s.ID.Deployment)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Overtaken returns the deployments whose records say that they are being removed, or were, and which have containers that were made for a
// later position, or were followed up to one: such a record is of before that, as on a disk that was set back. What it says is not carried out.
func Overtaken(records []Record, observed []engine.Status, followed map[protocol.DeploymentName]protocol.Position) (out []protocol.DeploymentName) {
	for _, r := range records {
		removes := r.State == lifecycle.Deleting || r.State == lifecycle.Deleted
		later := followed[r.Deployment].After(r.Site) ||
			slices.ContainsFunc(observed, func(s engine.Status) bool { return s.ID.Deployment == r.Deployment && s.Site.After(r.Site) })
		if removes && later {
			out = append(out, r.Deployment)
		}
	}
	return out
}

// Unassigned reports whether desired neither assigns nor removes a deployment: it stays
// as it is.
func Unassigned(desired *protocol.NodeDesired, name protocol.DeploymentName) bool {
	if desired == nil {
		return true
	}
	o := AssignmentFor(desired, name)
	return o.Assignment == nil && o.Removal == nil
}

// An Assignment is what a NodeDesired says about one deployment.
type Assignment struct {
	Deployment protocol.DeploymentName
	Assignment *protocol.Assignment  // nil: it is not assigned
	Removal    *protocol.NodeRemoval // nil: it is not to be removed
	Position   protocol.Position
	// Refusal says why Assignment is not to be carried out; nil: it is.
	Refusal *Failure
}

// AssignmentFor returns what desired says about a deployment.
func AssignmentFor(desired *protocol.NodeDesired, name protocol.DeploymentName) Assignment {
	o := Assignment{Deployment: name, Position: desired.Position}
	for i := range desired.Assignments {
		if desired.Assignments[i].Deployment == name {
			o.Assignment = &desired.Assignments[i]
			return o
		}
	}
	for i := range desired.Removals {
		if desired.Removals[i].Deployment == name {
			o.Removal = &desired.Removals[i]
		}
	}
	return o
}

// Next compares one record, nil if there is none, with what is desired of it, and
// returns the action that is due, if any.
func Next(rec *Record, o Assignment) (Action, bool) {
	a := o.Assignment
	switch {
	case a == nil && o.Removal == nil:
		if rec != nil && (rec.State == lifecycle.Deleted || rec.Stranger()) && len(rec.Reports) == 0 {
			return Action{Kind: Forget, Record: *rec, From: rec.State}, true
		}
		return Action{}, false
	case a == nil && rec == nil:
		// Containers may be there although the record was lost; if nothing is, that is
		// reported, and the LO removes no more.
		return remove(Record{Deployment: o.Deployment}, o)
	case a == nil:
		return remove(*rec, o)
	case rec == nil:
		return begin(Record{Deployment: o.Deployment, Unseen: true}, o), true
	case a.Digest != rec.Digest:
		return begin(*rec, o), true
	}
	again := a.Attempt != rec.Attempt || a.Rollback && !rec.Rollback
	switch rec.State {
	case lifecycle.Deleting, lifecycle.Deleted:
		return begin(*rec, o), true
	case lifecycle.Failed:
		if again {
			return begin(*rec, o), true
		}
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		if a.Rollback && !rec.Rollback {
			return begin(*rec, o), true
		}
	case lifecycle.Installed, lifecycle.Pending:
	}
	// The LO counts on: report to it where the node stands.
	if again {
		next := rec.Clone()
		next.Attempt, next.Rollback = a.Attempt, a.Rollback // both, or the same news would be due for ever
		next.Position, next.Site = o.Position, a.Site
		next.MinHealthyMillis, next.NoRollback = a.MinHealthyMillis, a.NoRollback
		return Action{Kind: Note, Record: next.refuses(a), From: rec.State}, true
	}
	if a.Refused != "" && a.Refused != rec.Refused && (rec.State == lifecycle.Installed || rec.State == lifecycle.Failed) {
		next := rec.Clone()
		next.Position = o.Position
		return Action{Kind: Note, Record: next.refuses(a), From: rec.State}, true
	}
	if rec.State == lifecycle.Installed && rec.Proven != rec.Digest && rec.MinHealthyMillis != a.MinHealthyMillis {
		next := rec.Clone()
		next.Position, next.MinHealthyMillis = o.Position, a.MinHealthyMillis
		return Action{Kind: Note, Record: next, From: rec.State}, true
	}
	return Action{}, false
}

// refuses returns the record with what an assignment says was given up for its version: the record that had it may be lost.
func (r Record) refuses(a *protocol.Assignment) Record {
	if a.Refused == "" || a.Refused == r.Refused {
		return r
	}
	r.Refused = a.Refused
	if r.State != lifecycle.Failed { // there they are of the failure
		r.Code, r.Message = "", ""
	}
	return r
}

// remove returns the beginning of a removal. A tombstone of the CO is not carried out on
// a version that the CO desired later.
func remove(rec Record, o Assignment) (Action, bool) {
	r := o.Removal
	switch {
	case !r.Site.IsZero() && rec.Site.After(r.Site):
		return Action{}, false
	case rec.State == lifecycle.Deleting && (rec.Volumes || !r.Volumes), rec.State == lifecycle.Deleted && rec.Position == o.Position:
		return Action{}, false
	}
	next := rec.Clone()
	if rec.State == lifecycle.Deleted { // the LO has not received the answer, or did not apply it
		next.Position = o.Position
		return Action{Kind: Note, Record: next, From: rec.State}, true
	}
	next.State, next.Position, next.Volumes = lifecycle.Deleting, o.Position, r.Volumes
	if r.Site.After(next.Site) {
		next.Site = r.Site
	}
	next.Refused, next.Code, next.Message, next.EarlierSpec = "", "", "", nil
	return Action{Kind: Begin, Record: next, From: rec.State}, true
}

// begin returns the first state of the way to a new version, or FAILED where the
// version cannot be accepted.
func begin(rec Record, o Assignment) Action {
	a, from := o.Assignment, rec.State
	next := rec.Clone()
	next.Refused, next.Code, next.Message = "", "", ""
	next.State, next.Volumes, next.EarlierSpec = lifecycle.Installing, false, nil
	switch {
	case a.Rollback:
		next.State = lifecycle.RollingBack
		next.Refused = rec.Digest
		if rec.State == lifecycle.Failed {
			next.Code, next.Message = rec.Code, rec.Message
		}
		if rec.Digest == a.Digest { // the way back itself is tried again
			next.Refused = rec.Refused
		}
	case from == lifecycle.Deleting || from == lifecycle.Deleted || from == "":
		next.Healthy, next.HealthyImages, next.HealthyContainers, next.Proven = "", nil, nil, ""
		next.FormerSpec = nil
	case from != lifecycle.Failed || rec.Healthy != "":
		next.State = lifecycle.Updating
	}
	next = next.refuses(a)
	next.Digest, next.Spec, next.Attempt, next.Rollback = a.Digest, a.Spec, a.Attempt, a.Rollback
	next.Position, next.Site = o.Position, a.Site
	next.MinHealthyMillis, next.NoRollback = a.MinHealthyMillis, a.NoRollback
	f := o.Refusal
	if f == nil {
		f = Verify(*a)
	} else {
		next.Site = rec.Site // the position of a stranger is not trusted
		if rec.State == lifecycle.Deleted {
			next.Site = protocol.Position{}
		}
	}
	if f != nil {
		from = next.State
		next.Spec = nil
		if next = next.Failed(*f); rec.Active != "" { // a refusal ends nothing that is up
			next.Active, next.ActiveSpec = rec.Active, rec.ActiveSpec
		}
	}
	return Action{Kind: Begin, Record: next, From: from}
}

// maxSpec bounds a spec, in bytes: a record on disk holds up to two, and must be readable
// as one message.
const maxSpec = protocol.MaxMessage * 3 / 8

// Verify checks that an assignment holds the spec that its digest names, and
// that this program understands it. It returns nil where all is well. Whether the CO
// signed for it is for package trust.
func Verify(a protocol.Assignment) *Failure {
	if err := a.Digest.Verify(a.Spec); err != nil {
		return &Failure{protocol.DigestMismatch, fmt.Sprintf("spec of %s: %v: the desired state was damaged on its way", a.Deployment, err)}
	}
	if len(a.Spec) > maxSpec {
		return &Failure{protocol.Incompatible, fmt.Sprintf("spec of %s has %d bytes: a node takes up to %d", a.Deployment, len(a.Spec), maxSpec)}
	}
	spec, err := Decode(a.Spec)
	if err != nil {
		return &Failure{protocol.Incompatible, fmt.Sprintf("spec of %s: %v", a.Deployment, err)}
	}
	if spec.Deployment != a.Deployment {
		return &Failure{protocol.Incompatible, fmt.Sprintf("the spec assigned to %s is that of deployment %s", a.Deployment, spec.Deployment)}
	}
	n := 0
	for _, c := range spec.Components {
		n += len(c.Containers)
	}
	if n == 0 {
		return &Failure{protocol.Incompatible, fmt.Sprintf("spec of %s: it has no containers", a.Deployment)}
	}
	return nil
}

// Supersedes reports whether next is to take the place of held, nil if the node
// holds none: only a greater position does.
func Supersedes(held, next *protocol.NodeDesired) bool {
	return held == nil || next.Position.After(held.Position)
}

// Check returns what is wrong with a NodeDesired of any node: an error of kind Invalid.
func Check(d *protocol.NodeDesired) error {
	if d.Position.IsZero() {
		return protocol.Errorf(protocol.Invalid, "desired state without a position: upgrade the LO to the release of this agent")
	}
	assigned := map[protocol.DeploymentName]bool{}
	for _, a := range d.Assignments { // the name becomes that of a file
		if _, err := protocol.ParseDeploymentName(string(a.Deployment)); err != nil {
			return err
		}
		assigned[a.Deployment] = true
	}
	for _, r := range d.Removals {
		if _, err := protocol.ParseDeploymentName(string(r.Deployment)); err != nil {
			return err
		}
		if assigned[r.Deployment] {
			return protocol.Errorf(protocol.Invalid, "desired state %s assigns deployment %s and removes it", d.Position, r.Deployment)
		}
	}
	return nil
}

func byName(records []Record) []Record {
	return slices.SortedFunc(slices.Values(records), func(a, b Record) int {
		return strings.Compare(string(a.Deployment), string(b.Deployment))
	})
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
