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

// TestCertificateOfTheFuture checks that a certificate that was made while the clock was ahead
// is replaced.
func TestCertificateOfTheFuture(t *testing.T) {
	t.Parallel()
	m := open(t, func(files *store.Store, root *identity.Authority) {
		key, err := files.Key(store.Machine)
		if err != nil {
			t.Fatal(err)
		}
		chain, err := root.Issue(identity.OfCO(), key.Public(), time.Now().Add(365*24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if err := files.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: root.Root()}); err != nil {
			t.Fatal(err)
		}
	})
	if begins := certificate(m).NotBefore; begins.After(time.Now()) {
		t.Errorf("the CO goes by a certificate that begins at %s", begins)
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
