// Package identity is the LO's side of the identity of nodes: the join tokens that the CO has
// sent, the nodes that have enrolled with them, and what the LO decides on one that comes. It
// needs no CO for that. What it knows is in one file, to which each change is appended.
package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Options are what Machines need. All are required, but for Registerer and Pending.
type Options struct {
	Site       protocol.SiteID
	Dir        string
	Disk       disk.FS
	Clock      *identity.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Pending bounds the nodes that wait without a join token. The zero value: none do.
	Pending Pending
	// Damaged is called where the file was damaged: then every name is free until a node renews
	// its certificate, and tokens count from the next that the CO sends.
	Damaged func(*statefile.Damage)
	// Report records an event about a node in the journal of the site. It may be called concurrently. While it
	// records a certificate nothing else of Machines goes on, so that the CO learns the keys of a name in order.
	Report func(ctx context.Context, kind protocol.EventKind, n protocol.NodeID, m protocol.Enrolment) error
	// Changed is called with the keys that do not count at this LO after each change: those on the
	// CO's list, and those that were replaced here. One goroutine at a time calls it.
	Changed func(keys []string)
}

// Machines are the nodes of the site, as the LO sees them. It is the enrol.Registrar of the LO.
// Its methods may be called concurrently.
type Machines struct {
	o       Options
	refused *prometheus.CounterVec
	tally   identity.Tally

	announcing sync.Mutex // held while Changed is called

	mu sync.Mutex // protects what follows
	*book
	listed  map[string]bool      // keys on the CO's list
	pending map[string]applicant // the nodes that wait, by the key in hex
}

// Open reads what an earlier run knew. The caller closes what it returns.
func Open(o Options) (*Machines, error) {
	b, err := openBook(o.Disk, o.Dir, o.Damaged)
	if err != nil {
		return nil, err
	}
	if b.unsealed { // as a crash leaves it, or a disk that lost the end
		o.Logger.Warn("the last change of the enrolled nodes may not be on disk whole: it is left out then; a node whose certificate counts is known again when it renews",
			"path", filepath.Join(o.Dir, nodesFile), "bytes", b.torn)
	}
	m := &Machines{o: o, book: b, pending: map[string]applicant{}, refused: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "colony_lo_enrolments_refused_total", Help: "Nodes that got no certificate, by the code of the refusal.",
	}, []string{"code"})}
	promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "colony_lo_pending_nodes", Help: "Nodes without a join token that wait to be approved, by their names.",
	}, func() float64 { return float64(len(m.PendingNodes())) })
	return m, nil
}

// Close closes the file. Nothing can be stored after that.
func (m *Machines) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.close()
}

// SetTokens takes an encoded protocol.SiteTokens of the CO. Tokens that cannot be stored count
// until the LO ends, and are sent again when it connects; their uses are stored by Admit.
func (m *Machines) SetTokens(payload []byte) error {
	var t protocol.SiteTokens
	if err := protocol.Unmarshal(payload, &t); err != nil {
		return err
	}
	if t.Site != m.o.Site {
		return protocol.Errorf(protocol.Invalid, "join tokens of site %s", t.Site)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.s.clone()
	next.Tokens, next.Used, next.Decided = t.Tokens, map[string]int{}, decisions(t.Decided)
	for _, n := range t.Nodes {
		key := hex.EncodeToString(n.Key)
		if _, known := next.Nodes[n.Node]; !known && !m.revoked(key) {
			next.Nodes[n.Node] = node{Key: key, Enrolled: m.o.Clock.Now()}
			m.o.Logger.Info("node is known from the CO, by its key", "node_id", string(n.Node))
		}
	}
	for _, one := range t.Tokens {
		if n := m.s.Used[one.ID]; n > 0 {
			next.Used[one.ID] = n
		}
	}
	for _, r := range t.Revoked {
		next.Revoked[r.Node] = max(next.Revoked[r.Node], r.AtMillis)
	}
	maps.DeleteFunc(next.Revoked, func(_ protocol.NodeID, at int64) bool { // it bars no token that there is
		return !slices.ContainsFunc(t.Tokens, func(one protocol.NodeToken) bool { return one.MadeMillis <= at })
	})
	if !m.unsaved && slices.EqualFunc(m.s.Tokens, next.Tokens, sameToken) && maps.Equal(m.s.Used, next.Used) && maps.Equal(m.s.Revoked, next.Revoked) && maps.Equal(m.s.Decided, next.Decided) && len(m.s.Nodes) == len(next.Nodes) {
		return nil
	}
	if err := m.replace(next); err != nil {
		m.o.Logger.Warn("join tokens of the site not stored: they count until the LO ends", "err", err)
		m.s, m.unsaved = next, true
	}
	return nil
}

func sameToken(a, b protocol.NodeToken) bool {
	return a.ID == b.ID && bytes.Equal(a.Secret, b.Secret) && a.Uses == b.Uses && a.ExpiresMillis == b.ExpiresMillis && a.Replace == b.Replace && a.MadeMillis == b.MadeMillis
}

// Admit decides on a claim: the token's secret, time and uses, and that no node with another
// key has the name. It records the node and the use of the token. A claim that was admitted
// before, by token and key, is admitted again and uses nothing.
func (m *Machines) Admit(ctx context.Context, c identity.Claim) error {
	replaced, err := m.admit(ctx, c)
	if replaced {
		m.announce()
	}
	if err != nil {
		return err
	}
	return m.flush()
}

func (m *Machines) admit(ctx context.Context, c identity.Claim) (replaced bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var t *protocol.NodeToken
	for i := range m.s.Tokens {
		if m.s.Tokens[i].ID == c.Token {
			t = &m.s.Tokens[i]
		}
	}
	now, old := m.o.Clock.Now(), m.s.Nodes[c.Name.Node]
	switch {
	case t == nil || !identity.SecretMatches(t.Secret, c.Secret):
		return false, identity.Refuse(identity.TokenUnknown, "site %s has no such join token: make one with colony node token %s; a new one is known once the site was connected to the CO", m.o.Site, m.o.Site)
	case c.Name.Site != m.o.Site:
		return false, identity.Refuse(identity.WrongSite, "%s belongs to site %s: this is the LO of site %s", c.Name, c.Name.Site, m.o.Site)
	case m.revoked(c.Key):
		return false, refuseClaimed(c)
	case old.Key == c.Key && old.Token == c.Token:
		return false, m.repair() // its answer may have been lost as a flush failed
	case now.UnixMilli() >= t.ExpiresMillis:
		return false, identity.Refuse(identity.TokenExpired, "the time of join token %s is over: make a new one", c.Token)
	case m.s.Used[c.Token] >= int(t.Uses):
		return false, identity.Refuse(identity.TokenExhausted, "join token %s was used %d times: make a new one", c.Token, m.s.Used[c.Token])
	case old.Key != "" && old.Key != c.Key && !t.Replace:
		return false, identity.Refuse(identity.NameTaken, "another gateway is enrolled as %s: give this one another name, or make a token with --replace if it takes the place of that one", c.Name)
	case t.MadeMillis > 0 && t.MadeMillis <= m.s.Revoked[c.Name.Node] && !(t.Replace && t.Uses == 1):
		return false, identity.Refuse(identity.Revoked, "the key of %s was revoked after join token %s was made, which the machine with that key may have: make a new one with colony node token %s", c.Name, c.Token, m.o.Site)
	}
	return m.enrol(ctx, c, change{ID: c.Name.Node, Node: node{Key: c.Key, Token: c.Token, Enrolled: now, Remote: c.Remote}, Used: c.Token, Uses: m.s.Used[c.Token] + 1}, old)
}

// enrol records an admitted node; old is the node that had its name before. m.mu is held.
func (m *Machines) enrol(ctx context.Context, c identity.Claim, next change, old node) (replaced bool, err error) {
	if replaced = old.Key != "" && old.Key != c.Key; replaced {
		next.Replaced, next.End = old.Key, next.Node.Enrolled.Add(identity.LeafLife+endMargin).UnixMilli()
		for _, one := range m.s.Tokens { // all that there are now were made before
			next.Revoked = max(next.Revoked, one.MadeMillis)
		}
	}
	if err := m.save(next); err != nil {
		return false, err
	}
	delete(m.pending, c.Key)
	m.o.Logger.InfoContext(ctx, "node enrolled", "node_id", string(c.Name.Node), "token", next.Node.Token, "remote", c.Remote, "replaced", replaced)
	return replaced, nil
}

// refuseRevoked refuses a node whose key was revoked.
func refuseRevoked(n identity.Name) *identity.Refusal {
	return identity.Refuse(identity.Revoked, "the key of %s was revoked: remove the directory identity of the agent's state directory, so that it makes another one, and give it a new join token", n)
}

// refuseClaimed refuses a machine whose key was revoked, and which may be another one than it says to be.
func refuseClaimed(c identity.Claim) *identity.Refusal {
	r := identity.Refuse(identity.Revoked, "the key %.16s of the gateway that enrols as %s was revoked: remove the directory identity of its agent's state directory, so that it makes another one, and give it a new join token", c.Key, c.Name)
	r.Key = c.Key
	return r
}

// endMargin is how long after its last certificate a key that was replaced is remembered.
const endMargin = 24 * time.Hour

// Renewed decides whether a node of this site that proved its key may have a new certificate:
// it is enrolled with this key, or nothing is known of its name and its certificate has not
// ended. The latter is recorded: an LO that lost its file knows its nodes by their certificates.
func (m *Machines) Renewed(ctx context.Context, p identity.Peer) error {
	adopted, err := m.renewed(ctx, p)
	if err == nil && adopted {
		err = m.flush()
	}
	return err
}

func (m *Machines) renewed(ctx context.Context, p identity.Peer) (adopted bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.s.Nodes[p.Name.Node]
	switch {
	case p.Name.Tier != identity.EN || p.Name.Site != m.o.Site:
		return false, identity.Refuse(identity.WrongSite, "%s belongs to site %s: this is the LO of site %s", p.Name, p.Name.Site, m.o.Site)
	case m.revoked(p.Key):
		return false, refuseRevoked(p.Name)
	case known && n.Key == p.Key:
		return false, nil
	case p.Withdrawn && !known:
		return false, identity.Refuse(identity.Revoked, "the authority that certified %s was revoked, and neither this LO nor the CO knows the node by its key: enrol it with a new join token", p.Name)
	case known:
		return false, identity.Refuse(identity.NotEnrolled, "%s is not enrolled with this key: another gateway has taken its place; enrol it with a new join token", p.Name)
	case p.Expired:
		return false, identity.Refuse(identity.NotEnrolled, "this LO knows no node %s, and the certificate has ended: enrol it with a new join token", p.Name)
	}
	if err := m.save(change{ID: p.Name.Node, Node: node{Key: p.Key, Enrolled: m.o.Clock.Now()}}); err != nil {
		return false, err
	}
	m.o.Logger.WarnContext(ctx, "node was not known and has a certificate that counts: taken as enrolled", "node_id", string(p.Name.Node), "serial", p.Serial)
	return true, nil
}

// Issued reports a certificate to the CO, which knows the node by its key from then on.
func (m *Machines) Issued(ctx context.Context, n identity.Name, c *x509.Certificate) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.s.Nodes[n.Node]
	if !known || old.Key != identity.KeyName(c) {
		return identity.Refuse(identity.NotEnrolled, "%s is not enrolled with this key any more: another gateway has just taken its place; enrol it with a new join token", n)
	}
	sum := identity.KeySum(c.PublicKey)
	err := m.o.Report(ctx, protocol.MachineEnrolled, n.Node, protocol.Enrolment{
		V: protocol.Version, Key: sum[:], Serial: identity.SerialOf(c), EndMillis: c.NotAfter.UnixMilli(), Renewal: old.Certified, Remote: old.Remote,
	})
	if err != nil { // the node must not be locked out for it
		m.o.Logger.WarnContext(ctx, "certificate of a node not reported to the co: its next one is", "node_id", string(n.Node), "err", err)
		return nil
	}
	if old.Certified {
		return nil
	}
	old.Certified = true
	// Where a crash loses it, the next certificate is reported as the first once more.
	return m.save(change{ID: n.Node, Node: old})
}

// Refused counts a refusal. It also reports it, unless the node has proved nothing: otherwise anyone could fill the
// journal. The same refusal, of a node from an address or of a key that alone is proved, is reported once an hour, see
// identity.Tally.
func (m *Machines) Refused(ctx context.Context, n identity.Name, remote string, r *identity.Refusal) {
	m.refused.WithLabelValues(string(r.Code)).Inc()
	if n.Tier != identity.EN || n.Site != m.o.Site || !r.Code.Proved() {
		return
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	who := string(n.Node) + " " + host
	if r.Key != "" {
		who = r.Key
	}
	reason, report := m.tally.Add(string(r.Code)+" "+who, r.Message, time.Now())
	if !report {
		return
	}
	if err := m.o.Report(ctx, protocol.MachineRefused, n.Node, protocol.Enrolment{V: protocol.Version, Remote: remote, Code: string(r.Code), Reason: reason}); err != nil {
		m.o.Logger.WarnContext(ctx, "refusal of a node not reported to the co", "node_id", string(n.Node), "code", string(r.Code), "err", err)
	}
}

// SetListed takes the keys on the CO's list. The nodes that have one are forgotten: their names are free.
func (m *Machines) SetListed(keys []string) {
	m.list(keys)
	m.announce()
}

// announce calls Changed.
func (m *Machines) announce() {
	m.announcing.Lock()
	defer m.announcing.Unlock()
	m.mu.Lock()
	keys := slices.Concat(slices.Sorted(maps.Keys(m.listed)), slices.Sorted(maps.Keys(m.s.Replaced)))
	m.mu.Unlock()
	m.o.Changed(keys)
}

// list is SetListed without the call of Changed.
func (m *Machines) list(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = make(map[string]bool, len(keys))
	for _, k := range keys {
		m.listed[k] = true
	}
	next := m.s.clone()
	maps.DeleteFunc(next.Nodes, func(id protocol.NodeID, n node) bool {
		if m.listed[n.Key] {
			m.o.Logger.Warn("node is not enrolled any more: its key was revoked", "node_id", string(id))
		}
		return m.listed[n.Key]
	})
	now := m.o.Clock.Now().UnixMilli()
	maps.DeleteFunc(next.Replaced, func(k string, end int64) bool { return m.listed[k] || end < now })
	if len(next.Nodes) == len(m.s.Nodes) && len(next.Replaced) == len(m.s.Replaced) {
		return
	}
	if err := m.replace(next); err != nil {
		m.o.Logger.Warn("nodes that were revoked are not stored as such: they are once more when the lo starts", "err", err)
		m.s, m.unsaved = next, true
	}
}

// revoked reports whether a key does not count here. m.mu is held.
func (m *Machines) revoked(key string) bool { return m.listed[key] || m.s.Replaced[key] > 0 }
