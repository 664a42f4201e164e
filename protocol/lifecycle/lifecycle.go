// Package lifecycle is the life of one deployment on one node: its states, and which tier may move
// it from one to the next. All tiers use this one table: EN and LO refuse to emit a transition that
// is not in it, and the CO refuses to record one.
package lifecycle

import (
	"fmt"
	"slices"
)

// A State is where a deployment stands on one node. The zero State, "", means
// that no report was ever made; it is valid only as the state before PENDING.
type State string

// The states. Each says what a crash there means.
const (
	// Pending: the LO placed the deployment on the node; the node has not begun.
	// After a crash the LO finds it again in its desired state.
	Pending State = "PENDING"

	// Installing: EN pulls, creates, starts and waits for health, with nothing of
	// the deployment running before. After a crash EN begins again; each step is idempotent.
	Installing State = "INSTALLING"

	// Installed: running and healthy at the desired digest. After a crash EN adopts
	// the containers that still run and restarts those that do not.
	Installed State = "INSTALLED"

	// Updating: EN replaces a running version by another. After a crash EN goes on
	// to the new version.
	Updating State = "UPDATING"

	// Failed: an error, with a code and a message. A version that was healthy for the
	// minimum time stays: EN restarts it until it works. Else EN waits and the LO decides
	// what is next. After a crash EN goes on with the one or the other.
	Failed State = "FAILED"

	// RollingBack: EN returns to the last healthy version. After a crash EN begins again.
	RollingBack State = "ROLLINGBACK"

	// Deleting: EN stops and removes. After a crash EN begins again.
	Deleting State = "DELETING"

	// Deleted: removed, confirmed by the node, archived by CO.
	Deleted State = "DELETED"
)

// States lists every state, worst first: the order in which the state of a
// deployment over several nodes is derived from theirs.
var States = []State{Failed, RollingBack, Updating, Installing, Deleting, Pending, Installed, Deleted}

// An Actor is the tier that makes a move.
type Actor string

// The actors. CO makes none: it records.
const (
	LO Actor = "LO" // the local orchestrator
	EN Actor = "EN" // the agent of a node
)

// A Transition is one line of the table.
type Transition struct {
	From, To State
	Actors   []Actor
	Trigger  string
}

// Transitions returns the whole table, in the order in which the documentation shows it.
func Transitions() []Transition {
	return slices.Clone(table)
}

var table = []Transition{
	{"", Pending, []Actor{LO}, "LO placed it on the node"},
	{Pending, Installing, []Actor{LO}, "LO assigns it to the node"},
	{Installing, Installed, []Actor{EN}, "running and probe healthy"},
	{Installing, Failed, []Actor{EN, LO}, "pull, create, start or probe error; node lost while installing"},
	{Installed, Updating, []Actor{LO}, "the digest changed"},
	{Updating, Installed, []Actor{EN}, "new version healthy"},
	{Updating, Failed, []Actor{EN, LO}, "as for install"},
	{Installed, Failed, []Actor{EN}, "crash loop, or unhealthy past its threshold"},
	{Failed, Installed, []Actor{EN}, "a version that was healthy for the minimum time works again"},
	{Failed, Installing, []Actor{LO}, "retry of an install, or a new digest where nothing was healthy before"},
	{Failed, Updating, []Actor{LO}, "retry of an update, or a new digest"},
	{Failed, RollingBack, []Actor{LO}, "rollback policy on, and an earlier healthy version exists"},
	{RollingBack, Installed, []Actor{EN}, "the earlier version is healthy again"},
	{RollingBack, Failed, []Actor{EN, LO}, "the earlier version does not come up either"},
	{Installed, RollingBack, []Actor{LO}, "manual rollback"},
	{Pending, Deleting, []Actor{LO}, "removed from desired state"},
	{Installing, Deleting, []Actor{LO}, "removed from desired state"},
	{Installed, Deleting, []Actor{LO}, "removed from desired state"},
	{Updating, Deleting, []Actor{LO}, "removed from desired state"},
	{Failed, Deleting, []Actor{LO}, "removed from desired state"},
	{RollingBack, Deleting, []Actor{LO}, "removed from desired state"},
	{Deleting, Deleted, []Actor{EN}, "stopped and removed"},
	{Deleting, Failed, []Actor{EN}, "cannot stop or remove; retried"},
	{Installing, Updating, []Actor{LO}, "the desired digest changed while installing"},
	{Updating, RollingBack, []Actor{LO}, "manual rollback while updating"},
	{RollingBack, Updating, []Actor{LO}, "the desired digest changed while rolling back"},
	{Deleted, Pending, []Actor{LO}, "deployed again under the same name"},
	{Deleting, Pending, []Actor{LO}, "deployed again before it was gone"},
	{Installing, Pending, []Actor{LO}, "the node has no record of it: its state was lost, or is older"},
	{Installed, Pending, []Actor{LO}, "the node has no record of it: its state was lost, or is older"},
	{Updating, Pending, []Actor{LO}, "the node has no record of it: its state was lost, or is older"},
	{Failed, Pending, []Actor{LO}, "the node has no record of it: its state was lost, or is older"},
	{RollingBack, Pending, []Actor{LO}, "the node has no record of it: its state was lost, or is older"},
}

// Check returns nil where actor may move a deployment from one state to the
// next, and otherwise an error that names both. A report that repeats the state
// (progress within it) is always allowed.
func Check(from, to State, actor Actor) error {
	if from == to && from.Valid() {
		return nil
	}
	for _, m := range table {
		if m.From == from && m.To == to && slices.Contains(m.Actors, actor) {
			return nil
		}
	}
	return fmt.Errorf("lifecycle: %s may not move a deployment from %q to %q", actor, from, to)
}

// Bridge returns the moves that the LO has to record, in order, before EN's
// report of to can follow from: all of them the LO's to make. The list ends with
// to itself where only the LO moves a deployment there and EN merely repeats it
// as progress. It is empty where the report follows directly, and nil, false
// where no such way exists. An LO uses it when a node brings news of moves whose
// first half the LO never recorded.
func Bridge(from, to State) (before []State, ok bool) {
	if Check(from, to, EN) == nil {
		return nil, true
	}
	type path struct {
		at  State
		way []State
	}
	seen := map[State]bool{from: true}
	for queue := []path{{at: from}}; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		for _, m := range table {
			if m.From != p.at || seen[m.To] || !slices.Contains(m.Actors, LO) {
				continue
			}
			seen[m.To] = true
			way := append(slices.Clone(p.way), m.To)
			if Check(m.To, to, EN) == nil {
				return way, true
			}
			queue = append(queue, path{m.To, way})
		}
	}
	return nil, false
}

// Valid reports whether s is one of the States.
func (s State) Valid() bool { return slices.Contains(States, s) }

// Stable reports whether a deployment stays in s until a change of it is desired.
func (s State) Stable() bool { return s == Installed || s == Deleted }

// Worst returns the first of States that is among the given: the state of a
// deployment over several nodes. It returns Pending where none is given.
func Worst(of []State) State {
	for _, s := range States {
		if slices.Contains(of, s) {
			return s
		}
	}
	return Pending
}
