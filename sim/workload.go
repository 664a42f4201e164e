package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// workloads is what a node runs and has to say of it. The node's mutex guards it.
type workloads struct {
	state   map[protocol.DeploymentName]*workload
	outbox  []protocol.DeploymentStatus // reports that the LO has not acknowledged, in order
	seq     uint64
	desired protocol.NodeDesired // the newest
}

// workload is one deployment on one node.
type workload struct {
	last     protocol.DeploymentStatus
	own      bool // it has no assignment
	digest   protocol.Digest
	attempt  uint32
	restarts uint32
	failures int
}

// begin installs a deployment without an assignment.
func (n *node) begin(name protocol.DeploymentName) {
	w := &workload{own: true, digest: protocol.DigestOf([]byte("sim " + name))}
	n.state[name] = w
	w.last = protocol.DeploymentStatus{
		V: protocol.Version, Node: n.id, Deployment: name, Agent: n.agent, Boot: n.agent, Actor: lifecycle.EN,
		Digest: w.digest, App: string(name), AppVersion: "1.0.0",
	}
	n.transition(w, lifecycle.Installing, "")
	n.transition(w, lifecycle.Installed, "")
}

// transition reports the next state of a workload, or progress within it.
func (n *node) transition(w *workload, to lifecycle.State, message string) {
	n.seq++
	m := w.last
	m.Seq, m.From, m.State, m.Message, m.Code, m.UnixMillis = n.seq, m.State, to, message, "", time.Now().UnixMilli()
	m.Digest, m.Attempt, m.Position = w.digest, w.attempt, n.desired.Position
	if to == lifecycle.Failed {
		m.Code = protocol.CrashLoop
	}
	m.Components = nil
	switch to { //nolint:exhaustive // the others say nothing of containers
	case lifecycle.Installed:
		m.Components = []protocol.ComponentStatus{{Component: "main", Container: "main", State: "running", Restarts: w.restarts}}
	case lifecycle.Failed:
		// A last line that does not compress, as log lines with ids and addresses.
		line := protocol.DigestOf(fmt.Appendf(nil, "%s %s %d", n.agent, m.Deployment, w.failures))
		m.Components = []protocol.ComponentStatus{{Component: "main", Container: "main", State: "exited", ExitCode: 1, Restarts: w.restarts, Message: "fatal: " + string(line)}}
	}
	w.last = m
	n.outbox = append(n.outbox, m)
	n.f.count(func(s *Stats) { s.Made++ })
}

// disturb makes something happen to one workload, chosen by roll.
func (n *node) disturb(roll uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.state) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(n.state))
	w := n.state[names[roll%uint64(len(names))]]
	switch w.last.State { //nolint:exhaustive // the others pass by themselves, or where the LO assigns
	case lifecycle.Installed:
		if roll>>32&1 == 0 {
			w.restarts++
			n.transition(w, lifecycle.Installed, "")
			break
		}
		w.failures++
		n.transition(w, lifecycle.Failed, fmt.Sprintf("failure %d", w.failures))
	case lifecycle.Failed:
		if w.own || n.f.opts.SelfHeal { // else the LO assigns it
			n.transition(w, lifecycle.Installing, "")
		}
	case lifecycle.Installing:
		n.transition(w, lifecycle.Installed, "")
	}
	n.news.Notify()
}

// obey does what the LO desires, and reports each step.
func (n *node) obey(want protocol.NodeDesired) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !want.Position.After(n.desired.Position) {
		return nil
	}
	n.desired = want
	for i := range want.Assignments {
		a := &want.Assignments[i]
		if err := n.assign(a); err != nil {
			return err
		}
	}
	for _, r := range want.Removals {
		if w := n.state[r.Deployment]; w != nil && w.last.State != lifecycle.Deleted {
			n.transition(w, lifecycle.Deleting, "")
			n.transition(w, lifecycle.Deleted, "")
		}
	}
	n.news.Notify()
	return nil
}

// assign begins an assignment, unless it was begun.
func (n *node) assign(a *protocol.Assignment) error {
	w := n.state[a.Deployment]
	if w != nil && w.digest == a.Digest && w.attempt == a.Attempt && w.last.State != lifecycle.Deleted {
		w.own = false
		return nil
	}
	var spec protocol.DeploymentSpec
	if err := protocol.Unmarshal(a.Spec, &spec); err != nil {
		return err
	}
	if w == nil {
		w = &workload{}
		n.state[a.Deployment] = w
	}
	step := lifecycle.Installing
	switch {
	case a.Rollback:
		step = lifecycle.RollingBack
	case w.last.State == lifecycle.Installed || w.last.State == lifecycle.Updating:
		step = lifecycle.Updating
	}
	w.own, w.digest, w.attempt = false, a.Digest, a.Attempt
	from := w.last.State
	w.last = protocol.DeploymentStatus{
		V: protocol.Version, Node: n.id, Deployment: a.Deployment, Agent: n.agent, Boot: n.agent, Actor: lifecycle.EN,
		State: from, App: spec.App, AppVersion: spec.AppVersion,
	}
	n.transition(w, step, "")
	n.transition(w, lifecycle.Installed, "")
	return nil
}
