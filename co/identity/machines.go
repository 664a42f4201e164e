// Package identity is the CO's side of the identity of machines: its own certificate, which
// its root issues, the join tokens that it makes, and what it decides on a machine that enrols.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// A Record has the tokens and the machines; identitydb is one.
type Record interface {
	// AddToken records a join token, and its site where there is none of that name.
	AddToken(ctx context.Context, t fleet.JoinToken) error
	// NodeTokens returns what the LO of each site needs to enrol nodes: tokens, names and decided keys.
	NodeTokens(ctx context.Context) (map[protocol.SiteID]protocol.SiteTokens, error)
	// Admit decides whether a machine that shows a token is enrolled, and uses the token.
	Admit(ctx context.Context, c identity.Claim) error
	// Renewed decides whether a machine that proved its key may have a new certificate.
	Renewed(ctx context.Context, p identity.Peer) error
	// Issued records the last certificate of a machine, or refuses it where the machine was removed or replaced meanwhile.
	Issued(ctx context.Context, n identity.Name, c *x509.Certificate) error
	// Revoke revokes the keys of a machine, and forgets it. The error is of kind NotFound where no such machine is enrolled.
	Revoke(ctx context.Context, n identity.Name) (fleet.Revocation, error)
	// Revocations returns the list of each site that ever had one, and the keys, in hex, that the CO itself may meet.
	Revocations(ctx context.Context) (lists []protocol.Revocations, above []string, err error)
}

// Options are what Machines need. All are required, but for Now and Registerer.
type Options struct {
	Record Record
	// Decide records what is decided about a node that has no join token.
	Decide     func(ctx context.Context, d fleet.Decision) error
	Store      *store.Store
	Now        func() time.Time // time of day; nil is time.Now
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Machines are the machines of the fleet, as the CO sees them. Methods may be called
// concurrently. It is the enrol.Registrar of the CO.
type Machines struct {
	Record
	root   *identity.Authority
	holder *identity.Holder
	store  *store.Store
	now    func() time.Time
	decide func(ctx context.Context, d fleet.Decision) error
	log    *slog.Logger

	changed notify.Signal // the record may have
	refused *prometheus.CounterVec
	issued  prometheus.Counter
}

// Open reads the root, and certifies the CO itself where its certificate is missing or due.
func Open(o Options) (*Machines, error) {
	root, err := o.Store.OpenRoot()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("the fleet has no root certificate yet, and this CO is to enrol machines (identity.enrol): make one with colony ca init, or bring that of a former CO with colony ca import")
	}
	if err != nil {
		return nil, fmt.Errorf("open the root of the fleet: %w", err)
	}
	m := &Machines{
		Record: o.Record, decide: o.Decide, root: root, store: o.Store, now: o.Now, log: o.Logger, changed: notify.New(),
		issued: promauto.With(o.Registerer).NewCounter(prometheus.CounterOpts{
			Name: "colony_co_certificates_issued_total", Help: "Certificates of machines that this CO has issued.",
		}),
		refused: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_enrolments_refused_total", Help: "Machines that got no certificate, by the code of the refusal.",
		}, []string{"code"}),
	}
	if m.now == nil {
		m.now = time.Now
	}
	m.holder = identity.NewHolder(identity.NewClock(func() time.Time { return m.present(m.holder.Credential()) }, identity.Floor{}, nil))
	return m, m.certify()
}

// Holder has the CO's certificate.
func (m *Machines) Holder() *identity.Holder { return m.holder }

// Authority issues the certificates of LOs.
func (m *Machines) Authority() (*identity.Authority, error) { return m.root, nil }

// lookInterval is the time between two looks whether the CO's own certificate is whole, and whether
// join tokens have ended.
const lookInterval = time.Hour

// lookAtClock is the time between two looks whether the CO's own certificate lasts: the clock may be set meanwhile.
const lookAtClock = 30 * time.Second

// retryDelay is the wait after what could not be published.
const retryDelay = 5 * time.Second

// Run renews the CO's own certificate, publishes the tokens of nodes and the lists of revoked keys to
// their sites, and has the connections of revoked machines ended, until ctx ends.
func (m *Machines) Run(ctx context.Context, to Links) {
	sent, listed := map[protocol.SiteID]string{}, map[protocol.SiteID]uint64{}
	for ctx.Err() == nil {
		wait := lookInterval
		lists, err := m.revoked(ctx, to)
		// The tokens first: with them a site learns which names they do not open any more, and by the lists it
		// makes those names free.
		if err := errors.Join(err, m.publishTokens(ctx, to.Tokens, sent), m.publishLists(ctx, to, lists, listed)); err != nil && ctx.Err() == nil {
			m.log.ErrorContext(ctx, "join tokens or revoked keys not in force yet, or not published to all sites", "retry_in", retryDelay.String(), "err", err)
			wait = retryDelay
		}
		if m.idle(ctx, wait) != nil {
			return
		}
		if err := m.certify(); err != nil {
			m.log.ErrorContext(ctx, "certificate of the co not renewed", "err", err)
		}
	}
}

// idle waits, at most until the record may have changed or the CO's own certificate does not last. The error is that of ctx.
func (m *Machines) idle(ctx context.Context, wait time.Duration) error {
	for end := time.Now().Add(wait); time.Until(end) > 0; {
		changed, err := retry.SleepOr(ctx, min(time.Until(end), lookAtClock), m.changed.C())
		if c := m.holder.Credential(); err != nil || changed || c != nil && !m.lasts(c) {
			return err
		}
	}
	return nil
}

// Publish publishes an encoded message to a site, retained.
type Publish func(ctx context.Context, site protocol.SiteID, payload []byte) error

// publishTokens publishes the tokens of each site where they are not those that were sent.
func (m *Machines) publishTokens(ctx context.Context, publish Publish, sent map[protocol.SiteID]string) error {
	all, err := m.NodeTokens(ctx)
	if err != nil {
		return err
	}
	for site := range sent {
		if _, ok := all[site]; !ok {
			all[site] = protocol.SiteTokens{} // it has no token any more
		}
	}
	for site, message := range all {
		message.V, message.Site = protocol.Version, site
		payload := protocol.Marshal(&message)
		if sent[site] == string(payload) {
			continue
		}
		if err := publish(ctx, site, payload); err != nil {
			return err
		}
		sent[site] = string(payload)
	}
	return nil
}

// present is the time of day. A clock that says a time before the root began is wrong for certain: then it is when the
// certificate of the CO began, which may be nil.
func (m *Machines) present(c *identity.Credential) time.Time {
	now := m.now()
	if begin := m.root.Root().NotBefore; now.Before(begin) {
		if now = begin; c != nil && c.Chain[0].NotBefore.After(begin) {
			now = c.Chain[0].NotBefore
		}
	}
	return now
}

// lasts reports whether a certificate of the CO lasts another third of a life, or to the end of the root, and has begun, or
// will soon.
func (m *Machines) lasts(c *identity.Credential) bool {
	now, leaf := m.present(c), c.Chain[0]
	due := leaf.NotAfter.Add(-identity.LeafLife / 3)
	if leaf.NotAfter.Equal(m.root.Root().NotAfter) {
		due = leaf.NotAfter
	}
	return now.Before(due) && !ofTheFuture(leaf, now)
}

// ofTheFuture reports whether a certificate begins so far ahead that it was made while the clock of the CO was ahead.
func ofTheFuture(leaf *x509.Certificate, now time.Time) bool {
	return leaf.NotBefore.After(now.Add(identity.Farthest))
}

// certify issues the CO's own certificate if the stored one does not last, or is of another root. If the clock
// of the CO was ahead when it made the stored one, other machines may have followed that clock, too: new
// certificates are then of the next generation, by which machines return to the present time.
func (m *Machines) certify() error {
	for _, d := range m.store.Repair(store.Machine) { // the CO certifies itself
		m.log.Error("key or certificate of the co is damaged; it makes another one", "err", d)
	}
	c, err := m.store.Load(store.Machine)
	if err == nil && c.Root.Equal(m.root.Root()) {
		generation := identity.GenerationOf(c.Chain[0])
		if m.lasts(c) {
			m.root.SetGeneration(generation)
			m.holder.Set(c)
			return nil
		}
		if now := m.present(c); ofTheFuture(c.Chain[0], now) {
			generation++
			m.log.Error("the clock of the co was ahead, or is late now: its certificate has not begun, and it makes another one", "begins", c.Chain[0].NotBefore, "now", now)
		}
		m.root.SetGeneration(generation)
	} else {
		c = nil
	}
	key, err := m.store.Key(store.Machine)
	if err != nil {
		return err
	}
	chain, err := m.root.Issue(identity.OfCO(), key.Public(), m.present(c))
	if err != nil {
		return err
	}
	c = &identity.Credential{Key: key, Chain: chain, Root: m.root.Root()}
	if err := m.store.Save(store.Machine, c); err != nil {
		return err
	}
	m.holder.Set(c)
	return nil
}

// Issued records a certificate.
func (m *Machines) Issued(ctx context.Context, n identity.Name, c *x509.Certificate) error {
	err := m.Record.Issued(ctx, n, c)
	if err == nil {
		m.issued.Inc()
	}
	return err
}

// Refused counts a refusal.
func (m *Machines) Refused(_ context.Context, _ identity.Name, _ string, r *identity.Refusal) {
	m.refused.WithLabelValues(string(r.Code)).Inc()
}

// The bounds of a token.
const (
	MaxUses = 10_000               // machines that may enrol with it
	MaxLife = 365 * 24 * time.Hour // a year
)

// NewToken makes and records a token for machines of a tier of a site, and returns its text,
// which nothing keeps. The error is of kind Invalid where the bounds are not met.
func (m *Machines) NewToken(ctx context.Context, t fleet.JoinToken, life time.Duration) (text string, expires time.Time, err error) {
	if t.Uses < 1 || t.Uses > MaxUses {
		return "", time.Time{}, protocol.Errorf(protocol.Invalid, "%d uses: want 1 to %d", t.Uses, MaxUses)
	}
	if err := checkLife(life); err != nil {
		return "", time.Time{}, err
	}
	token := identity.NewToken(m.root.Root())
	t.ID, t.Secret, t.Expires = token.ID, token.Hash(), endOf(life)
	if err := m.AddToken(ctx, t); err != nil {
		return "", time.Time{}, err
	}
	m.changed.Notify()
	return token.String(), t.Expires, nil
}

// Decide records what is decided about the key of a node that has no join token, for a life, and returns it. The
// error is of kind Invalid where the bounds of a token are not met. Its site learns of it in Run.
func (m *Machines) Decide(ctx context.Context, d fleet.Decision, life time.Duration) (fleet.Decided, error) {
	if err := checkLife(life); err != nil {
		return fleet.Decided{}, err
	}
	d.Expires = endOf(life)
	if err := m.decide(ctx, d); err != nil {
		return fleet.Decided{}, err
	}
	m.changed.Notify()
	return fleet.Decided{Site: d.Site, Node: d.Node, Key: d.Key, Approved: d.Approved, Until: d.Expires}, nil
}

func checkLife(life time.Duration) error {
	if life < time.Minute || life > MaxLife {
		return protocol.Errorf(protocol.Invalid, "a life of %s: want one minute to %s", life, MaxLife)
	}
	return nil
}

func endOf(life time.Duration) time.Time { return time.Now().Add(life).UTC().Truncate(time.Second) }
