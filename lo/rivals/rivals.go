// Package rivals recognises gateways that use the name of one node, and decides which
// of them may connect.
//
// The identity of a gateway is the id of its agent, which is new where the agent was
// installed anew. An id that returns after another one had the name is the sign: both
// gateways exist. From then on the one that returned, which had the name first, keeps it
// while it is connected and for HoldFor after; the others are refused, so that they try
// again by their back-off and do not take the name from each other.
package rivals

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// HoldFor is how long the gateway that has a contested name may be away before
	// another one gets it: longer than an agent needs for a restart.
	HoldFor = 2 * time.Minute
	// QuietAfter is how long none but one gateway must have tried to use a name until it
	// is not contested any more: longer than the longest back-off of an agent.
	QuietAfter = 10 * time.Minute
	// most bounds the gateways that are remembered of a name: the latest.
	most = 4
)

// Names are the names of a site's nodes and the gateways that use them. Its methods may
// be called concurrently.
type Names struct {
	mu    sync.Mutex // protects what follows
	nodes map[protocol.NodeID]*name
}

type name struct {
	holder    string // agent that may use the name
	heldAt    time.Time
	contested bool
	claims    []claim
}

// A claim is one gateway that connected, or tried to, with the name.
type claim struct {
	protocol.Gateway
	at       time.Time // the last try
	replaced bool      // it had the name, and then another one
}

// New returns Names that know no gateway.
func New() *Names { return &Names{nodes: map[protocol.NodeID]*name{}} }

// Admit decides about a gateway that connects with the name of a node. holder is the agent
// that the record of the node names, "" for none, and online whether it is connected. It
// fails with kind Unavailable where another gateway has the name. contested are the
// gateways that use the name, the holder first; none: a single one does.
func (n *Names) Admit(id protocol.NodeID, g protocol.Gateway, holder string, online bool, now time.Time) (contested []protocol.Gateway, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.nodes[id]
	if m == nil {
		m = &name{holder: cmp.Or(holder, g.Agent), heldAt: now}
		n.nodes[id] = m
	}
	if online && holder == m.holder {
		m.heldAt = now
	}
	c := m.claim(g, now)
	switch {
	case g.Agent == m.holder:
	case m.contested && now.Sub(m.heldAt) < HoldFor:
		return m.gateways(), protocol.Errorf(protocol.Unavailable,
			"the node name %s is in use by another gateway, at %s (agent %s): give one of the two another name (node in its configuration, or --node)",
			id, cmp.Or(m.address(m.holder), "an unknown address"), m.holder)
	default:
		m.contested = m.contested || c.replaced
		m.replace()
		m.holder = g.Agent
	}
	m.heldAt = now
	if !m.contested {
		return nil, nil
	}
	return m.gateways(), nil
}

// Settled returns the nodes whose name was contested and is used by one gateway again,
// sorted, and when to ask again; zero: when Admit has returned gateways.
func (n *Names) Settled(now time.Time) (ids []protocol.NodeID, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, m := range n.nodes {
		if !m.contested {
			continue
		}
		last := m.lastRival()
		if now.Sub(last) >= QuietAfter {
			m.contested = false
			m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.Agent != m.holder })
			ids = append(ids, id)
			continue
		}
		if at := last.Add(QuietAfter); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	slices.Sort(ids)
	return ids, next
}

// Contested returns the gateways that use the name of a node, the one that has it first;
// none: a single one does.
func (n *Names) Contested(id protocol.NodeID) []protocol.Gateway {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.nodes[id]; m != nil && m.contested {
		return m.gateways()
	}
	return nil
}

// Contests returns the contested names, each as Contested does.
func (n *Names) Contests() map[protocol.NodeID][]protocol.Gateway {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[protocol.NodeID][]protocol.Gateway{}
	for id, m := range n.nodes {
		if m.contested {
			out[id] = m.gateways()
		}
	}
	return out
}

// claim returns the claim of a gateway, renewed.
func (m *name) claim(g protocol.Gateway, now time.Time) claim {
	c := claim{Gateway: g, at: now}
	if i := slices.IndexFunc(m.claims, func(c claim) bool { return c.Agent == g.Agent }); i >= 0 {
		c.replaced = m.claims[i].replaced && now.Sub(m.claims[i].at) < QuietAfter
		m.claims = slices.Delete(m.claims, i, i+1)
	}
	m.claims = append(m.claims, c)
	if len(m.claims) > most {
		i := 0
		if m.claims[0].Agent == m.holder {
			i = 1
		}
		m.claims = slices.Delete(m.claims, i, i+1)
	}
	return c
}

// replace notes that the holder loses the name now.
func (m *name) replace() {
	i := slices.IndexFunc(m.claims, func(c claim) bool { return c.Agent == m.holder })
	if i < 0 { // it is known from the record of the node only
		m.claims = slices.Insert(m.claims, 0, claim{Gateway: protocol.Gateway{Agent: m.holder}})
		i = 0
	}
	m.claims[i].replaced, m.claims[i].at = true, m.heldAt
}

func (m *name) address(agent string) string {
	for _, c := range m.claims {
		if c.Agent == agent {
			return c.Address
		}
	}
	return ""
}

// gateways returns those of the claims, the holder first and the others by their agents.
func (m *name) gateways() []protocol.Gateway {
	out := []protocol.Gateway{{Agent: m.holder, Address: m.address(m.holder)}}
	for _, c := range m.claims {
		if c.Agent != m.holder {
			out = append(out, c.Gateway)
		}
	}
	slices.SortFunc(out[1:], func(a, b protocol.Gateway) int { return cmp.Compare(a.Agent, b.Agent) })
	return out
}

// lastRival is the last try of a gateway that does not have the name.
func (m *name) lastRival() (last time.Time) {
	for _, c := range m.claims {
		if c.Agent != m.holder && c.at.After(last) {
			last = c.at
		}
	}
	return last
}
