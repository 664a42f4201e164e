package projection

import (
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Count has a number of nodes for each of lifecycle.States, in their order.
type Count [8]int

// Of returns the number of a state.
func (c *Count) Of(s lifecycle.State) int {
	if i := slices.Index(lifecycle.States, s); i >= 0 {
		return c[i]
	}
	return 0
}

func (c *Count) add(s lifecycle.State, n int) {
	if i := slices.Index(lifecycle.States, s); i >= 0 {
		c[i] += n
	}
}

// A Tally is the count of what the nodes of a deployment report. Each change of a node updates it,
// so that its cost does not depend on the number of nodes.
type Tally struct {
	Desired protocol.Digest // of the deployment
	App     string          // of the deployment; empty: not known yet
	Recorded
	// Reported counts the nodes by their states, and Shown by those that they show.
	Reported, Shown Count
	// Running has the versions that nodes keep up, with the number of nodes.
	Running map[string]int
	// FaultNode is the first node that shows FAILED, with what it reported; empty: none.
	FaultNode protocol.NodeID
	Fault     string

	// Touched says that a node reported something. Changed says that its state or digest
	// changed, or that it is new or was removed.
	Touched, Changed bool
	// faultLost says that the FaultNode recovered, so that another one is to be found.
	faultLost bool
}

// Recorded is what is recorded of a deployment besides its nodes.
type Recorded struct {
	State lifecycle.State
	// Known says that the deployments repo has it, Broken that its file does not compile.
	Known, Broken bool
	Archived      bool
	Generation    uint64 // that last changed it
	Replicas      int    // how many nodes should run it; 0: every node that matches
}

// Derive returns the state of a deployment that is desired and not archived, at a site
// that has adopted a generation: the worst that its nodes show, where INSTALLED asks for
// more. The function deployment_state of the database says the same, for all.
func (t *Tally) Derive(adopted uint64) lifecycle.State {
	for i, s := range lifecycle.States {
		switch {
		case t.Shown[i] == 0:
		case s == lifecycle.Deleted:
			return lifecycle.Pending
		case s == lifecycle.Installed && (t.Desired != "" && (t.Generation > adopted || t.Broken) || t.Shown[i] < t.Replicas):
			return lifecycle.Pending
		default:
			return s
		}
	}
	return lifecycle.Pending
}

// Shows returns the state that a node shows. Where no version is desired that is what it
// reported. One on which another version than the
// desired one is INSTALLED has FAILED if it gave the desired one up, and is otherwise
// still to be updated.
func Shows(n fleet.DeploymentNode, desired protocol.Digest) lifecycle.State {
	switch {
	case n.State != lifecycle.Installed || n.Digest == desired || desired == "":
		return n.State
	case n.Refused == desired:
		return lifecycle.Failed
	default:
		return lifecycle.Pending
	}
}

// Change replaces what a node reported before; was or is is nil where there is nothing.
func (t *Tally) Change(node protocol.NodeID, was, is *fleet.DeploymentNode) {
	if was != nil {
		t.count(*was, -1)
	}
	failed := false
	if is != nil {
		t.count(*is, 1)
		failed = Shows(*is, t.Desired) == lifecycle.Failed
	}
	t.Touched = true
	t.Changed = t.Changed || was == nil || is == nil || was.State != is.State || was.Digest != is.Digest
	switch {
	case failed && (t.FaultNode == "" || node <= t.FaultNode):
		t.FaultNode, t.Fault = node, is.Fault()
	case !failed && node == t.FaultNode:
		t.FaultNode, t.Fault, t.faultLost = "", "", true
	}
}

func (t *Tally) count(n fleet.DeploymentNode, by int) {
	t.Reported.add(n.State, by)
	t.Shown.add(Shows(n, t.Desired), by)
	digest, version := n.Runs()
	if digest == "" && n.State != lifecycle.Installed {
		return
	}
	if t.Running == nil {
		t.Running = map[string]int{}
	}
	if t.Running[version] += by; t.Running[version] == 0 {
		delete(t.Running, version)
	}
}

// Incomplete reports whether the nodes have to be counted anew: some show FAILED, and
// the first of them is not known.
func (t *Tally) Incomplete() bool { return t.faultLost && t.Shown.Of(lifecycle.Failed) > 0 }
