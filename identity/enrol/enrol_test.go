package enrol_test

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// A registrar admits every claim of its token, and records what it is asked.
type registrar struct {
	mu      sync.Mutex // protects what follows
	token   identity.Token
	claims  []identity.Claim
	renewed []identity.Peer
	issued  []string
	refused []identity.Code
	deny    error
}

func (r *registrar) Admit(_ context.Context, c identity.Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deny != nil {
		return r.deny
	}
	if c.Token != r.token.ID || !identity.SecretMatches(r.token.Hash(), c.Secret) {
		return identity.Refuse(identity.TokenUnknown, "no such token")
	}
	r.claims = append(r.claims, c)
	return nil
}

func (r *registrar) Renewed(_ context.Context, p identity.Peer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed = append(r.renewed, p)
	return r.deny
}

func (r *registrar) Issued(_ context.Context, n identity.Name, c *x509.Certificate) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.issued = append(r.issued, n.DNS()+" "+identity.SerialOf(c))
	return nil
}

func (r *registrar) Refused(_ context.Context, _ identity.Name, _ string, why *identity.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, why.Code)
}

func (r *registrar) set(deny error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deny = deny
}

// counts returns how often machines joined and renewed since the last forget.
func (r *registrar) counts() (joins, renewed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.claims), len(r.renewed)
}

func (r *registrar) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims, r.renewed = nil, nil
}

func (r *registrar) last() identity.Code {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) == 0 {
		return ""
	}
	return r.refused[len(r.refused)-1]
}

// A fleet is a CO that enrols LOs.
type fleet struct {
	*registrar
	root    *identity.Authority
	holder  *identity.Holder
	now     *clock
	address string
}

// A clock is a time that a test sets.
type clock struct {
	mu sync.Mutex // protects at
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = t
}

func newKey(t *testing.T) *identity.Credential {
	t.Helper()
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return &identity.Credential{Key: k}
}

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newFleet starts a server that has a name, whose authority issues for a tier.
func newFleet(t *testing.T, server identity.Name, tier identity.Tier) *fleet {
	t.Helper()
	f := &fleet{registrar: &registrar{}, now: &clock{at: begin}}
	var err error
	if f.root, err = identity.NewRoot(newKey(t).Key, begin); err != nil {
		t.Fatal(err)
	}
	f.token = identity.NewToken(f.root.Root())
	f.holder = identity.NewHolder(identity.NewClock(f.now.now, identity.Floor{}, nil))
	f.certify(t, server)
	s := httptest.NewUnstartedServer(enrol.NewServer(enrol.ServerOptions{
		Holder: f.holder, Registrar: f.registrar, Tier: tier, Logger: slog.New(slog.DiscardHandler),
		Authority: func() (*identity.Authority, error) { return f.root, nil },
	}))
	s.TLS = f.holder.EnrolTLS()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	f.address = strings.TrimPrefix(s.URL, "https://")
	return f
}

// certify gives the server a certificate of now.
func (f *fleet) certify(t *testing.T, server identity.Name) {
	t.Helper()
	c := newKey(t)
	var err error
	if c.Chain, err = f.root.Issue(server, c.Key.Public(), f.now.now()); err != nil {
		t.Fatal(err)
	}
	c.Root = f.root.Root()
	f.holder.Set(c)
}

func (f *fleet) machine(t *testing.T, n, server identity.Name) enrol.Machine {
	t.Helper()
	m := enrol.Machine{
		Name: n, Server: server, Addresses: []string{"127.0.0.1:1", f.address}, Key: newKey(t).Key,
		Clock: identity.NewClock(func() time.Time { return time.Unix(0, 0) }, identity.Floor{}, nil),
	}
	if n.Tier == identity.LO {
		m.Authority = newKey(t).Key
	}
	return m
}

// TestJoinAndRenew enrols an LO whose clock is in 1970, and renews it before and long after
// its certificate has ended.
func TestJoinAndRenew(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	m := f.machine(t, identity.OfLO("plant1"), identity.OfCO())
	got, err := enrol.Join(t.Context(), m, f.token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.OpenSite(got.Authority.Chain[0], f.root.Root(), m.Authority); err != nil {
		t.Errorf("the site's authority: %v", err)
	}
	if len(f.claims) != 1 || f.claims[0].Name != m.Name || len(f.issued) != 2 {
		t.Errorf("claims %+v, issued %v", f.claims, f.issued)
	}
	h := identity.NewHolder(m.Clock)
	h.Set(got.Machine)
	for _, at := range []time.Time{begin.Add(20 * 24 * time.Hour), begin.Add(500 * 24 * time.Hour)} {
		f.now.set(at)
		f.certify(t, identity.OfCO())
		next, err := enrol.Renew(t.Context(), m, h)
		if err != nil {
			t.Fatalf("at %s: %v", at, err)
		}
		if !next.Machine.Chain[0].NotAfter.After(at) {
			t.Errorf("renewed at %s until %s", at, next.Machine.Chain[0].NotAfter)
		}
	}
	if len(f.renewed) != 2 || f.renewed[0].Expired || !f.renewed[1].Expired {
		t.Errorf("renewed %+v, want the second of one that has expired", f.renewed)
	}
	other := m
	other.Key = newKey(t).Key
	if _, err := enrol.Renew(t.Context(), other, h); identity.CodeOf(err) != identity.Invalid {
		t.Errorf("a renewal for another key: %v", err)
	}
	other = m
	other.Name = identity.OfLO("plant2")
	if _, err := enrol.Renew(t.Context(), other, h); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("a renewal for another name: %v", err)
	}
	f.holder.SetRevoked([]string{identity.KeyName(got.Machine.Chain[0])})
	if _, err := enrol.Renew(t.Context(), m, h); identity.CodeOf(err) != identity.Revoked || f.last() != identity.Revoked {
		t.Errorf("a revoked one: %v", err)
	}
	// A client that makes a certificate of the name has proved nothing, and makes no event.
	foreign := newFleet(t, identity.OfCO(), identity.LO)
	forged := m
	forged.Key = newKey(t).Key
	chain, err := foreign.root.Issue(m.Name, forged.Key.Public(), f.now.now())
	if err != nil {
		t.Fatal(err)
	}
	thief := identity.NewHolder(m.Clock)
	thief.Set(&identity.Credential{Key: forged.Key, Chain: chain, Root: f.root.Root()})
	if _, err := enrol.Renew(t.Context(), forged, thief); identity.CodeOf(err) != identity.Invalid || f.last() != identity.Invalid || f.last().Proved() {
		t.Errorf("one by the root of another fleet: %v", err)
	}
}

// TestJoinRefused checks that the secret goes to no server of another fleet or another name,
// and that refusals arrive with their codes.
func TestJoinRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	other := newFleet(t, identity.OfCO(), identity.LO)
	m := f.machine(t, identity.OfLO("plant1"), identity.OfCO())
	if _, err := enrol.Join(t.Context(), m, other.token); err == nil || !strings.Contains(err.Error(), "fingerprint") {
		t.Errorf("a token of another fleet: %v", err)
	}
	if len(f.refused) > 0 {
		t.Errorf("the server was asked: %v", f.refused)
	}
	lo := newFleet(t, identity.OfLO("plant1"), identity.EN)
	node := lo.machine(t, identity.OfNode("plant1", "g1"), identity.OfLO("plant2"))
	if _, err := enrol.Join(t.Context(), node, lo.token); err == nil || !strings.Contains(err.Error(), "want plant2.lo") {
		t.Errorf("a server of another site: %v", err)
	}
	wrong := f.token
	wrong.Secret = make([]byte, len(wrong.Secret))
	if _, err := enrol.Join(t.Context(), m, wrong); identity.CodeOf(err) != identity.TokenUnknown || f.last() != identity.TokenUnknown {
		t.Errorf("a wrong secret: %v", err)
	}
	half := m
	half.Authority = nil
	if _, err := enrol.Join(t.Context(), half, f.token); identity.CodeOf(err) != identity.Invalid || len(f.claims) > 0 {
		t.Errorf("an lo without a key for its authority: %v, claims %v", err, f.claims)
	}
	f.set(errors.New("the database does not take this"))
	for _, id := range []string{"", "0123456789abcde\x00", "0123456789ABCDEF", f.token.ID + "00"} {
		wrong = f.token
		wrong.ID = id
		if _, err := enrol.Join(t.Context(), m, wrong); identity.CodeOf(err) != identity.TokenUnknown {
			t.Errorf("the id %q: %v", id, err)
		}
	}
	wrong = f.token
	wrong.Secret = make([]byte, 17)
	if _, err := enrol.Join(t.Context(), m, wrong); identity.CodeOf(err) != identity.TokenUnknown {
		t.Errorf("a secret of 17 bytes: %v", err)
	}
	f.set(nil)
	asNode := f.machine(t, identity.OfNode("plant1", "g1"), identity.OfCO())
	if _, err := enrol.Join(t.Context(), asNode, f.token); identity.CodeOf(err) != identity.Invalid {
		t.Errorf("a node at the CO: %v", err)
	}
	f.set(errors.New("the database is away"))
	_, err := enrol.Join(t.Context(), m, f.token)
	if identity.CodeOf(err) != identity.Unavailable || strings.Contains(err.Error(), "database") {
		t.Errorf("a server that cannot decide: %v", err)
	}
}

// TestKeeper checks that a machine gets its certificate as soon as there is a token and a
// server that takes it, keeps it over a restart, and joins anew where it was removed and has a
// new token.
func TestKeeper(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	dir, n := t.TempDir(), identity.OfLO("plant1")
	tokenFile := filepath.Join(dir, "token")
	vault, err := store.Open(nil, filepath.Join(dir, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan enrol.Issued, 10)
	start := func(at func() time.Time) (*enrol.Keeper, *identity.Holder) {
		h := identity.NewHolder(vault.Clock(at))
		return enrol.NewKeeper(enrol.KeeperOptions{
			Name: n, Server: identity.OfCO(), Addresses: []string{f.address}, TokenFile: tokenFile, Vault: vault, Holder: h,
			Changed: func(i enrol.Issued) { changed <- i }, Logger: slog.New(slog.DiscardHandler),
		}), h
	}
	run := func(k *enrol.Keeper) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		return func() { cancel(); <-done }
	}
	wait := func() enrol.Issued {
		t.Helper()
		select {
		case i := <-changed:
			return i
		case <-time.After(time.Minute):
			t.Fatalf("no certificate after a minute; refused: %v", f.last())
			return enrol.Issued{}
		}
	}
	k, h := start(f.now.now)
	if _, err := k.Authority(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("authority before the machine is enrolled: %v", err)
	}
	stop := run(k)
	over, end := context.WithCancel(t.Context())
	end()
	none := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialled") }
	if _, err := k.WhenEnrolled(none)(over, "tcp", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("to connect without a certificate: %v", err)
	}
	dialled := make(chan bool, 1)
	go func() {
		_, _ = k.WhenEnrolled(func(context.Context, string, string) (net.Conn, error) {
			dialled <- h.Credential() != nil
			return nil, errors.New("that is all")
		})(t.Context(), "tcp", "x")
	}()
	if err := os.WriteFile(tokenFile, []byte(f.token.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := wait()
	stop()
	if !<-dialled {
		t.Error("dialled before there was a certificate")
	}
	if !first.First {
		t.Error("the first certificate does not say that it is")
	}
	if h.Credential() != first.Machine {
		t.Error("the holder has not the new certificate")
	}
	if _, err := k.Authority(); err != nil {
		t.Errorf("authority: %v", err)
	}

	k, h = start(f.now.now)
	if c := h.Credential(); c == nil || !c.Chain[0].Equal(first.Machine.Chain[0]) {
		t.Fatal("the certificate did not outlive the restart")
	}
	f.now.set(begin.Add(25 * 24 * time.Hour)) // past two thirds, and the jitter
	f.certify(t, identity.OfCO())
	stop = run(k)
	if second := wait(); second.First || second.Machine.Chain[0].Equal(first.Machine.Chain[0]) || len(f.renewed) != 1 {
		t.Errorf("not renewed: %d renewals", len(f.renewed))
	}
	stop()

	f.now.set(begin.Add(200 * 24 * time.Hour))
	f.certify(t, identity.OfCO())
	f.set(identity.Refuse(identity.NotEnrolled, "removed"))
	k, _ = start(f.now.now)
	stop = run(k)
	tick, late := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for r, err := vault.Refusal(); err != nil || r.Code != identity.NotEnrolled; r, err = vault.Refusal() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("no refusal was stored for a minute: %v, %v", r, err)
		}
	}
	f.set(nil)
	wait()
	stop()
	if r, err := vault.Refusal(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a renewal the refusal is still stored: %v, %v", r, err)
	}
}

// enrolled returns the vault of the LO of plant1, which has a certificate of begin and the authority of its site.
func enrolled(t *testing.T, f *fleet) *store.Store {
	t.Helper()
	vault, err := store.Open(nil, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, err := vault.Key(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := f.root.Issue(identity.OfLO("plant1"), key.Public(), begin)
	if err != nil {
		t.Fatal(err)
	}
	if err := vault.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: f.root.Root()}); err != nil {
		t.Fatal(err)
	}
	if key, err = vault.Key(store.Issuer); err != nil {
		t.Fatal(err)
	}
	cert, err := f.root.IssueSite("plant1", key.Public(), begin)
	if err != nil {
		t.Fatal(err)
	}
	if err := vault.Save(store.Issuer, &identity.Credential{Key: key, Chain: []*x509.Certificate{cert}, Root: f.root.Root()}); err != nil {
		t.Fatal(err)
	}
	return vault
}

// TestKeeperOfAnotherName checks that the certificate of another machine is not used.
func TestKeeperOfAnotherName(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	vault := enrolled(t, f)
	h := identity.NewHolder(vault.Clock(f.now.now))
	enrol.NewKeeper(enrol.KeeperOptions{Name: identity.OfLO("plant2"), Vault: vault, Holder: h, Logger: slog.New(slog.DiscardHandler)})
	if h.Credential() != nil {
		t.Error("plant2 uses the certificate of plant1")
	}
}

// TestKeeperOfClockAhead checks that a machine whose clock is so far ahead of the server's that
// each certificate is due at once renews less and less often.
func TestKeeperOfClockAhead(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	vault := enrolled(t, f)
	synctest.Test(t, func(t *testing.T) { // the server is outside: no time passes while it is asked
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var renewals atomic.Int64
		done := make(chan struct{})
		k := enrol.NewKeeper(enrol.KeeperOptions{
			Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.address}, Vault: vault, Logger: slog.New(slog.DiscardHandler),
			Holder: identity.NewHolder(vault.Clock(func() time.Time { return begin.Add(25 * 24 * time.Hour) })),
			Changed: func(enrol.Issued) {
				if renewals.Add(1) > 50 {
					cancel()
				}
			},
		})
		go func() { defer close(done); k.Run(ctx) }()
		time.Sleep(10*time.Minute + time.Second)
		first := renewals.Load()
		time.Sleep(3 * 24 * time.Hour)
		cancel()
		<-done
		if first != 4 {
			t.Errorf("%d renewals in 10 minutes, want one at once and after 1, 2 and 4 minutes", first)
		}
		if rest := renewals.Load() - first; rest < 12 || rest > 18 {
			t.Errorf("%d renewals in the next 3 days, want one each 6 hours in the end", rest)
		}
	})
}

// TestKeeperIsRefused checks that a machine whose clock stands still, so that nothing is ever due, renews
// when the upper tier does not let it in: soon at first, and at most once in some minutes in the end.
func TestKeeperIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	vault := enrolled(t, f)
	synctest.Test(t, func(t *testing.T) { // the server is outside: no time passes while it is asked
		ctx, cancel := context.WithCancel(t.Context())
		renewed, done := make(chan time.Time, 100), make(chan struct{})
		k := enrol.NewKeeper(enrol.KeeperOptions{
			Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.address}, Vault: vault, Logger: slog.New(slog.DiscardHandler),
			Holder:  identity.NewHolder(vault.Clock(func() time.Time { return begin })),
			Changed: func(enrol.Issued) { renewed <- time.Now() },
		})
		go func() { defer close(done); k.Run(ctx) }()
		for range 60 * 60 {
			time.Sleep(time.Second)
			k.Refused()
		}
		cancel()
		<-done
		var waits []time.Duration
		for last := <-renewed; len(renewed) > 0; {
			next := <-renewed
			waits = append(waits, next.Sub(last))
			last = next
		}
		if n := len(waits); n < 12 || n > 22 || waits[0] > 3*time.Second || waits[n-1] < 5*time.Minute {
			t.Errorf("between renewals %s, want seconds at first, and minutes in the end", waits)
		}
	})
}

// TestKeeperSaysBoth checks that a machine that can neither renew nor join anew says why of both.
func TestKeeperSaysBoth(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	vault := enrolled(t, f)
	f.set(identity.Refuse(identity.NotEnrolled, "it was removed"))
	tokenFile := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		k := enrol.NewKeeper(enrol.KeeperOptions{
			Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.address}, Vault: vault, TokenFile: tokenFile,
			Holder: identity.NewHolder(vault.Clock(func() time.Time { return begin.Add(25 * 24 * time.Hour) })), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		time.Sleep(time.Nanosecond) // until the keeper waits for its next attempt
		cancel()
		<-done
		for _, want := range []string{"it was removed", tokenFile} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log has no %q: %s", want, log.String())
			}
		}
	})
}
