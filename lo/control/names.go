package control

import (
	"context"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// Admit decides whether a gateway may connect as a node, before it takes the place of an
// earlier connection. will is the encoded Presence of its last will, which names its agent,
// and address where it connects from. It fails with kind Unavailable where another gateway
// uses the name of the node; the Loop reports that.
func (s *Site) Admit(ctx context.Context, id protocol.NodeID, will []byte, address string) error {
	var p protocol.Presence
	if err := protocol.Unmarshal(will, &p); err != nil || p.Agent == "" {
		return nil // nothing says which gateway it is
	}
	n := s.known(id)
	holder, online := protocol.Gateway{}, false
	if n != nil {
		rec := n.shown.Load()
		holder, online = protocol.Gateway{Agent: rec.Agent, Boot: rec.Presence.Boot}, rec.Online()
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host // the port differs from try to try
	}
	contested, err := s.names.Admit(id, protocol.Gateway{Agent: p.Agent, Boot: p.Boot, Address: address}, holder, online, s.opts.Now())
	if len(contested) > 0 {
		s.log.WarnContext(ctx, "several gateways use the name of one node: give each its own", "node_id", id, "gateways", contested, "admitted", err == nil, "agent", p.Agent)
		s.due.Notify()
	}
	return err
}

// reportNames reports each name that several gateways have begun to use, and each that only one
// uses again. next is when to call it again.
func (l *Loop) reportNames(ctx context.Context, now time.Time) (next time.Time, err error) {
	_, next = l.site.names.Settled(now)
	contested := l.site.names.Contests()
	var facts []nodes.Fact
	for _, id := range slices.Sorted(maps.Keys(merged(contested, l.state.Contested))) {
		if slices.Equal(contested[id], l.state.Contested[id]) {
			continue
		}
		f := siteFact(protocol.NameConflict, "name_conflict/"+string(id), &protocol.NodeGateways{V: protocol.Version, Gateways: contested[id]}, now)
		f.Event.Node = id
		facts = append(facts, f)
	}
	if len(facts) == 0 {
		return next, nil
	}
	if _, err := l.site.append(ctx, facts); err != nil {
		return next, err
	}
	l.state.Contested = contested
	return next, l.site.store.SaveSite(l.state)
}

// merged returns the union of two maps.
func merged(a, b map[protocol.NodeID][]protocol.Gateway) map[protocol.NodeID][]protocol.Gateway {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
