package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A node is a gateway with its agent: what en and en/agent do about the decisions of
// en/plan, in steps.
type node struct {
	w       *world
	id      protocol.NodeID
	name    string // in the trace
	site    *site
	labels  map[string]string
	clock   *clock
	machine *machine
	link    *link
	rng     *rand.Rand

	// On disk.
	agent   string
	counter uint64
	records map[protocol.DeploymentName]plan.Record
	desired *protocol.NodeDesired

	// Of the agent's process.
	alive   bool
	boot    int
	session string // of the connection; empty: none
	whole   bool   // the LO is to get everything that the node holds
	sending bool   // a report awaits its acknowledgement
	ops     map[protocol.DeploymentName]*operation
}

// resync is how often an agent looks at its containers without a reason.
const resync = 10 * time.Minute

func newNode(w *world, s *site, id protocol.NodeID) *node {
	name := string(s.id) + "/" + string(id)
	n := &node{w: w, id: id, name: name, site: s, clock: &clock{w: w}, rng: w.draws(name), records: map[protocol.DeploymentName]plan.Record{}}
	n.machine = newMachine(w, n.clock)
	n.machine.exited = n.exited
	n.agent = name + "-1"
	return n
}

// start starts the agent's process.
func (n *node) start() {
	n.w.logf(n.name, "agent %s starts", n.agent)
	n.alive, n.ops = true, map[protocol.DeploymentName]*operation{}
	for _, name := range slices.Sorted(maps.Keys(n.records)) {
		n.perform(name)
	}
	n.reconcile()
	n.tick()
	n.link.reconnect()
}

// tick reconciles every resync for as long as this process lives.
func (n *node) tick() {
	boot := n.boot
	n.w.after(resync, func() {
		if n.alive && boot == n.boot {
			n.reconcile()
			n.tick()
		}
	})
}

// kill ends the agent's process. The programs go on.
func (n *node) kill() {
	if !n.alive {
		return
	}
	n.w.logf(n.name, "agent killed")
	n.alive = false
	n.boot++
	for _, o := range n.ops {
		o.end()
	}
	n.link.drop()
}

// powerOff ends everything without a last message.
func (n *node) powerOff() {
	if !n.alive {
		return
	}
	n.w.logf(n.name, "power lost")
	n.alive = false
	n.boot++
	for _, o := range n.ops {
		o.end()
	}
	n.machine.reboot()
	n.session, n.sending = "", false
	n.link.fallSilent()
}

// wipe removes what the agent has on disk, as an installation anew does.
func (n *node) wipe() {
	n.w.logf(n.name, "agent state lost")
	n.agent = fmt.Sprintf("%s-%d", n.name, n.boot+1)
	n.counter, n.records, n.desired = 0, map[protocol.DeploymentName]plan.Record{}, nil
}

func (n *node) running() bool { return n.alive }

// up reports the node to the LO, and then what was not sent yet.
func (n *node) up(session string) {
	n.session, n.sending, n.whole = session, false, true
	p := protocol.Presence{V: protocol.Version, Online: true, Agent: n.agent, Boot: fmt.Sprint(n.boot), Version: "sim", Session: session}
	n.link.send(upward, func() { n.site.acceptPresence(n.id, p) })
	inv := protocol.Inventory{V: protocol.Version, Node: n.id, Labels: n.labels, Architecture: "amd64", Cores: 4, MemoryBytes: 4 << 30}
	n.link.send(upward, func() { n.site.acceptInventory(inv) })
	n.sendNext()
}

func (n *node) down(session string) {
	if n.session == session {
		n.session, n.sending = "", false
	}
}

// accept applies a NodeDesired.
func (n *node) accept(payload []byte) {
	var d protocol.NodeDesired
	if err := protocol.Unmarshal(payload, &d); err != nil || !n.alive {
		n.w.logf(n.name, "desired state not accepted: %v", err)
		return
	}
	if !plan.Supersedes(n.desired, &d) {
		n.w.logf(n.name, "desired state %s is not after %s", d.Position, n.desired.Position)
		n.whole = d.Held() != n.desired.Held()
		n.sendNext()
		return
	}
	n.w.logf(n.name, "desired state %s, %d assignments", d.Position, len(d.Assignments))
	for _, r := range d.Removals {
		if !r.Site.IsZero() && !n.w.co.asked(n.site.id, r) {
			n.w.logf(n.name, "FAULT %s is to be removed at %s, and its removal was not requested", r.Deployment, r.Site)
		}
	}
	n.desired = &d
	n.reconcile()
}

// reconcile carries out what en/plan finds to do.
func (n *node) reconcile() {
	records := make([]plan.Record, 0, len(n.records))
	for _, name := range slices.Sorted(maps.Keys(n.records)) {
		records = append(records, n.records[name])
	}
	for _, a := range plan.Plan(n.desired, records, n.machine.list()) {
		switch {
		case a.Kind == plan.Sweep:
			n.sweep("")
			continue
		case a.Kind == plan.Forget:
			n.ops[a.Record.Deployment].end()
			delete(n.records, a.Record.Deployment)
			delete(n.ops, a.Record.Deployment)
			continue
		case a.Record.State == lifecycle.Deleted, a.Record.State == lifecycle.Installed || a.Record.State == lifecycle.Failed:
			n.report(a.Record, a.Record.Report(a.From))
		default:
			n.save(a.Record)
		}
		n.perform(a.Record.Deployment)
	}
}

// sweep removes what belongs to no deployment, or to the one that is given.
func (n *node) sweep(removed protocol.DeploymentName) {
	if n.desired == nil {
		return
	}
	var o engine.SweepOptions
	for _, name := range slices.Sorted(maps.Keys(n.records)) {
		rec := n.records[name]
		if name == removed || rec.State == lifecycle.Deleted {
			o.Removed = append(o.Removed, name)
		} else {
			o.KeepImages = append(o.KeepImages, rec.ImagesInUse()...)
		}
	}
	n.machine.sweep(o)
}

// save writes a record.
func (n *node) save(rec plan.Record) {
	if from := n.records[rec.Deployment].State; from != rec.State {
		n.w.logf(n.name, "%s %s -> %s %s attempt %d %s %s", rec.Deployment, from, rec.State, rec.Digest.Short(), rec.Attempt, rec.Code, rec.Message)
	}
	n.records[rec.Deployment] = rec
}

// report writes a record together with a report of it.
func (n *node) report(rec plan.Record, m protocol.DeploymentStatus) {
	rec = rec.Clone()
	rec.Reports = append(rec.Reports, n.stamp(m))
	n.save(rec)
	n.sendNext()
}

// stamp completes a report.
func (n *node) stamp(m protocol.DeploymentStatus) protocol.DeploymentStatus {
	n.counter++
	m.Seq, m.Node, m.Agent, m.Boot = n.counter, n.id, n.agent, fmt.Sprint(n.boot)
	m.UnixMillis = n.clock.wall().UnixMilli()
	return m
}

// progress sends a report that may get lost, after those that may not.
func (n *node) progress(m protocol.DeploymentStatus) {
	if n.session == "" || n.oldest() != nil {
		return
	}
	m = n.stamp(m)
	n.link.send(upward, func() { n.site.acceptReport(m) })
}

// oldest returns the first report that the LO has not acknowledged, or nil.
func (n *node) oldest() *protocol.DeploymentStatus {
	var first *protocol.DeploymentStatus
	for _, rec := range n.records {
		if len(rec.Reports) > 0 && (first == nil || rec.Reports[0].Seq < first.Seq) {
			first = &rec.Reports[0]
		}
	}
	return first
}

// sendNext sends the oldest report, one at a time.
func (n *node) sendNext() {
	m := n.oldest()
	if n.sending || n.session == "" {
		return
	}
	if m == nil {
		n.sendAll()
		return
	}
	n.sending = true
	report := *m
	n.link.send(upward, func() {
		n.site.acceptReport(report)
		n.link.send(downward, func() { n.acknowledged(report) })
	})
}

// sendAll sends everything that the node holds, if it is due.
func (n *node) sendAll() {
	if !n.whole {
		return
	}
	n.whole = false
	n.counter++
	m := protocol.NodeReport{
		V: protocol.Version, Node: n.id, Agent: n.agent, Boot: fmt.Sprint(n.boot), Seq: n.counter, UnixMillis: n.clock.wall().UnixMilli(),
	}
	if n.desired != nil {
		m.Held = n.desired.Held()
	}
	for _, name := range slices.Sorted(maps.Keys(n.records)) {
		rec := n.records[name]
		st := rec.Report(rec.State)
		st.Unassigned = plan.Unassigned(n.desired, name)
		m.Statuses = append(m.Statuses, st)
	}
	n.link.send(upward, func() { n.site.acceptNodeReport(m) })
}

// acknowledged removes a report that the LO has.
func (n *node) acknowledged(m protocol.DeploymentStatus) {
	if !n.alive || n.session == "" {
		return // it came to a machine without power
	}
	n.sending = false
	rec := n.records[m.Deployment]
	if len(rec.Reports) > 0 && rec.Reports[0].Seq == m.Seq {
		rec.Reports = slices.Clone(rec.Reports[1:])
		n.records[m.Deployment] = rec
		if rec.State == lifecycle.Deleted && len(rec.Reports) == 0 {
			n.reconcile() // it may have done its work, or be desired again
		}
	}
	n.sendNext()
}
