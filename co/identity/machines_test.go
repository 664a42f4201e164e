package identity_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	coidentity "github.com/colonyfleet/colony/co/identity"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/protocol"
)

// A record takes tokens and has none.
type record struct{ coidentity.Record }

func (record) AddToken(context.Context, fleet.JoinToken) error { return nil }

func (record) NodeTokens(context.Context) (map[protocol.SiteID]protocol.SiteTokens, error) {
	return map[protocol.SiteID]protocol.SiteTokens{}, nil
}

func (record) Revocations(context.Context) ([]protocol.Revocations, []string, error) {
	return nil, nil, nil
}

// open opens machines whose root was made now; prepare may change what is stored before.
func open(t *testing.T, prepare func(files *store.Store, root *identity.Authority)) *coidentity.Machines {
	t.Helper()
	files, err := store.Open(nil, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, _, err := files.InitRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	prepare(files, root)
	m, err := coidentity.Open(coidentity.Options{Record: record{}, Store: files, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func certificate(m *coidentity.Machines) *x509.Certificate { return m.Holder().Credential().Chain[0] }

// TestRenewsWhileTokensAreMade checks that the CO renews its own certificate where tokens are
// made so often that Run is never left alone for an hour.
func TestRenewsWhileTokensAreMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := open(t, func(*store.Store, *identity.Authority) {})
		first := certificate(m)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx, coidentity.Links{Tokens: func(context.Context, protocol.SiteID, []byte) error { return nil }, Recheck: func() {}})
		}()
		for end := time.Now().Add(identity.LeafLife * 3 / 4); time.Now().Before(end); time.Sleep(30 * time.Minute) {
			if _, _, err := m.NewToken(ctx, fleet.JoinToken{Site: "plant1", Tier: identity.EN, Uses: 1}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-done
		if certificate(m).Equal(first) {
			t.Errorf("the certificate until %s was not renewed by %s", first.NotAfter, time.Now())
		}
	})
}

// TestWrongClocks starts a CO whose certificate was made at another time than its clock says: one of the future is replaced
// by one of the next generation, a clock that is late for certain is not believed.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for what, c := range map[string]struct {
		made, now  time.Duration // from the present on
		replaced   bool
		generation uint32
	}{
		"made while the clock was ahead":          {3650 * day, 0, true, 1},
		"a clock that is days late":               {10 * day, 0, false, 0},
		"a clock in 1970":                         {10 * day, -56 * 365 * day, false, 0},
		"a clock that is ahead":                   {0, 3650 * day, true, 0},
		"a clock a moment before the root began":  {10 * day, -2 * time.Hour, false, 0},
		"no certificate, and a clock before that": {-1, -3650 * day, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			present := time.Now()
			files, err := store.Open(nil, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			root, _, err := files.InitRoot(present)
			if err != nil {
				t.Fatal(err)
			}
			key, err := files.Key(store.Machine)
			if err != nil {
				t.Fatal(err)
			}
			chain, err := root.Issue(identity.OfCO(), key.Public(), present.Add(c.made))
			if err != nil {
				t.Fatal(err)
			}
			if c.made >= 0 {
				if err := files.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: root.Root()}); err != nil {
					t.Fatal(err)
				}
			}
			now := present.Add(c.now)
			m, err := coidentity.Open(coidentity.Options{Record: record{}, Store: files, Now: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			leaf := certificate(m)
			if leaf.Equal(chain[0]) == c.replaced || identity.GenerationOf(leaf) != c.generation {
				t.Errorf("the certificate from %s to %s of generation %d, want it replaced: %t, and generation %d", leaf.NotBefore, leaf.NotAfter, identity.GenerationOf(leaf), c.replaced, c.generation)
			}
			if life := leaf.NotAfter.Sub(leaf.NotBefore); life < identity.LeafLife {
				t.Errorf("it lasts %s, from %s to %s", life, leaf.NotBefore, leaf.NotAfter)
			}
			lo, err := root.Issue(identity.OfLO("plant1"), key.Public(), m.Holder().Clock().Now())
			if err != nil || lo[0].NotAfter.Sub(lo[0].NotBefore) < identity.LeafLife {
				t.Errorf("a certificate of an LO from %s to %s: %v", lo[0].NotBefore, lo[0].NotAfter, err)
			}
		})
	}
}

// TestDecide decides about keys within the bounds of a token's life.
func TestDecide(t *testing.T) {
	t.Parallel()
	files, err := store.Open(nil, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := files.InitRoot(time.Now()); err != nil {
		t.Fatal(err)
	}
	var list []fleet.Decision
	decide := func(_ context.Context, d fleet.Decision) error {
		list = append(list, d)
		return nil
	}
	m, err := coidentity.Open(coidentity.Options{Record: record{}, Decide: decide, Store: files, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range []time.Duration{0, -time.Hour, coidentity.MaxLife + time.Second} {
		if _, err := m.Decide(t.Context(), fleet.Decision{Site: "plant1", Node: "g1", Key: "k"}, life); protocol.KindOf(err) != protocol.Invalid || len(list) > 0 {
			t.Errorf("a life of %s: %v", life, err)
		}
	}
	before := time.Now()
	got, err := m.Decide(t.Context(), fleet.Decision{Site: "plant1", Node: "g1", Key: "k", Approved: true}, time.Hour)
	if err != nil || len(list) != 1 || !list[0].Expires.Equal(got.Until) || got.Until.Before(before.Add(time.Hour-time.Second)) || !got.Approved {
		t.Errorf("decided %+v, recorded %+v, %v", got, list, err)
	}
}
