package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// connected is why a node is not forgotten that is there.
const connected = "it is connected: stop its agent, or the gateway, then remove it again"

// decommission forgets the nodes that the desired state names, each once, and reports it.
// What waits for a node that may still come back after the start of the LO is done later.
func (l *Loop) decommission(ctx context.Context, desired protocol.SiteDesired, now time.Time) error {
	list := slices.DeleteFunc(slices.Clone(desired.Decommissions), func(d protocol.Decommission) bool {
		return !d.Position.After(l.state.Decommissioned)
	})
	slices.SortFunc(list, func(a, b protocol.Decommission) int {
		return cmp.Or(a.Position.Compare(b.Position), cmp.Compare(a.Node, b.Node))
	})
	done := l.state.Decommissioned
	for i, d := range list {
		waits, err := l.site.forget(ctx, d, now)
		if err != nil {
			return err
		}
		if waits {
			break
		}
		delete(l.due, d.Node)
		if i == len(list)-1 || list[i+1].Position != d.Position {
			done = d.Position
		}
	}
	if done == l.state.Decommissioned {
		return nil
	}
	l.state.Decommissioned, l.placement = done, nil
	l.site.reconcileAll()
	return l.site.store.SaveSite(l.state)
}

// forget forgets a node, unless it is connected, and reports what became of it. It waits
// where the node was connected before this LO started, and may come back.
func (s *Site) forget(ctx context.Context, d protocol.Decommission, now time.Time) (waits bool, err error) {
	n := s.lock(d.Node)
	defer n.mu.Unlock()
	m := protocol.Decommissioned{V: protocol.Version, Position: d.Position}
	if n.rec.Online() {
		if !n.seen {
			return true, nil
		}
		m.Reason = connected
	}
	f := siteFact(protocol.NodeDecommissioned, "", &m, now)
	f.Event.Node = d.Node
	if _, err := s.append(ctx, []nodes.Fact{f}); err != nil {
		return false, err
	}
	if m.Reason != "" {
		s.log.WarnContext(ctx, "node is not forgotten", "node_id", d.Node, "reason", m.Reason)
		return false, nil
	}
	if err := s.store.RemoveNode(d.Node); err != nil {
		return false, err
	}
	n.removed = true
	s.drop(d.Node)
	s.log.InfoContext(ctx, "node is forgotten: it was decommissioned", "node_id", d.Node)
	return false, nil
}

// drop takes a node off the site.
func (s *Site) drop(id protocol.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, id)
	delete(s.dirty, id)
	delete(s.limits.restricted, id)
}

// lock returns the node of that name, locked. It makes an unknown node.
func (s *Site) lock(id protocol.NodeID) *node {
	for {
		n := s.node(id)
		n.mu.Lock()
		if !n.removed {
			return n
		}
		n.mu.Unlock() // it was forgotten meanwhile: the next is a new one
	}
}

// known returns the node of that name, nil where there is none.
func (s *Site) known(id protocol.NodeID) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[id]
}
