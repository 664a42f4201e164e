// Package machines is the LO's side of the identity of nodes: the join tokens that the CO has
// sent, the nodes that have enrolled with them, and what the LO decides on one that comes. It
// needs no CO for that. What it knows is in one file, replaced whole.
package machines

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// state is what the file holds, as JSON.
type state struct {
	Tokens []protocol.NodeToken `json:"tokens"`
	// Used is how often tokens were used, by id.
	Used map[string]int `json:"used"`
	// Nodes are those that are enrolled.
	Nodes map[protocol.NodeID]node `json:"nodes"`
}

// clone returns a state whose maps may be changed.
func (s state) clone() state {
	next := state{Tokens: s.Tokens, Used: maps.Clone(s.Used), Nodes: maps.Clone(s.Nodes)}
	if next.Nodes == nil {
		next.Nodes = map[protocol.NodeID]node{}
	}
	return next
}

// A node is one that is enrolled.
type node struct {
	Key      string    `json:"key"`   // SHA-256 of its public key, in hex
	Token    string    `json:"token"` // id of the join token that was used; empty: known by its certificate
	Enrolled time.Time `json:"enrolled"`
}

// Options are what Machines need. All are required, but for Registerer.
type Options struct {
	Site       protocol.SiteID
	Dir        string
	Disk       disk.FS
	Clock      *identity.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Damaged is called where the file was damaged: then every name is free until a node renews
	// its certificate, and tokens count from the next that the CO sends.
	Damaged func(*statefile.Damage)
}

// Machines are the nodes of the site, as the LO sees them. It is the enrol.Registrar of the LO.
// Its methods may be called concurrently.
type Machines struct {
	o       Options
	file    statefile.File
	refused *prometheus.CounterVec

	mu      sync.Mutex // protects what follows
	s       state
	unsaved bool // the file is older than s
}

// Open reads what an earlier run knew.
func Open(o Options) (*Machines, error) {
	file := statefile.File{Disk: o.Disk, Path: filepath.Join(o.Dir, "nodes"), Identity: statefile.Identity{Role: "lo/machines"}}
	m := &Machines{o: o, file: file, refused: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "colony_lo_enrolments_refused_total", Help: "Nodes that got no certificate, by the code of the refusal.",
	}, []string{"code"})}
	_, err := file.Load(func(content []byte) error { return json.Unmarshal(content, &m.s) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		o.Damaged(damage)
		m.s, err = state{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the nodes that are enrolled: %w", err)
	}
	return m, nil
}

// save stores what the next state is, and then makes it the present one.
func (m *Machines) save(next state) error {
	raw, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := m.file.Save(raw); err != nil {
		return fmt.Errorf("store the nodes that are enrolled: %w", err)
	}
	m.s, m.unsaved = next, false
	return nil
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
	next := state{Tokens: t.Tokens, Used: map[string]int{}, Nodes: m.s.Nodes}
	for _, one := range t.Tokens {
		if n := m.s.Used[one.ID]; n > 0 {
			next.Used[one.ID] = n
		}
	}
	if !m.unsaved && slices.EqualFunc(m.s.Tokens, next.Tokens, sameToken) && maps.Equal(m.s.Used, next.Used) {
		return nil
	}
	if err := m.save(next); err != nil {
		m.o.Logger.Warn("join tokens of the site not stored: they count until the LO ends", "err", err)
		m.s, m.unsaved = next, true
	}
	return nil
}

func sameToken(a, b protocol.NodeToken) bool {
	return a.ID == b.ID && bytes.Equal(a.Secret, b.Secret) && a.Uses == b.Uses && a.ExpiresMillis == b.ExpiresMillis && a.Replace == b.Replace
}

// Admit decides on a claim: the token's secret, time and uses, and that no node with another
// key has the name. It records the node and the use of the token. A claim that was admitted
// before, by token and key, is admitted again and uses nothing.
func (m *Machines) Admit(ctx context.Context, c identity.Claim) error {
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
		return identity.Refuse(identity.TokenUnknown, "site %s has no such join token: make one with colony node token %s; a new one is known once the site was connected to the CO", m.o.Site, m.o.Site)
	case c.Name.Site != m.o.Site:
		return identity.Refuse(identity.WrongSite, "%s belongs to site %s: this is the LO of site %s", c.Name, c.Name.Site, m.o.Site)
	case old.Key == c.Key && old.Token == c.Token:
		return nil
	case now.UnixMilli() >= t.ExpiresMillis:
		return identity.Refuse(identity.TokenExpired, "the time of join token %s is over: make a new one", c.Token)
	case m.s.Used[c.Token] >= int(t.Uses):
		return identity.Refuse(identity.TokenExhausted, "join token %s was used %d times: make a new one", c.Token, m.s.Used[c.Token])
	case old.Key != "" && old.Key != c.Key && !t.Replace:
		return identity.Refuse(identity.NameTaken, "another gateway is enrolled as %s: give this one another name, or make a token with --replace if it takes the place of that one", c.Name)
	}
	next := m.s.clone()
	next.Used[c.Token]++ // there is a token, and so a map
	next.Nodes[c.Name.Node] = node{Key: c.Key, Token: c.Token, Enrolled: now}
	if err := m.save(next); err != nil {
		return err
	}
	m.o.Logger.InfoContext(ctx, "node enrolled", "node_id", string(c.Name.Node), "token", c.Token, "remote", c.Remote)
	return nil
}

// Renewed decides whether a node of this site that proved its key may have a new certificate:
// it is enrolled with this key, or nothing is known of its name and its certificate has not
// ended. The latter is recorded: an LO that lost its file knows its nodes by their certificates.
func (m *Machines) Renewed(ctx context.Context, p identity.Peer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.s.Nodes[p.Name.Node]
	switch {
	case p.Name.Tier != identity.EN || p.Name.Site != m.o.Site:
		return identity.Refuse(identity.WrongSite, "%s belongs to site %s: this is the LO of site %s", p.Name, p.Name.Site, m.o.Site)
	case known && n.Key == p.Key:
		return nil
	case known:
		return identity.Refuse(identity.NotEnrolled, "%s is not enrolled with this key: another gateway has taken its place; enrol it with a new join token", p.Name)
	case p.Expired:
		return identity.Refuse(identity.NotEnrolled, "this LO knows no node %s, and the certificate has ended: enrol it with a new join token", p.Name)
	}
	next := m.s.clone()
	next.Nodes[p.Name.Node] = node{Key: p.Key, Enrolled: m.o.Clock.Now()}
	if err := m.save(next); err != nil {
		return err
	}
	m.o.Logger.WarnContext(ctx, "node was not known and has a certificate that counts: taken as enrolled", "node_id", string(p.Name.Node), "serial", p.Serial)
	return nil
}

// Issued does nothing: the record of the node is enough.
func (*Machines) Issued(context.Context, identity.Name, *x509.Certificate) error { return nil }

// Refused counts a refusal.
func (m *Machines) Refused(_ context.Context, _ identity.Name, _ string, r *identity.Refusal) {
	m.refused.WithLabelValues(string(r.Code)).Inc()
}
