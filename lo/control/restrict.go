package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// countEvery is how often what is left of a restriction is written down: a reboot of the machine loses so much of what has passed.
const countEvery = 10 * time.Minute

// Restrict changes what restricts a node. It is in the journal and on disk when it returns nil. A node that the site does not have
// is an error of kind NotFound.
func (s *Site) Restrict(ctx context.Context, id protocol.NodeID, c nodes.Change) (nodes.Outcome, error) {
	n := s.known(id)
	if n == nil {
		return nodes.Outcome{}, protocol.Errorf(protocol.NotFound, "the site has no node %s", id)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.removed {
		return nodes.Outcome{}, protocol.Errorf(protocol.NotFound, "the site has no node %s: it was removed", id)
	}
	rec := n.rec.Clone()
	out := rec.Restrict(c, s.opts.Clock(), s.opts.Now())
	if err := s.commitAccepted(ctx, n, rec, out.Facts, out.Changed); err != nil {
		return out, err
	}
	if len(out.Facts) > 0 {
		s.log.InfoContext(ctx, "restriction of a node changed", "node_id", id, "did", string(c.Do), "actor", c.Actor, "reason", c.Reason, "for", c.For.String())
		s.noteRestricted(rec)
		s.reconcileAll()
	}
	return out, nil
}

// noteRestricted notes whether anything restricts a node.
func (s *Site) noteRestricted(rec *nodes.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.limits.restricted, rec.Node); len(rec.Restrictions) > 0 {
		s.limits.restricted[rec.Node] = true
	}
	s.restrictionsChanged.Store(true)
}

// lostRestrictions reports what is left of the restrictions of nodes whose records were damaged.
func (s *Site) lostRestrictions(ctx context.Context, ids []protocol.NodeID) {
	for _, id := range ids {
		n := s.known(id)
		if n == nil {
			continue
		}
		if _, err := s.append(ctx, []nodes.Fact{n.rec.RestrictionsLost(s.began)}); err != nil {
			s.log.WarnContext(ctx, "that what restricted a node is lost could not be recorded", "node_id", id, "err", err)
		}
	}
}

// expireRestrictions ends the restrictions that are over, and returns when it is to be called again; zero: never. Until one is due, or
// one more is there, it looks at no node.
func (l *Loop) expireRestrictions(ctx context.Context, now time.Time) (next time.Time) {
	since := l.site.opts.Clock().SinceBoot
	if !l.site.restrictionsChanged.Swap(false) && since < l.expires {
		return now.Add(l.expires - since)
	}
	l.site.mu.Lock()
	ids := slices.Sorted(maps.Keys(l.site.limits.restricted))
	l.site.mu.Unlock()
	for _, id := range ids {
		if n := l.site.known(id); n != nil {
			next = earliest(next, l.site.expireRestrictions(ctx, n, now))
		}
	}
	if l.expires = since; !next.IsZero() {
		l.expires += next.Sub(now)
	}
	return next
}

func (s *Site) expireRestrictions(ctx context.Context, n *node, now time.Time) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	rec := n.rec.Clone()
	out, next := rec.ExpireRestrictions(s.opts.Clock(), countEvery, now)
	if n.removed || !out.Changed && next == 0 {
		return time.Time{}
	}
	if out.Changed {
		if err := s.commit(ctx, n, rec, out.Facts, true); err != nil {
			s.log.ErrorContext(ctx, "end of a restriction of a node could not be recorded", "node_id", n.id, "err", err)
			return now.Add(retryDelay)
		}
	}
	if len(out.Facts) > 0 {
		s.log.InfoContext(ctx, "restriction of a node has ended", "node_id", n.id)
		s.noteRestricted(rec)
		s.reconcileAll()
	}
	if next == 0 {
		return time.Time{}
	}
	return now.Add(next)
}

// replacing returns why a deployment does not leave a node yet that is drained: not each of its replicas is healthy elsewhere; "": it may leave.
func (l *Loop) replacing(id protocol.NodeID, name protocol.DeploymentName) string {
	r := l.placement[name]
	if _, leaves := slices.BinarySearch(r.Leaves, id); !leaves {
		return ""
	}
	for _, other := range r.Nodes {
		state := lifecycle.State("")
		if n := l.site.known(other); n != nil {
			state = n.record().State(name)
		}
		if state != lifecycle.Installed {
			return "it moves once it is healthy on node " + string(other) + ", where it is " + cmp.Or(string(state), "not yet begun")
		}
	}
	return ""
}

// drainWaits returns what stays on a node, where that is drained.
func (l *Loop) drainWaits(id protocol.NodeID) (waits []restriction.Wait) {
	if n := l.site.known(id); n == nil || n.record().Restricted(restriction.Drain) == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(l.placement)) {
		if why := cmp.Or(l.placement[name].Stays[id], l.replacing(id, name)); why != "" {
			waits = append(waits, restriction.Wait{Deployment: name, Why: why})
		}
	}
	return waits
}

// noteLeaving notes which nodes something leaves: they are looked at whenever another node is.
func (l *Loop) noteLeaving() {
	leaving := map[protocol.NodeID]bool{}
	for _, r := range l.placement {
		for _, id := range r.Leaves {
			leaving[id] = true
		}
	}
	l.leaving = slices.Sorted(maps.Keys(leaving))
}

// rank is the place of a node among those that are looked at: what something leaves comes last.
func (l *Loop) rank(id protocol.NodeID) int {
	if _, leaves := slices.BinarySearch(l.leaving, id); leaves {
		return 1
	}
	return 0
}
