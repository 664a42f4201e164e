package enrol_test

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// day is enough for a certificate of begin to be due, and too short for it to end.
const day = 24 * time.Hour

// A pace has when a keeper in a bubble of synctest asked for certificates.
type pace struct {
	mu    sync.Mutex // protects asked
	asked []time.Time
}

// since returns how often the keeper has asked from a time on, and the shortest time between two of them.
func (p *pace) since(at time.Time) (times int, shortest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := slices.BinarySearchFunc(p.asked, at, time.Time.Compare)
	shortest = 24 * time.Hour
	for j := i + 1; j < len(p.asked); j++ {
		shortest = min(shortest, p.asked[j].Sub(p.asked[j-1]))
	}
	return len(p.asked) - i, shortest
}

// keep runs a keeper of plant1 whose clock stands at now, in a bubble, and calls f with it. The server is outside: no
// time passes while it is asked.
func keep(t *testing.T, fl *fleet, now time.Time, f func(*enrol.Keeper, *pace)) {
	t.Helper()
	vault := enrolled(t, fl)
	synctest.Test(t, func(t *testing.T) {
		p := &pace{}
		ctx, cancel := context.WithCancel(t.Context())
		k := enrol.NewKeeper(enrol.KeeperOptions{
			Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{fl.address}, Vault: vault, Logger: slog.New(slog.DiscardHandler),
			TokenFile: filepath.Join(t.TempDir(), "token"), Holder: identity.NewHolder(vault.Clock(func() time.Time { return now })),
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				p.mu.Lock()
				p.asked = append(p.asked, time.Now())
				p.mu.Unlock()
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		})
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		f(k, p)
		cancel()
		<-done
	})
}

// refuse tells the keeper each second for a time that its machine is not let in.
func refuse(k *enrol.Keeper, d time.Duration) {
	for ; d > 0; d -= time.Second {
		k.Refused()
		time.Sleep(time.Second)
	}
}

// TestDueAndRefused checks that a machine whose certificate is due, and which gets neither in nor another one, asks
// as slowly in the end as one whose certificate is not.
func TestDueAndRefused(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]time.Time{"due": begin.Add(25 * day), "not due": begin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, identity.OfCO(), identity.LO)
			f.set(identity.Refuse(identity.NotEnrolled, "it was removed"))
			keep(t, f, now, func(k *enrol.Keeper, p *pace) {
				start := time.Now()
				refuse(k, time.Minute)
				if n, _ := p.since(start); n < 4 || n > 10 {
					t.Errorf("asked %d times in the first minute, want it soon at first", n)
				}
				refuse(k, time.Hour)
				late := time.Now()
				refuse(k, 2*time.Hour)
				if n, shortest := p.since(late); n < 11 || shortest < 5*time.Minute {
					t.Errorf("asked %d times in two hours, with %s between two: want 5 to 10 minutes in the end", n, shortest)
				}
			})
		})
	}
}

// TestRefusedWhileDue checks that a machine that could not renew for long, and was let in all the time, asks at once when it
// is refused.
func TestRefusedWhileDue(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	f.set(identity.Refuse(identity.Unavailable, "the database is away"))
	keep(t, f, begin.Add(25*day), func(k *enrol.Keeper, p *pace) {
		time.Sleep(5 * time.Hour)
		at := time.Now()
		refuse(k, 5*time.Second)
		if n, _ := p.since(at); n < 2 {
			t.Errorf("asked %d times in 5 s, want it at once", n)
		}
	})
}

// TestFlaps checks that a machine that is let in between asks soon each time, and no more often in the end than one that
// is refused all the time where what it gets holds for seconds.
func TestFlaps(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	keep(t, f, begin, func(k *enrol.Keeper, p *pace) {
		for i := range 40 {
			time.Sleep(5 * time.Minute)
			at := time.Now()
			refuse(k, 3*time.Second)
			if n, _ := p.since(at); n < 1 {
				t.Fatalf("refusal %d, after 5 minutes in which the machine was let in, is followed by none within 3 s", i+1)
			}
		}
		time.Sleep(time.Hour)
		for range 180 {
			refuse(k, 10*time.Second)
			time.Sleep(10 * time.Second)
		}
		late := time.Now()
		for range 360 {
			refuse(k, 10*time.Second)
			time.Sleep(10 * time.Second)
		}
		if n, shortest := p.since(late); n < 11 || shortest < 5*time.Minute {
			t.Errorf("asked %d times in two hours, with %s between two: want 5 to 10 minutes in the end", n, shortest)
		}
	})
}

// TestRefusedAgain checks that what was is forgotten once the machine was let in.
func TestRefusedAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	f.set(identity.Refuse(identity.NotEnrolled, "it was removed"))
	keep(t, f, begin, func(k *enrol.Keeper, p *pace) {
		refuse(k, 2*time.Hour)
		f.set(nil)
		refuse(k, 10*time.Minute)
		time.Sleep(3 * time.Minute)
		at := time.Now()
		refuse(k, 10*time.Second)
		if n, _ := p.since(at); n < 2 {
			t.Errorf("asked %d times in 10 s, want it as often as after a first refusal", n)
		}
	})
}

// TestOneRenewal checks that what came of the certificate of before asks for no further one.
func TestOneRenewal(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"not let in with the one of before": false, "without the authority of its site": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, identity.OfCO(), identity.LO)
			now := begin.Add(25 * day)
			f.now.set(now)
			f.certify(t, identity.OfCO())
			vault := &noIssuer{Store: enrolled(t, f), lost: lost}
			synctest.Test(t, func(t *testing.T) { // the server is outside: no time passes while it is asked
				ctx, cancel := context.WithCancel(t.Context())
				var k *enrol.Keeper
				renewals, done := 0, make(chan struct{})
				k = enrol.NewKeeper(enrol.KeeperOptions{
					Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.address}, Vault: vault, Logger: slog.New(slog.DiscardHandler),
					Holder:  identity.NewHolder(vault.Clock(func() time.Time { return now })),
					Changed: func(enrol.Issued) { renewals++; k.Refused() },
				})
				go func() { defer close(done); k.Run(ctx) }()
				time.Sleep(time.Hour)
				cancel()
				<-done
				if renewals != 1 {
					t.Errorf("%d renewals, want 1", renewals)
				}
			})
		})
	}
}

// A noIssuer is a store that has lost the authority of the site, where it is so, until it is given another one.
type noIssuer struct {
	*store.Store
	lost bool
}

func (s *noIssuer) Load(name string) (*identity.Credential, error) {
	if name == store.Issuer && s.lost {
		return nil, fs.ErrNotExist
	}
	return s.Store.Load(name)
}

func (s *noIssuer) Save(name string, c *identity.Credential) error {
	if name == store.Issuer {
		s.lost = false
	}
	return s.Store.Save(name, c)
}
