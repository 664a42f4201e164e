package identity

import (
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/protocol"
)

// Pending bounds the nodes that wait without a join token until their keys are approved.
type Pending struct {
	// Most is how many wait at a time; of one network address, which is the /64 of an IPv6 address, up to a
	// quarter of them, or one. 0: none do.
	Most int
	// Devices are the serial numbers, as the machines say, of those that may wait. Empty: all may.
	Devices []string
}

const (
	// holdFor is how long a key holds its place, from its last question on. So in this time no more
	// keys than Pending.Most are reported to the CO.
	holdFor = time.Hour
	// reportInterval is how often a node that goes on asking is reported to the CO, which bounds how many of a
	// site it keeps: what others drove out there is back with the next report. It is not less than holdFor,
	// so that no more reports than Pending.Most are made in that time.
	reportInterval = time.Hour
)

// approved is the token of nodes that enrolled by an approval of their key, in place of the id of one.
const approved = "approved"

// A decision is what the CO sent about a key.
type decision struct {
	Node     protocol.NodeID `json:"node"`
	Approved bool            `json:"approved,omitempty"`
	Replace  bool            `json:"replace,omitempty"`
	End      int64           `json:"end"` // in milliseconds since 1970
}

// decisions are those of an encoded message, by the key in hex.
func decisions(list []protocol.DecidedKey) map[string]decision {
	out := make(map[string]decision, len(list))
	for _, d := range list {
		out[hex.EncodeToString(d.Key)] = decision{Node: d.Node, Approved: d.Approved, Replace: d.Replace, End: d.ExpiresMillis}
	}
	return out
}

// An applicant is a node that waits, in memory alone: it asks again after a restart.
type applicant struct {
	node           protocol.NodeID
	host           string // see identity.Network
	last, reported time.Time
}

// Apply decides on a node without a join token: it is admitted once the CO has approved its key for its name,
// which is recorded as an admission by Admit is. Until then it is held, within bounds, and reported to the CO.
func (m *Machines) Apply(ctx context.Context, c identity.Claim) error {
	now := time.Now()
	replaced, r, err := m.apply(ctx, c, now)
	if replaced {
		m.announce()
	}
	if r != noReport {
		m.reportPending(ctx, c, now, r)
	}
	if err != nil {
		return err
	}
	return m.flush()
}

// A report is whether a node that waits is to be reported, and as what.
type report int

const (
	noReport report = iota
	waitsNew        // it was not reported by this name before
	waitsOn
)

// apply decides, and says which report is to be made. asked is by the system's clock.
func (m *Machines) apply(ctx context.Context, c identity.Claim, asked time.Time) (replaced bool, r report, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, old := m.o.Clock.Now(), m.s.Nodes[c.Name.Node]
	d := m.s.Decided[c.Key]
	if d.Node != c.Name.Node || now.UnixMilli() >= d.End {
		d = decision{}
	}
	switch {
	case c.Name.Site != m.o.Site:
		return false, noReport, identity.Refuse(identity.WrongSite, "%s belongs to site %s: this is the LO of site %s", c.Name, c.Name.Site, m.o.Site)
	case m.revoked(c.Key):
		return false, noReport, refuseClaimed(c)
	case old.Key == c.Key && old.Token == approved:
		return false, noReport, m.repair() // its answer may have been lost as a flush failed
	case d.Node == "":
		r, err = m.hold(ctx, c, asked)
		return false, r, err
	case !d.Approved:
		delete(m.pending, c.Key)
		return false, noReport, identity.Refuse(identity.Rejected, "the key %.16s of %s was rejected: remove the directory identity of the agent's state directory, so that it makes another one, or give it a join token (colony node token %s)", c.Key, c.Name, m.o.Site)
	case old.Key != "" && old.Key != c.Key && !d.Replace:
		return false, noReport, identity.Refuse(identity.NameTaken, "another gateway is enrolled as %s: give this one another name, or approve it with --replace if it takes the place of that one", c.Name)
	}
	replaced, err = m.enrol(ctx, c, change{ID: c.Name.Node, Node: node{Key: c.Key, Token: approved, Enrolled: now, Remote: c.Remote}}, old)
	return replaced, noReport, err
}

// hold records a node that waits for approval. It returns the refusal for the node and how to report it. The
// caller reports after it has released m.mu, which it holds, as the journal may be slow.
func (m *Machines) hold(ctx context.Context, c identity.Claim, now time.Time) (r report, err error) {
	if m.o.Pending.Most == 0 {
		return noReport, identity.Refuse(identity.TokenUnknown, "nodes enrol at this LO with join tokens alone: make one with colony node token %s, or set identity.pending.most in the configuration of the LO", m.o.Site)
	}
	if len(m.o.Pending.Devices) > 0 && !slices.Contains(m.o.Pending.Devices, c.Device) {
		return noReport, identity.Refuse(identity.PendingFull, "the serial number %q of this machine is not among identity.pending.serials of the LO of site %s: add it, or give the machine a join token (colony node token %s)", c.Device, m.o.Site, m.o.Site)
	}
	host := netaddr.Network(c.Remote)
	a, waits := m.pending[c.Key]
	if !waits {
		if !m.room(host, now) {
			return noReport, identity.Refuse(identity.PendingFull, "%d nodes without a join token wait at site %s, and %d of one address at most: approve or reject them (colony node pending), or give this one a join token (colony node token %s)", len(m.pending), m.o.Site, m.ofOne(), m.o.Site)
		}
		m.o.Logger.WarnContext(ctx, "node without a join token waits until its key is approved", "node_id", string(c.Name.Node), "key", c.Key, "device", c.Device, "remote", c.Remote)
	}
	goesOn := !a.reported.IsZero() && a.node == c.Name.Node
	a.node, a.host, a.last = c.Name.Node, host, now
	if now.Sub(a.reported) >= reportInterval {
		a.reported, r = now, waitsNew
		if goesOn {
			r = waitsOn
		}
	}
	m.pending[c.Key] = a
	return r, identity.Refuse(identity.Pending, "it has no join token, and waits until its key is approved: colony node approve %s/%s %.16s", m.o.Site, c.Name.Node, c.Key)
}

// reportPending reports a node that waits. asked is what hold noted as the time of the report.
func (m *Machines) reportPending(ctx context.Context, c identity.Claim, asked time.Time, r report) {
	key, err := hex.DecodeString(c.Key)
	if err == nil {
		err = m.o.Report(ctx, protocol.MachinePending, c.Name.Node, protocol.Enrolment{V: protocol.Version, Key: key, Remote: c.Remote, Device: c.Device, Renewal: r == waitsOn})
	}
	if err == nil {
		return
	}
	m.o.Logger.WarnContext(ctx, "node that waits not reported to the co", "node_id", string(c.Name.Node), "err", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, waits := m.pending[c.Key]; waits && a.reported.Equal(asked) {
		a.reported = time.Time{} // the next question reports it
		m.pending[c.Key] = a
	}
}

// ofOne is how many nodes of one network address may wait.
func (m *Machines) ofOne() int { return max(m.o.Pending.Most/4, 1) }

// forget forgets the nodes that ask no more. m.mu is held.
func (m *Machines) forget(now time.Time) {
	maps.DeleteFunc(m.pending, func(_ string, a applicant) bool { return now.Sub(a.last) >= holdFor })
}

// room reports whether another node of an address may wait. m.mu is held.
func (m *Machines) room(host string, now time.Time) bool {
	m.forget(now)
	same := 0
	for _, a := range m.pending {
		if a.host == host {
			same++
		}
	}
	return len(m.pending) < m.o.Pending.Most && same < m.ofOne()
}

// PendingNodes returns the nodes that wait, by name, each once.
func (m *Machines) PendingNodes() []protocol.NodeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(time.Now())
	var list []protocol.NodeID
	for _, a := range m.pending {
		list = append(list, a.node)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
