// Package rivals recognises gateways that use the name of one node, and decides which
// of them may connect.
//
// A gateway is recognised by two things: the id of its agent, which changes when the agent is
// installed anew, and the boot id of its kernel, which differs between a machine and another one
// that runs from a copy of its disk.
//
// A name counts as contested when a gateway returns after another gateway had the name: then both
// exist. The gateway that returned had the name first, and keeps it while it is connected and for
// HoldFor afterwards. The others are refused, so that they try again by their back-off and do not
// take the name from each other.
//
// A new boot id with the agent id of the holder is the holder after a restart, if the holder is not
// connected: it keeps the name, unless a further boot id of that agent uses the name too. Which of
// two such machines runs from the copy cannot be known here.
package rivals

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// HoldFor is how long the gateway that has a contested name may be away before
	// another one gets it: longer than an agent needs for a restart.
	HoldFor = 2 * time.Minute
	// QuietAfter ends a contest: for that long only one gateway has tried to use the name. It is
	// longer than the longest back-off of an agent.
	QuietAfter = 10 * time.Minute
	// cutAfter bounds how long a holder is refused after a restart, while the broker has not yet
	// noticed that its earlier connection is cut: longer than 1.5 times the keep-alive of an agent.
	cutAfter = time.Minute
	// most bounds the gateways that are remembered for one name. The one that tried longest ago, but
	// for the holder, is forgotten first.
	most = 4
)

// Names are the names of a site's nodes and the gateways that use them. Its methods may
// be called concurrently.
type Names struct {
	mu    sync.Mutex // protects what follows
	nodes map[protocol.NodeID]*name
}

type name struct {
	holder    protocol.Gateway // that may use the name, without its address
	heldAt    time.Time
	contested bool
	claims    []claim
}

// A claim is one gateway that connected, or tried to, with the name.
type claim struct {
	protocol.Gateway
	since    time.Time // the first try
	at       time.Time // the last try
	replaced bool      // it had the name, and then another one
	ended    bool      // it had the name, and then a later boot of the same machine
}

// New returns Names that know no gateway.
func New() *Names { return &Names{nodes: map[protocol.NodeID]*name{}} }

// Admit decides whether a gateway g may connect with the name of a node. holder is the gateway in
// the record of the node, zero for none, and online says whether it is connected. Admit fails with
// kind Unavailable where another gateway keeps the name. contested are the gateways that use the
// name, the holder first; it is empty where only one does.
func (n *Names) Admit(id protocol.NodeID, g, holder protocol.Gateway, online bool, now time.Time) (contested []protocol.Gateway, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.nodes[id]
	if m == nil {
		if holder.Agent == "" {
			holder = g
		}
		m = &name{holder: holder, heldAt: now}
		n.nodes[id] = m
	}
	if online && same(holder, m.holder) {
		m.heldAt = now
	}
	c := m.claim(g, now)
	rebooted := !online && m.rebooted(c, now)
	switch {
	case same(g, m.holder):
	case m.contested && !rebooted && now.Sub(m.heldAt) < HoldFor:
		return m.gateways(), m.refusal(id, g)
	default:
		m.contested = m.contested || c.replaced
		m.replace(rebooted)
		m.holder = g
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
			m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return !same(c.Gateway, m.holder) })
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

// same reports whether two gateways are one machine, wherever it connects from.
func same(a, b protocol.Gateway) bool { return a.Agent == b.Agent && a.Boot == b.Boot }

// refusal says which gateway has the name, and what to do.
func (m *name) refusal(id protocol.NodeID, g protocol.Gateway) error {
	at := func(g protocol.Gateway) string { return cmp.Or(g.Address, "an unknown address") }
	all := m.gateways()
	if g.Agent != m.holder.Agent {
		return protocol.Errorf(protocol.Unavailable,
			"the node name %s is in use by another gateway, at %s (agent %s): give one of the two another name (node in its configuration, or --node)",
			id, at(all[0]), m.holder.Agent)
	}
	var copies []string
	for _, one := range all {
		if one.Agent == g.Agent {
			copies = append(copies, fmt.Sprintf("at %s (boot %s)", at(one), cmp.Or(one.Boot, "unknown")))
		}
	}
	return protocol.Errorf(protocol.Unavailable,
		"the node name %s is in use by another boot, of the same agent %s; unless this gateway was just started anew, and is admitted when its earlier connection ends, gateways run with copies of one disk: %s; "+
			"decide which one is the original, and give every other one its own identity: remove its state directory, and enrol it anew with a name of its own (node in its configuration, or --node)",
		id, g.Agent, strings.Join(copies, ", "))
}

// rebooted reports whether a gateway is the holder's machine after a reboot, while the holder is away: no
// other boot of its agent uses the name, and the gateway was not seen while the holder was connected.
func (m *name) rebooted(c claim, now time.Time) bool {
	if c.Agent != m.holder.Agent || c.Boot == m.holder.Boot || c.replaced || m.heldAt.Sub(c.since) >= cutAfter {
		return false
	}
	return !slices.ContainsFunc(m.claims, func(other claim) bool {
		return other.Agent == c.Agent && other.Boot != c.Boot && other.Boot != m.holder.Boot && !other.ended && now.Sub(other.at) < QuietAfter
	})
}

// claim returns the claim of a gateway, renewed.
func (m *name) claim(g protocol.Gateway, now time.Time) claim {
	c := claim{Gateway: g, since: now, at: now}
	if i := slices.IndexFunc(m.claims, func(c claim) bool { return same(c.Gateway, g) }); i >= 0 {
		c.since = m.claims[i].since
		c.replaced = m.claims[i].replaced && now.Sub(m.claims[i].at) < QuietAfter
		m.claims = slices.Delete(m.claims, i, i+1)
	}
	m.claims = append(m.claims, c)
	if len(m.claims) > most {
		i := 0
		if same(m.claims[0].Gateway, m.holder) {
			i = 1
		}
		m.claims = slices.Delete(m.claims, i, i+1)
	}
	return c
}

// replace notes that the holder loses the name now, to a later boot of its machine where that was started anew.
func (m *name) replace(rebooted bool) {
	i := slices.IndexFunc(m.claims, func(c claim) bool { return same(c.Gateway, m.holder) })
	if i < 0 { // it is known from the record of the node only
		m.claims = slices.Insert(m.claims, 0, claim{Gateway: m.holder})
		i = 0
	}
	m.claims[i].replaced, m.claims[i].ended, m.claims[i].at = true, rebooted, m.heldAt
}

func (m *name) address(g protocol.Gateway) string {
	for _, c := range m.claims {
		if same(c.Gateway, g) {
			return c.Address
		}
	}
	return ""
}

// gateways returns those of the claims that have not ended, the holder first and the others by their agents.
func (m *name) gateways() []protocol.Gateway {
	out := []protocol.Gateway{{Agent: m.holder.Agent, Boot: m.holder.Boot, Address: m.address(m.holder)}}
	for _, c := range m.claims {
		if !same(c.Gateway, m.holder) && !c.ended {
			out = append(out, c.Gateway)
		}
	}
	slices.SortFunc(out[1:], func(a, b protocol.Gateway) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Boot, b.Boot))
	})
	return out
}

// lastRival is the last try of a gateway that does not have the name.
func (m *name) lastRival() (last time.Time) {
	for _, c := range m.claims {
		if !same(c.Gateway, m.holder) && !c.ended && c.at.After(last) {
			last = c.at
		}
	}
	return last
}
