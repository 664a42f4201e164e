package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	coidentity "github.com/colonyfleet/colony/co/identity"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/internal/statefile"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/protocol"
)

const day = 24 * time.Hour

// A vault keeps keys and certificates in memory, over restarts of its machine.
type vault struct {
	mu    sync.Mutex // protects what follows
	keys  map[string]crypto.Signer
	certs map[string]*identity.Credential
	floor identity.Floor
}

func newVault() *vault {
	return &vault{keys: map[string]crypto.Signer{}, certs: map[string]*identity.Credential{}}
}

func (v *vault) Key(name string) (crypto.Signer, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys[name] == nil {
		k, err := identity.NewKey()
		if err != nil {
			return nil, err
		}
		v.keys[name] = k
	}
	return v.keys[name], nil
}

func (v *vault) Load(name string) (*identity.Credential, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c := v.certs[name]; c != nil {
		return c, nil
	}
	return nil, fs.ErrNotExist
}

func (v *vault) Save(name string, c *identity.Credential) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.certs[name] = c
	return nil
}

// SaveRefusal has no reader here.
func (v *vault) SaveRefusal(*identity.Refusal) error { return nil }

// Repair finds nothing: memory is not damaged.
func (v *vault) Repair(string) []*statefile.Damage { return nil }

func (v *vault) clock(now func() time.Time) *identity.Clock {
	return identity.NewClock(now, v.floor, func(f identity.Floor) error { v.floor = f; return nil })
}

// A machine has a certificate, which its keeper renews.
type machine struct {
	name   identity.Name
	vault  *vault
	holder *identity.Holder
	keeper *enrol.Keeper
	stop   func()
}

// A year is a fleet of one site in virtual time: a CO, an LO and nodes, over a network in memory. The
// time of the test is the true one.
type year struct {
	t     *testing.T
	net   *memnet.Network
	begin time.Time
	co    *identity.Holder
	dir   string
	token string // file with the token of the nodes

	mu       sync.Mutex                 // protects what follows
	los      map[string]bool            // keys of LOs that may renew
	known    map[protocol.NodeID][]byte // keys of nodes that the CO knows
	revoked  []string
	lo       *machine
	machines *loidentity.Machines
}

// admission is the CO as a registrar of LOs.
type admission struct{ y *year }

func (a admission) Admit(_ context.Context, c identity.Claim) error {
	a.y.mu.Lock()
	defer a.y.mu.Unlock()
	a.y.los[c.Key] = true
	return nil
}

func (a admission) Renewed(_ context.Context, p identity.Peer) error {
	a.y.mu.Lock()
	defer a.y.mu.Unlock()
	if !a.y.los[p.Key] {
		return identity.Refuse(identity.NotEnrolled, "another one has its place")
	}
	return nil
}

func (admission) Issued(context.Context, identity.Name, *x509.Certificate) error { return nil }

func (admission) Refused(context.Context, identity.Name, string, *identity.Refusal) {}

// serve has a host take the connections of machines, and greet those that it lets in.
func (y *year) serve(ctx context.Context, host string, h *identity.Holder) {
	l, err := y.net.Host(host).Listen(ctx, "tcp", host+":8883")
	if err != nil {
		y.t.Fatal(err)
	}
	go func() { <-ctx.Done(); _ = l.Close() }()
	config := h.ServerTLS()
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				c := tls.Server(raw, config)
				if c.HandshakeContext(ctx) == nil {
					_, _ = c.Write([]byte("welcome"))
				}
				_ = c.Close()
			}()
		}
	}()
}

// enrols has a host enrol machines.
func (y *year) enrols(ctx context.Context, host string, o enrol.ServerOptions) {
	l, err := y.net.Host(host).Listen(ctx, "tcp", host+":8884")
	if err != nil {
		y.t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s := enrol.Start(l, o, func(error) {})
	go func() { <-ctx.Done(); _ = s.Stop(context.WithoutCancel(ctx)) }()
}

// start starts the keeper of a machine, whose server is at a host.
func (y *year) start(ctx context.Context, name identity.Name, v *vault, host string, server identity.Name, now func() time.Time) *machine {
	ctx, stop := context.WithCancel(ctx)
	m := &machine{name: name, vault: v, holder: identity.NewHolder(v.clock(now)), stop: stop}
	m.keeper = enrol.NewKeeper(enrol.KeeperOptions{
		Name: name, Server: server, Addresses: []string{host + ":8884"}, TokenFile: y.token, Vault: v, Holder: m.holder,
		Dial: y.net.Host(strings.ReplaceAll(name.String(), ".", "-")).DialContext, Logger: slog.New(slog.DiscardHandler),
	})
	go m.keeper.Run(ctx)
	return m
}

// connect connects a machine to a host once, as its client does.
func (y *year) connect(ctx context.Context, m *machine, host string, server identity.Name) error {
	raw, err := y.net.Host(strings.ReplaceAll(m.name.String(), ".", "-")).DialContext(ctx, "tcp", host+":8883")
	if err != nil {
		return err
	}
	defer raw.Close()
	c := tls.Client(raw, m.holder.ClientTLS(server))
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, len("welcome"))); err != nil {
		m.keeper.Refused()
		return err
	}
	return nil
}

// belongs tries to connect for some hours, as a machine does that is not let in.
func (y *year) belongs(ctx context.Context, m *machine, host string, server identity.Name) (err error) {
	for range 12 {
		if err = y.connect(ctx, m, host, server); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(15 * time.Minute)
	}
	return err
}

// startLO starts the LO of the site, which takes the place of the one before.
func (y *year) startLO(ctx context.Context, host string, now func() time.Time) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	lo := y.start(ctx, identity.OfLO("plant1"), newVault(), "co", identity.OfCO(), now)
	dir := filepath.Join(y.dir, host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		y.t.Fatal(err)
	}
	list, err := loidentity.Open(loidentity.Options{
		Site: "plant1", Dir: dir, Disk: disk.OS, Clock: lo.holder.Clock(), Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Changed: lo.holder.SetRevoked,
		Report: func(_ context.Context, kind protocol.EventKind, n protocol.NodeID, m protocol.Enrolment) error {
			if kind == protocol.MachineEnrolled {
				y.mu.Lock()
				defer y.mu.Unlock()
				y.known[n] = m.Key
			}
			return nil
		},
	})
	if err != nil {
		y.t.Fatal(err)
	}
	y.t.Cleanup(func() { _ = list.Close() })
	raw, err := os.ReadFile(y.token)
	if err != nil {
		y.t.Fatal(err)
	}
	token, err := identity.ParseToken(string(raw))
	if err != nil {
		y.t.Fatal(err)
	}
	y.mu.Lock()
	y.lo, y.machines = lo, list
	m := protocol.SiteTokens{V: protocol.Version, Site: "plant1", Tokens: []protocol.NodeToken{{
		ID: token.ID, Secret: token.Hash(), Uses: 1 << 20, ExpiresMillis: y.begin.Add(day).UnixMilli(),
	}}}
	for n, key := range y.known {
		m.Nodes = append(m.Nodes, protocol.EnrolledNode{Node: n, Key: key})
	}
	revoked := y.revoked
	y.mu.Unlock()
	list.SetListed(revoked)
	if err := list.SetTokens(protocol.Marshal(&m)); err != nil {
		y.t.Fatal(err)
	}
	y.serve(ctx, host, lo.holder)
	y.enrols(ctx, host, enrol.ServerOptions{Holder: lo.holder, Registrar: list, Tier: identity.EN, Authority: lo.keeper.Authority})
	go func() { // the link to the CO
		for ctx.Err() == nil {
			_ = y.belongs(ctx, lo, "co", identity.OfCO())
			time.Sleep(day)
		}
	}()
	return stop
}

// revoke puts keys on the list, which the LO goes by; each node hears it with its next connection.
func (y *year) revoke(keys ...string) {
	y.mu.Lock()
	y.revoked = append(y.revoked, keys...)
	all, list := y.revoked, y.machines
	y.mu.Unlock()
	y.co.SetRevoked(all)
	list.SetListed(all)
}

// A kind is a kind of clock, or of fate, of some nodes.
type kind struct {
	name string
	// clock is what a node takes for the time, at a true time after the begin of the year.
	clock func(begin time.Time, after time.Duration) time.Time
	// off says that it is switched off then, out that it cannot connect then: its clock is years ahead.
	off, out func(after time.Duration) bool
}

func never(time.Duration) bool { return false }

func between(from, to time.Duration) func(time.Duration) bool {
	return func(after time.Duration) bool { return after >= from && after < to }
}

// years is how far a clock that is wrong by years is.
const years = 10 * 365 * day

func kinds() []kind {
	right := func(begin time.Time, after time.Duration) time.Time { return begin.Add(after) }
	return []kind{
		{"right", right, never, never},
		{"in 1970", func(_ time.Time, after time.Duration) time.Time { return time.Unix(0, 0).Add(after) }, never, never},
		{"ten years behind", func(begin time.Time, after time.Duration) time.Time { return begin.Add(after - years) }, never, never},
		{"frozen", func(begin time.Time, _ time.Duration) time.Time { return begin }, never, never},
		{"1 % fast", func(begin time.Time, after time.Duration) time.Time { return begin.Add(after + after/100) }, never, never},
		{"1 % slow", func(begin time.Time, after time.Duration) time.Time { return begin.Add(after - after/100) }, never, never},
		{"steps ten years ahead, and back", func(begin time.Time, after time.Duration) time.Time {
			if between(100*day, 110*day)(after) {
				after += years
			}
			return begin.Add(after)
		}, never, between(100*day, 110*day)},
		{"steps back by ten years while it runs", func(begin time.Time, after time.Duration) time.Time {
			if after >= 100*day {
				after -= years
			}
			return begin.Add(after)
		}, never, never},
		{"a week ahead", func(begin time.Time, after time.Duration) time.Time { return begin.Add(after + 7*day) }, never, never},
		{"in a drawer, and then in 1970", func(begin time.Time, after time.Duration) time.Time {
			if after < 40*day {
				return begin.Add(after)
			}
			return time.Unix(0, 0).Add(after)
		}, between(40*day, 300*day), never},
	}
}

// each is how many nodes of each kind there are, and every how often they connect.
const (
	each  = 5
	every = 4 * day
)

// TestYear goes through a year: renewals, clocks that are wrong, a node that is revoked, and an LO that is
// stolen and replaced, with another authority. Machines of the fleet get in each time, except while their
// clock is years ahead; others do not.
func TestYear(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		y := &year{
			t: t, net: memnet.New(1), begin: time.Now(), dir: dir, token: filepath.Join(dir, "token"), los: map[string]bool{}, known: map[protocol.NodeID][]byte{},
		}
		y.startCO(ctx, time.Now)
		stopLO := y.startLO(ctx, "lo1", time.Now)
		time.Sleep(time.Minute)
		former := y.lo
		var wg sync.WaitGroup
		for _, k := range kinds() {
			for i := range each {
				wg.Go(func() { y.live(ctx, k, i) })
			}
		}
		// Day 150: a node is revoked.
		bad := y.start(ctx, identity.OfNode("plant1", "bad"), newVault(), "lo1", identity.OfLO("plant1"), time.Now)
		time.Sleep(time.Hour)
		if err := y.belongs(ctx, bad, "lo1", identity.OfLO("plant1")); err != nil {
			t.Errorf("a node, before it is revoked: %v", err)
		}
		time.Sleep(150*day - time.Since(y.begin))
		y.revoke(identity.KeyName(bad.holder.Credential().Chain[0]))
		if err := y.belongs(ctx, bad, "lo1", identity.OfLO("plant1")); err == nil {
			t.Error("a node that was revoked connected")
		}
		bad.stop()
		// Day 200: the LO is stolen, and replaced.
		time.Sleep(200*day - time.Since(y.begin))
		authority, err := former.keeper.Authority()
		if err != nil {
			t.Fatal(err)
		}
		stopLO()
		synctest.Wait() // its address is free
		stolen := identity.KeyName(former.holder.Credential().Chain[0])
		y.mu.Lock()
		delete(y.los, stolen)
		y.mu.Unlock()
		y.revoke(stolen, identity.KeyName(authority.Certificate()))
		y.dir = filepath.Join(dir, "second")
		defer y.startLO(ctx, "lo1", time.Now)()
		thief := identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil))
		thief.Set(former.holder.Credential())
		y.serve(ctx, "thief", thief)
		time.Sleep(day)
		mole := &machine{name: identity.OfNode("plant1", "mole"), vault: newVault(), holder: identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil)), stop: func() {}}
		key, err := mole.vault.Key("machine")
		if err != nil {
			t.Fatal(err)
		}
		chain, err := authority.Issue(mole.name, key.Public(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		mole.holder.Set(&identity.Credential{Key: key, Chain: chain, Root: authority.Root()})
		mole.keeper = enrol.NewKeeper(enrol.KeeperOptions{Name: mole.name, Vault: newVault(), Holder: mole.holder, Logger: slog.New(slog.DiscardHandler)})
		if err := y.connect(ctx, mole, "lo1", identity.OfLO("plant1")); err == nil {
			t.Error("a node that the thief named connected")
		}
		_, err = enrol.Renew(ctx, enrol.Machine{
			Name: mole.name, Server: identity.OfLO("plant1"), Addresses: []string{"lo1:8884"}, Key: key, Clock: mole.holder.Clock(), Dial: y.net.Host("mole").DialContext,
		}, mole.holder)
		if identity.CodeOf(err) != identity.Revoked {
			t.Errorf("its renewal: %v", err)
		}
		wg.Wait()
		cancel()
		time.Sleep(3 * day) // until the last one that sleeps has seen that
		synctest.Wait()
	})
}

// startCO makes the root, and starts the CO, whose clock is now.
func (y *year) startCO(ctx context.Context, now func() time.Time) {
	files, err := store.Open(nil, filepath.Join(y.dir, "co"))
	if err != nil {
		y.t.Fatal(err)
	}
	root, _, err := files.InitRoot(y.begin)
	if err != nil {
		y.t.Fatal(err)
	}
	if err := os.WriteFile(y.token, []byte(identity.NewToken(root.Root()).String()), 0o600); err != nil {
		y.t.Fatal(err)
	}
	m, err := coidentity.Open(coidentity.Options{Record: coRecord{y: y}, Store: files, Now: now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		y.t.Fatal(err)
	}
	y.co = m.Holder()
	go m.Run(ctx, coidentity.Links{Recheck: func() {}})
	y.serve(ctx, "co", y.co)
	y.enrols(ctx, "co", enrol.ServerOptions{Holder: y.co, Registrar: admission{y}, Tier: identity.LO, Authority: m.Authority})
}

// A coRecord has the revoked keys of a year, and no tokens.
type coRecord struct {
	coidentity.Record
	y *year
}

func (coRecord) NodeTokens(context.Context) (map[protocol.SiteID]protocol.SiteTokens, error) {
	return map[protocol.SiteID]protocol.SiteTokens{}, nil
}

func (r coRecord) Revocations(context.Context) ([]protocol.Revocations, []string, error) {
	r.y.mu.Lock()
	defer r.y.mu.Unlock()
	return nil, r.y.revoked, nil
}

// live is the year of a node.
func (y *year) live(ctx context.Context, k kind, i int) {
	name, lo := identity.OfNode("plant1", protocol.NodeID(fmt.Sprintf("n%d-%08x", i, crc32.ChecksumIEEE([]byte(k.name))))), identity.OfLO("plant1")
	v := newVault()
	now := func() time.Time { return k.clock(y.begin, time.Since(y.begin)) }
	m := y.start(ctx, name, v, "lo1", lo, now)
	time.Sleep(time.Duration(i) * 7 * time.Hour)
	connected := 0
	for time.Since(y.begin) < 365*day {
		after := time.Since(y.begin)
		if k.off(after) {
			m.stop()
			time.Sleep(every)
			if !k.off(time.Since(y.begin)) {
				m = y.start(ctx, name, v, "lo1", lo, now)
			}
			continue
		}
		err := y.belongs(ctx, m, "lo1", lo)
		switch {
		case err == nil:
			connected++
			y.mu.Lock()
			m.holder.SetRevoked(y.revoked) // it hears
			y.mu.Unlock()
		case !k.out(after):
			y.t.Errorf("a node whose clock is %s, on day %d: %v", k.name, after/day, err)
		}
		if after > 205*day && err == nil {
			if err := y.connect(ctx, m, "thief", lo); err == nil || errors.Is(err, io.EOF) {
				y.t.Errorf("a node whose clock is %s, on day %d: it connected to the stolen LO: %v", k.name, after/day, err)
			}
		}
		time.Sleep(every)
	}
	m.stop()
	if connected < 20 {
		y.t.Errorf("a node whose clock is %s connected %d times", k.name, connected)
	}
}
