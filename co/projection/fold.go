package projection

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// Fold returns what to record when the batch follows upon the record, which must
// hold what Needs named and is changed by the call. now is the CO's clock.
func (b *Batch) Fold(record Record, now time.Time) Changes {
	f := &fold{record: record, now: now, reports: len(b.reports), Changes: Changes{
		Nodes: map[protocol.NodeID]fleet.Node{}, Statuses: make(map[Key]fleet.DeploymentNode, len(record.States)),
		RemovedNodes: map[protocol.NodeID]bool{}, RemovedStatuses: map[Key]bool{}, Decommissions: map[protocol.NodeID]string{},
		Placements: map[protocol.DeploymentName]protocol.PlacementReport{},
		Apps:       map[protocol.DeploymentName]App{},
	}}
	if f.record.Nodes == nil {
		f.record.Nodes = map[protocol.NodeID]fleet.Node{}
	}
	if f.record.States == nil {
		f.record.States = map[Key]lifecycle.State{}
	}
	for i := range b.reports {
		f.apply(&b.reports[i])
	}
	f.Changes.Site = f.record.Site
	return f.Changes
}

type fold struct {
	Changes
	record  Record
	now     time.Time
	reports int
	// received and results are where in Received and Results what a batch says of a command is.
	received map[command.ID]int
	results  map[nodeCommand]int
}

func (f *fold) apply(r *report) {
	if r.Kind == protocol.Superseded {
		return
	}
	if r.reason != "" {
		f.anomaly(r, r.reason)
		return
	}
	switch m := r.message.(type) {
	case *protocol.Presence:
		f.presence(r, m)
	case *protocol.Inventory:
		before := f.record.Nodes[r.Node].Inventory
		f.inventory(r.Node, m)
		f.event(r, fleet.Event{Node: r.Node})
		f.machineProblem(r, before, m)
	case *protocol.NodeGateways:
		f.gateways(r.Node, m)
		f.event(r, fleet.Event{Node: r.Node, Message: cmp.Or(f.record.Nodes[r.Node].Problem, "a single gateway uses this name again")})
	case *restriction.Report:
		f.restrictions(r, m)
	case *protocol.DeploymentStatus:
		f.report(r, m)
	case *protocol.PlacementReport:
		f.placement(r, m)
	case *protocol.Adopted:
		f.adopted(r, m)
	case *protocol.EpochRaised:
		f.epochRaised(r, m)
	case *protocol.Holdings:
		f.holdings(r, m)
	case *protocol.Decommissioned:
		f.decommissioned(r, m)
	case *protocol.Enrolment:
		f.enrolment(r, m)
	case *protocol.RevocationsReport:
		f.Revocations = bounded(m.Number)
		f.event(r, fleet.Event{Message: cmp.Or(clean(m.Reason), fmt.Sprintf("list %d of %d keys", m.Number, m.Keys))})
	case *protocol.ClocksReport:
		f.event(r, fleet.Event{Message: clocksMessage(m)})
	case *command.Received:
		f.commandReceived(r, m)
	case *command.Result:
		f.commandResult(r, m)
	case *protocol.ClientReport:
		f.event(r, fleet.Event{Message: clientMessage(r.Kind, m)})
	case *protocol.Loss:
		if r.Kind == protocol.StateDamaged {
			f.event(r, fleet.Event{Node: r.Node, Message: damageMessage(f.record.Site.ID, r.Node, m)})
			break
		}
		f.record.Site.Lost = bounded(f.record.Site.Lost + bounded(m.Records))
		what := "damaged and lost, check the disk of the site"
		if m.Limit() {
			what = "dropped under their limit"
		}
		f.event(r, fleet.Event{Node: r.Node, Message: fmt.Sprintf("%d %s records (%d bytes) %s", m.Records, clean(m.Class), m.Bytes, what)})
	case *protocol.Snapshot:
		f.snapshot(r, m)
	}
}

func (f *fold) event(r *report, e fleet.Event) {
	e.Kind, e.Time, e.SiteTime, e.Unsynced = string(r.Kind), f.now, siteTime(r.UnixMillis), r.Unsynced
	if f.Events == nil {
		f.Events = make([]fleet.Event, 0, f.reports) // an event is large to copy
	}
	f.Events = append(f.Events, e)
}

func (f *fold) anomaly(r *report, reason string) {
	a := Anomaly{Seq: r.Seq, Kind: protocol.EventKind(clean(string(r.Kind))), Node: r.Node, Reason: reason, Body: r.Body}
	e := fleet.Event{
		Kind: string(protocol.AnomalyEvent), Time: f.now, SiteTime: siteTime(r.UnixMillis), Unsynced: r.Unsynced, Node: r.Node, Message: reason,
	}
	if s, ok := r.message.(*protocol.DeploymentStatus); ok && checkStatus(s, s.Node) == "" {
		a.Deployment, e.Deployment = s.Deployment, s.Deployment
		a.Node, e.Node = cmp.Or(a.Node, s.Node), cmp.Or(e.Node, s.Node)
		e.To, e.Code = s.State, protocol.Code(clean(string(s.Code)))
	}
	f.Anomalies = append(f.Anomalies, a)
	f.Events = append(f.Events, e)
}

func (f *fold) presence(r *report, m *protocol.Presence) {
	version := clean(m.Version)
	if r.Kind == protocol.LOStarted {
		f.record.Site.Version = cmp.Or(version, f.record.Site.Version)
		f.event(r, fleet.Event{Message: version})
		return
	}
	if r.Node == "" {
		f.anomaly(r, "a node's presence without a node")
		return
	}
	_, known := f.record.Nodes[r.Node]
	f.online(r.Node, r.Kind == protocol.NodeOnlineEvent, version)
	f.event(r, fleet.Event{Node: r.Node, Message: version})
	if !known && r.Kind == protocol.NodeOnlineEvent && f.record.Decommissioned[r.Node] {
		f.Events = append(f.Events, fleet.Event{
			Kind: fleet.NodeReturned, Time: f.now, SiteTime: siteTime(r.UnixMillis), Unsynced: r.Unsynced, Node: r.Node,
			Message: "the node was removed, and has connected again: it is a node of the site once more, with what it holds",
		})
	}
}

func (f *fold) online(id protocol.NodeID, online bool, version string) {
	n, known := f.record.Nodes[id]
	n.ID = id
	if n.Problem == unknownToSite {
		n.Problem = ""
	}
	if !known || n.Online != online {
		at := f.now
		n.Online, n.ChangedAt = online, &at
	}
	n.Version = cmp.Or(version, n.Version)
	f.setNode(n)
}

func (f *fold) inventory(id protocol.NodeID, m *protocol.Inventory) {
	n := f.record.Nodes[id]
	f.unrecorded(n.Inventory, m)
	n.ID, n.Inventory, n.Labels = id, m, m.Labels
	n.Version = cmp.Or(clean(m.AgentVersion), n.Version)
	f.setNode(n)
}

// machineProblem makes the event of a problem of a node's machine that is new, or over.
func (f *fold) machineProblem(r *report, before, now *protocol.Inventory) {
	if before == nil {
		before = &protocol.Inventory{}
	}
	if before.Problem == now.Problem {
		return
	}
	f.event(r, fleet.Event{Node: r.Node, Message: cmp.Or(clean(now.Problem), fleet.NoProblem)})
	f.Events[len(f.Events)-1].Kind = fleet.NodeProblem
}

// gateways records whether several gateways use the name of a node.
func (f *fold) gateways(id protocol.NodeID, m *protocol.NodeGateways) {
	n := f.record.Nodes[id]
	n.ID, n.Problem = id, clean(m.Problem())
	f.setNode(n)
}

func (f *fold) setNode(n fleet.Node) {
	f.record.Nodes[n.ID], f.Nodes[n.ID] = n, n
	delete(f.RemovedNodes, n.ID)
}

func (f *fold) adopted(r *report, m *protocol.Adopted) {
	message := fmt.Sprintf("desired state %s", m.Position)
	f.record.Site.Held = &m.Held
	if r.Kind == protocol.DesiredAdopted {
		f.record.Site.Adopted = protocol.Position{Epoch: bounded(m.Position.Epoch), Generation: bounded(m.Position.Generation)}
	} else {
		message += ": " + clean(m.Reason)
	}
	if r.Kind == protocol.DesiredRefused && f.raises(m) {
		return
	}
	f.event(r, fleet.Event{Message: message})
}

// raises reports whether a site refused what it has overtaken for no other reason than that the record was set back: the record is
// raised above what the site holds, which is an event, or was.
func (f *fold) raises(m *protocol.Adopted) bool {
	s := f.record.Site
	return m.Overtaken && (m.Held.Position.After(s.Desired) || m.Held.Position == s.Raised)
}

// enrolment records the certificate of a node, that it got none, or that it waits. A renewal is no event, nor
// is that a node goes on waiting.
func (f *fold) enrolment(r *report, m *protocol.Enrolment) {
	remote := clean(m.Remote)
	if m.Code != "" {
		f.event(r, fleet.Event{Node: r.Node, Message: fmt.Sprintf("from %s: %s: %s", remote, clean(m.Code), clean(m.Reason))})
		return
	}
	if r.Kind == protocol.MachinePending {
		p := Pending{Node: r.Node, Key: hex.EncodeToString(m.Key), Device: clean(m.Device), Remote: remote}
		f.Pending = append(f.Pending, p)
		if !m.Renewal {
			f.event(r, fleet.Event{Node: r.Node, Message: fmt.Sprintf("its key %.16s waits to be approved, from %s, serial number %q", p.Key, remote, p.Device)})
		}
		return
	}
	e := Enrolment{Node: r.Node, Key: hex.EncodeToString(m.Key), Serial: clean(m.Serial)}
	if end := siteTime(m.EndMillis); end != nil {
		e.NotAfter = *end
	}
	f.Enrolments = append(f.Enrolments, e)
	if !m.Renewal {
		where := "at the LO of its site"
		if remote != "" {
			where += ", from " + remote
		}
		f.event(r, fleet.Event{Node: r.Node, Message: where})
	}
}

// epochRaised records that a node held what its LO does not remember.
func (f *fold) epochRaised(r *report, m *protocol.EpochRaised) {
	message := fmt.Sprintf("the node held the desired state %s, which its LO does not remember; the LO had published %s last", m.Held.Position, m.Last.Position)
	if m.Reason != "" {
		message += ", and leaves the node as it is: " + clean(m.Reason)
	} else {
		message += fmt.Sprintf(", learned what the node runs, and goes on at %s", m.Position)
	}
	f.event(r, fleet.Event{Node: r.Node, Message: message})
}

func (f *fold) placement(r *report, m *protocol.PlacementReport) {
	f.Placements[m.Deployment] = *m
	f.app(m.Deployment, App{})
	f.event(r, fleet.Event{Deployment: m.Deployment, Message: clean(m.Problem)})
}

// app records that the batch names the deployment, and of which application it is.
func (f *fold) app(d protocol.DeploymentName, app App) {
	if old := f.Apps[d]; app.ID == "" {
		app = old
	}
	f.Apps[d] = app
}

// report applies one status, unless it breaks the lifecycle table.
func (f *fold) report(r *report, m *protocol.DeploymentStatus) {
	k := Key{m.Deployment, m.Node}
	old := f.record.States[k]
	if err := lifecycle.Check(old, m.State, m.Actor); err != nil && !f.record.Site.Gap {
		f.record.Site.Incomplete = f.record.Site.Incomplete || old == "" // the site knows more of it
		f.anomaly(r, clean(err.Error()))
		return
	}
	f.status(r, m)
	if kind, message := decision(old, m); kind != "" {
		f.event(r, fleet.Event{Node: m.Node, Deployment: m.Deployment, AppVersion: clean(m.AppVersion), Message: message})
		f.Events[len(f.Events)-1].Kind = kind
		return
	}
	f.event(r, fleet.Event{
		Node: m.Node, Deployment: m.Deployment, From: old, To: m.State, Phase: protocol.Phase(clean(string(m.Phase))),
		Pulled: bounded(m.PulledBytes), Total: bounded(m.TotalBytes), AppVersion: clean(m.AppVersion),
		Code: protocol.Code(clean(string(m.Code))), Message: cmp.Or(clean(m.Message), containerMessage(old, m)),
	})
}

// containerMessage says what became of the containers of a version that stays INSTALLED: "" where
// the report has other news.
func containerMessage(old lifecycle.State, m *protocol.DeploymentStatus) string {
	if old != lifecycle.Installed || m.State != old {
		return ""
	}
	message := ""
	for _, c := range m.Components {
		name := clean(c.Component) + "/" + clean(c.Container)
		switch {
		case c.State == "exited":
			return fmt.Sprintf("container %s exited with %d, restarts so far: %d", name, c.ExitCode, c.Restarts)
		case c.State == "unhealthy":
			return fmt.Sprintf("container %s is unhealthy: %s", name, clean(c.Message))
		case c.Restarts > 0 && message == "":
			message = fmt.Sprintf("all containers are up, restarts of %s so far: %d", name, c.Restarts)
		}
	}
	return message
}

// decision returns the event of what an LO makes of a failure that is recorded: its report
// repeats the failure, which is no news. The kind is empty where it is another report.
func decision(old lifecycle.State, m *protocol.DeploymentStatus) (kind, message string) {
	if m.Actor != lifecycle.LO || old != lifecycle.Failed || m.State != lifecycle.Failed {
		return "", ""
	}
	if at := siteTime(m.RetryMillis); at != nil {
		return fleet.RetryPlanned, fmt.Sprintf("attempt %d failed; the next one follows at %s by the site's clock", m.Attempt, at.UTC().Format(time.RFC3339))
	}
	if m.Refused != "" {
		return fleet.GivenUp, "no further attempt is made until another version is desired or a person asks for a retry"
	}
	return "", ""
}

// status records a state, and the transition to it where the state is new.
func (f *fold) status(r *report, m *protocol.DeploymentStatus) {
	k := Key{m.Deployment, m.Node}
	old := f.record.States[k]
	s := fleet.DeploymentNode{
		Node: m.Node, State: m.State, Phase: protocol.Phase(clean(string(m.Phase))),
		PulledBytes: bounded(m.PulledBytes), TotalBytes: bounded(m.TotalBytes),
		Digest: protocol.Digest(clean(string(m.Digest))), Refused: protocol.Digest(clean(string(m.Refused))),
		AppVersion: clean(m.AppVersion), Attempt: m.Attempt,
		Code: protocol.Code(clean(string(m.Code))), Message: clean(m.Message),
		Components: m.Components, UpdatedAt: f.now, Since: f.Statuses[k].Since,
		Running: protocol.Digest(clean(string(m.Running))), RunningVersion: clean(m.RunningVersion), RetryAt: siteTime(m.RetryMillis),
	}
	if old != m.State {
		s.Since = f.now
	}
	f.record.States[k], f.Statuses[k] = m.State, s
	delete(f.RemovedStatuses, k)
	f.app(m.Deployment, App{clean(m.App), clean(m.AppVersion)})
	if old != m.State {
		f.Transitions = append(f.Transitions, Transition{m.Deployment, fleet.Transition{
			Time: f.now, SiteTime: siteTime(cmp.Or(m.UnixMillis, r.UnixMillis)), Unsynced: unsynced(r, m), Node: m.Node,
			From: old, To: m.State, Actor: lifecycle.Actor(clean(string(m.Actor))), Digest: s.Digest,
			AppVersion: s.AppVersion, Attempt: m.Attempt, Code: s.Code, Message: s.Message,
		}})
	}
}

// unsynced reports whether the clock of a transition was not synchronised: that of the node,
// or of the LO where that made it.
func unsynced(r *report, m *protocol.DeploymentStatus) bool {
	return m.Unsynced || r.Unsynced && (m.UnixMillis == 0 || m.UnixMillis == r.UnixMillis)
}

// unknownToSite is the problem of a node that the LO of its site does not know.
const unknownToSite = "the site's LO has lost its record of this node, which has not connected since: what is shown is what it reported before; " +
	"where it does not exist any more, remove it"

// snapshot applies the state of the site as far as its LO knows it, and closes a gap. Transitions that it implies become events,
// so that watchers see them. The lost events were counted when the gap was found.
func (f *fold) snapshot(r *report, m *protocol.Snapshot) {
	unknown := f.keepUnknown(m)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		f.online(n.Node, n.Presence.Online, clean(n.Presence.Version))
		f.gateways(n.Node, &protocol.NodeGateways{Gateways: n.Gateways})
		f.snapshotRestrictions(n)
		if n.Inventory.Node != "" || len(n.Inventory.Labels) > 0 {
			f.inventory(n.Node, &n.Inventory)
		}
	}
	for i := range m.Statuses {
		s := &m.Statuses[i]
		old := f.record.States[Key{s.Deployment, s.Node}]
		f.status(r, s)
		if old != s.State {
			f.Events = append(f.Events, fleet.Event{
				Kind: string(protocol.StatusEvent), Time: f.now, SiteTime: siteTime(s.UnixMillis), Unsynced: s.Unsynced, Node: s.Node, Deployment: s.Deployment,
				From: old, To: s.State, AppVersion: clean(s.AppVersion), Code: protocol.Code(clean(string(s.Code))), Message: clean(s.Message),
			})
		}
	}
	if !m.Adopted.IsZero() { // the event that says so may be lost
		f.record.Site.Adopted = protocol.Position{Epoch: bounded(m.Adopted.Epoch), Generation: bounded(m.Adopted.Generation)}
	}
	said := f.record.Site.GapSaid && unknown == 0 && m.Cause == ""
	f.record.Site.Gap, f.record.Site.Incomplete, f.record.Site.GapSaid = false, false, false
	if said {
		return
	}
	message := fmt.Sprintf("%d nodes, %d deployment states", len(m.Nodes), len(m.Statuses))
	if m.Lost > 0 {
		message += fmt.Sprintf(", after %d events that were lost", m.Lost)
	}
	if unknown > 0 {
		message += fmt.Sprintf("; the site does not know %d nodes that are recorded here, which stay as they were", unknown)
	}
	if m.Cause != "" {
		message += "; the site numbers its events anew: " + clean(m.Cause)
	}
	f.event(r, fleet.Event{Message: message})
}

// keepUnknown forgets the states that the snapshot does not list of nodes that have reported everything to the LO. A node that it
// does not list stays, with what it ran: the LO may have lost its record. It returns the number of such nodes.
func (f *fold) keepUnknown(m *protocol.Snapshot) (unknown int) {
	complete, listed, keys := map[protocol.NodeID]bool{}, map[protocol.NodeID]bool{}, map[Key]bool{}
	for i := range m.Nodes {
		listed[m.Nodes[i].Node], complete[m.Nodes[i].Node] = true, m.Nodes[i].Complete
	}
	for i := range m.Statuses {
		keys[Key{m.Statuses[i].Deployment, m.Statuses[i].Node}] = true
	}
	for _, id := range slices.Sorted(maps.Keys(f.record.Nodes)) {
		if listed[id] {
			continue
		}
		unknown++
		f.online(id, false, "")
		n := f.record.Nodes[id]
		n.Problem = unknownToSite
		f.setNode(n)
	}
	f.forget(func(k Key) bool { return complete[k.Node] && !keys[k] })
	return unknown
}

// holdings removes from the record of a node what the node does not hold: the LO had no whole
// record of the node, so that no report says that it ended.
func (f *fold) holdings(r *report, m *protocol.Holdings) {
	f.heldRestrictions(r, m)
	held := map[protocol.DeploymentName]bool{}
	for _, name := range m.Deployments {
		held[name] = true
	}
	for _, k := range f.forget(func(k Key) bool { return k.Node == r.Node && !held[k.Deployment] }) {
		f.event(r, fleet.Event{Node: r.Node, Deployment: k.Deployment, Message: "the node has no record of it; since when is not known: what the site said of that is lost, or the site had lost its record"})
	}
}

// forget removes the states whose keys are picked, and returns those that were not
// DELETED, sorted.
func (f *fold) forget(pick func(Key) bool) (removed []Key) {
	for _, k := range slices.SortedFunc(maps.Keys(f.record.States), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Node, b.Node))
	}) {
		if !pick(k) {
			continue
		}
		if f.record.States[k] != lifecycle.Deleted {
			removed = append(removed, k)
		}
		delete(f.record.States, k)
		delete(f.Statuses, k)
		f.RemovedStatuses[k] = true
		f.app(k.Deployment, App{})
	}
	return removed
}

// decommissioned forgets a node that a person has removed, where the site has forgotten it
// for the request that stands.
func (f *fold) decommissioned(r *report, m *protocol.Decommissioned) {
	position, asked := f.record.Decommissions[r.Node]
	if !asked || position != m.Position {
		f.event(r, fleet.Event{Node: r.Node, Message: "the site answers a removal that does not stand any more"})
		return
	}
	delete(f.record.Decommissions, r.Node)
	f.Decommissions[r.Node] = clean(m.Reason)
	if m.Reason != "" {
		f.event(r, fleet.Event{Node: r.Node, Message: "the site keeps the node: " + clean(m.Reason)})
		return
	}
	removed := f.forget(func(k Key) bool { return k.Node == r.Node })
	f.unrecorded(f.record.Nodes[r.Node].Inventory, nil)
	delete(f.record.Nodes, r.Node)
	delete(f.Nodes, r.Node)
	f.RemovedNodes[r.Node] = true
	if f.record.Decommissioned == nil {
		f.record.Decommissioned = map[protocol.NodeID]bool{}
	}
	f.record.Decommissioned[r.Node] = true
	f.event(r, fleet.Event{Node: r.Node, Message: fmt.Sprintf("the node was removed; it held %d deployments", len(removed))})
}
