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
	// Sweep removes what the engine holds of deployments without a record.
	Sweep
)

// An Action is one difference between what should be and what is.
type Action struct {
	Kind Kind
	// Record is what to write down before anything else. Empty in Sweep.
	Record Record
	// From is the state before, for the report.
	From lifecycle.State
}

// Plan compares what should run with the node's records and containers. A nil
// desired means that the node was never told, and must not be taken for "run
// nothing". The actions are sorted by deployment, Sweep comes last.
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
	slices.Sort(names)
	var actions []Action
	for _, name := range slices.Compact(names) {
		if a, ok := Next(known[name], AssignmentFor(desired, name)); ok {
			actions = append(actions, a)
		}
	}
	for _, s := range observed {
		if known[s.ID.Deployment] == nil && AssignmentFor(desired, s.ID.Deployment).Assignment == nil {
			return append(actions, Action{Kind: Sweep})
		}
	}
	return actions
}

// An Assignment is what a NodeDesired says about one deployment.
type Assignment struct {
	Deployment protocol.DeploymentName
	Assignment *protocol.Assignment // nil: it is to be removed
	Generation uint64
	Epoch      string
}

// AssignmentFor returns what desired says about a deployment.
func AssignmentFor(desired *protocol.NodeDesired, name protocol.DeploymentName) Assignment {
	o := Assignment{Deployment: name, Generation: desired.Generation, Epoch: desired.Epoch}
	for i := range desired.Assignments {
		if desired.Assignments[i].Deployment == name {
			o.Assignment = &desired.Assignments[i]
		}
	}
	return o
}

// Next compares one record, nil if there is none, with its order, and returns
// the action that is due, if any.
func Next(rec *Record, o Assignment) (Action, bool) {
	a := o.Assignment
	switch {
	case a == nil && rec == nil:
		return Action{}, false
	case a == nil:
		return remove(*rec, o)
	case rec == nil:
		return begin(Record{Deployment: o.Deployment}, o), true
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
	// The LO counts on, or has lost its own records: tell it where we stand.
	if again || o.Epoch != rec.Epoch {
		next := rec.Clone()
		next.Attempt, next.Rollback = a.Attempt, a.Rollback // both, or the same news would be due for ever
		next.Generation, next.Epoch = o.Generation, o.Epoch
		return Action{Kind: Note, Record: next, From: rec.State}, true
	}
	return Action{}, false
}

func remove(rec Record, o Assignment) (Action, bool) {
	if rec.State == lifecycle.Deleting || rec.State == lifecycle.Deleted {
		return Action{}, false
	}
	next := rec.Clone()
	next.State, next.Generation, next.Epoch = lifecycle.Deleting, o.Generation, o.Epoch
	next.Refused, next.Code, next.Message = "", "", ""
	return Action{Kind: Begin, Record: next, From: rec.State}, true
}

// begin returns the first state of the way to a new version, or FAILED where the
// version cannot be accepted.
func begin(rec Record, o Assignment) Action {
	a, from := o.Assignment, rec.State
	next := rec.Clone()
	next.Refused, next.Code, next.Message = "", "", ""
	next.State = lifecycle.Installing
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
	case from != lifecycle.Failed || rec.Healthy != "":
		next.State = lifecycle.Updating
	}
	next.Digest, next.Spec, next.Attempt, next.Rollback = a.Digest, a.Spec, a.Attempt, a.Rollback
	next.Generation, next.Epoch = o.Generation, o.Epoch
	if f := Verify(*a); f != nil {
		from = next.State
		next.Spec = nil
		next = next.Failed(*f)
	}
	return Action{Kind: Begin, Record: next, From: from}
}

// maxSpec bounds a spec, in bytes: a record holds up to two, and must be readable
// as one message.
const maxSpec = protocol.MaxMessage * 3 / 8

// Verify checks that an assignment holds the spec that its digest names, and
// that this program understands it. It returns nil where all is well. Once
// fleets have an identity, the signature is checked here too.
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
// holds none: a lower generation of the same epoch is news from the past.
func Supersedes(held, next *protocol.NodeDesired) bool {
	return held == nil || held.Epoch != next.Epoch || next.Generation >= held.Generation
}

func byName(records []Record) []Record {
	return slices.SortedFunc(slices.Values(records), func(a, b Record) int {
		return strings.Compare(string(a.Deployment), string(b.Deployment))
	})
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
