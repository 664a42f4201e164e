package control

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// Accept applies a message or a last will of a node. The broker calls it before it
// acknowledges the message: when it returns nil, what must not be lost is on disk. It
// fails with kind Invalid for a message that can never be accepted, and with kind
// Denied for a topic that nodes do not publish on.
func (s *Site) Accept(ctx context.Context, name string, payload []byte) error {
	t, err := topic.Parse(name)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	now := s.opts.Now()
	switch t.Kind { //nolint:exhaustive // the others are no topics that a node publishes on
	case topic.NodeOnline:
		var p protocol.Presence
		if err := protocol.Unmarshal(payload, &p); err != nil {
			return err
		}
		return s.acceptPresence(ctx, t.Node, p, now)
	case topic.Inventory:
		var inv protocol.Inventory
		if err := protocol.Unmarshal(payload, &inv); err != nil {
			return err
		}
		if inv.Node != t.Node {
			return protocol.Errorf(protocol.Invalid, "inventory of node %q arrived on the topic of node %q", inv.Node, t.Node)
		}
		return s.acceptInventory(ctx, t.Node, inv, now)
	case topic.Status:
		var st protocol.DeploymentStatus
		if err := protocol.Unmarshal(payload, &st); err != nil {
			return err
		}
		if st.Node != t.Node || string(st.Deployment) != t.Tail {
			return protocol.Errorf(protocol.Invalid, "status of deployment %q on node %q arrived on topic %s", st.Deployment, st.Node, name)
		}
		return s.acceptReport(ctx, st, now)
	case topic.NodeReport:
		var m protocol.NodeReport
		if err := protocol.Unmarshal(payload, &m); err != nil {
			return err
		}
		if m.Node != t.Node || m.Agent == "" {
			return protocol.Errorf(protocol.Invalid, "report of node %q, agent %q, arrived on the topic of node %q", m.Node, m.Agent, t.Node)
		}
		return s.acceptNodeReport(ctx, m, now)
	case topic.Heartbeat:
		var h protocol.Heartbeat
		if err := protocol.Unmarshal(payload, &h); err != nil {
			return err
		}
		s.node(t.Node).beat.Store(&beat{h, now})
		return nil
	default:
		return protocol.Errorf(protocol.Denied, "topic %s is not for nodes to publish on", name)
	}
}

func (s *Site) acceptPresence(ctx context.Context, id protocol.NodeID, p protocol.Presence, now time.Time) error {
	n := s.lock(id)
	defer n.mu.Unlock()
	rec := n.rec.Clone()
	out := rec.ApplyPresence(p, now)
	if err := s.commitAccepted(ctx, n, rec, out.Facts, out.Changed); err != nil {
		if !p.Online && !out.Stale {
			n.willUnsaved = true
			s.willsUnsaved.Store(true)
			s.due.Notify()
		}
		return err
	}
	n.willUnsaved = n.willUnsaved && out.Stale
	n.seen = n.seen || p.Online
	if !rec.Online() {
		s.metrics.Left(id)
	}
	if len(out.Facts) > 0 {
		s.log.InfoContext(ctx, "node presence changed", "node_id", id, "online", p.Online, "agent_version", p.Version)
	}
	s.reconcileAll()
	return nil
}

func (s *Site) acceptInventory(ctx context.Context, id protocol.NodeID, inv protocol.Inventory, now time.Time) error {
	n := s.lock(id)
	defer n.mu.Unlock()
	rec := n.rec.Clone()
	out := rec.ApplyInventory(inv, now)
	if err := s.commitAccepted(ctx, n, rec, out.Facts, out.Changed); err != nil {
		return err
	}
	if out.Changed {
		s.reconcileAll()
	}
	for _, file := range out.Damaged {
		s.metrics.Damaged.WithLabelValues("node").Inc()
		s.log.ErrorContext(ctx, "state of a node was damaged; it counts as not held", "node_id", id, "state", file)
	}
	return nil
}

func (s *Site) acceptNodeReport(ctx context.Context, m protocol.NodeReport, now time.Time) error {
	n := s.lock(m.Node)
	defer n.mu.Unlock()
	last := n.rec.Held()
	rec := n.rec.Clone()
	out := rec.ApplyNodeReport(m, now)
	err := s.commit(ctx, n, rec, out.Facts, out.Changed)
	if err != nil && n.rec != rec {
		return err
	}
	// Where only the store failed the record counts all the same, and the same report
	// once more leads to nothing of this.
	n.follows = m.Held.Site
	for _, st := range m.Statuses {
		if st.Site.After(n.follows) {
			n.follows = st.Site
		}
	}
	n.reported = rec.Complete
	n.shownReported.Store(rec.Complete)
	n.unpublished = n.unpublished || m.Held.Position != last.Position
	switch {
	case rec.Ahead != "":
		s.log.ErrorContext(ctx, "node is left as it is: its position is too far ahead", "node_id", m.Node, "held", m.Held.Position.String(), "err", rec.Ahead)
	case out.Raised:
		s.lost.Store(true)
		s.log.WarnContext(ctx, "node holds a desired state that this lo does not remember: what it runs was learned anew", "node_id", m.Node,
			"held", m.Held.Position.String(), "last", last.Position.String(), "deployments", len(m.Statuses))
	}
	s.reconcileAll()
	return err
}

func (s *Site) acceptReport(ctx context.Context, m protocol.DeploymentStatus, now time.Time) error {
	n := s.lock(m.Node)
	defer n.mu.Unlock()
	from, phase := n.rec.State(m.Deployment), n.rec.Phase(m.Deployment)
	rec := n.rec.Clone()
	out := rec.ApplyReport(m, now)
	if err := s.commitAccepted(ctx, n, rec, out.Facts, out.Changed && !out.Reported); err != nil {
		return err
	}
	if out.Changed && out.Reported && n.firstUnsaved == 0 {
		n.firstUnsaved = n.rec.JournalSeq - uint64(len(out.Facts)) + 1
	}
	s.metrics.Reports.WithLabelValues(outcome(out)).Inc()
	s.metrics.Answered(m)
	switch {
	case out.Anomaly:
		s.log.WarnContext(ctx, "report does not fit the lifecycle; the co receives it as an anomaly", "node_id", m.Node, "deployment_id", m.Deployment,
			"from", string(from), "to", string(m.State), "actor", string(m.Actor))
	case from != m.State && !out.Stale && !out.Duplicate:
		s.logTransition(ctx, m, from)
	}
	switch {
	case out.Changed && m.State == lifecycle.Deleted:
		s.reconcileAll() // what it has taken of the node is free for others
	case out.Changed, rec.Phase(m.Deployment) != phase:
		s.reconcileNode(m.Node)
	}
	return nil
}

// commitAccepted is commit for what a message changed. When the journal has the events and the
// record could not be stored, the Loop stores it as soon as the disk accepts it, and then decides:
// a repetition of the message changes nothing.
func (s *Site) commitAccepted(ctx context.Context, n *node, rec *nodes.Record, facts []nodes.Fact, save bool) error {
	err := s.commit(ctx, n, rec, facts, save)
	if err != nil && n.unsaved {
		s.reconcileAll()
	}
	return err
}

// logTransition writes the one line that each transition of a deployment gets.
func (s *Site) logTransition(ctx context.Context, m protocol.DeploymentStatus, from lifecycle.State) {
	s.log.InfoContext(ctx, "deployment changed state", "node_id", m.Node, "deployment_id", m.Deployment, "from", string(from), "to", string(m.State),
		"actor", string(m.Actor), "attempt", m.Attempt, "digest", m.Digest.Short(), "code", string(m.Code), "message", m.Message)
}

// outcome names what a report led to, for the metric.
func outcome(out nodes.Outcome) string {
	switch {
	case out.Duplicate:
		return "duplicate"
	case out.Stale:
		return "stale"
	case out.Anomaly:
		return "anomaly"
	default:
		return "accepted"
	}
}
