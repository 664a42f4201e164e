package enrol_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// TestApply asks without a token: of a server of another fleet nothing, of one that keeps no pending machines and of
// one that does until it approves the key.
func TestApply(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfLO("plant1"), identity.EN)
	m := f.machine(t, identity.OfNode("plant1", "g1"), identity.OfLO("plant1"))
	fleet := identity.Fingerprint(f.token.Root)
	if _, err := enrol.Apply(t.Context(), m, identity.Fingerprint{1}, "S1"); err == nil || !strings.Contains(err.Error(), "fingerprint") || len(f.refused) > 0 {
		t.Errorf("a server of another fleet: %v, refused %v", err, f.refused)
	}
	if _, err := enrol.Apply(t.Context(), m, fleet, "S1"); identity.CodeOf(err) != identity.TokenUnknown {
		t.Errorf("a server that holds nobody: %v", err)
	}
	var claims []identity.Claim
	holding := func(o enrol.ServerOptions) {
		s := httptest.NewUnstartedServer(enrol.NewServer(o))
		s.TLS = f.holder.EnrolTLS()
		s.StartTLS()
		t.Cleanup(s.Close)
		m.Addresses = []string{strings.TrimPrefix(s.URL, "https://")}
	}
	approved := false
	holding(enrol.ServerOptions{
		Holder: f.holder, Registrar: f.registrar, Tier: identity.EN, Logger: slog.New(slog.DiscardHandler),
		Authority: func() (*identity.Authority, error) { return f.root, nil },
		Apply: func(_ context.Context, c identity.Claim) error {
			claims = append(claims, c)
			if !approved {
				return identity.Refuse(identity.Pending, "it waits")
			}
			return nil
		},
	})
	for _, device := range []string{strings.Repeat("x", 129), "a\nb"} {
		if _, err := enrol.Apply(t.Context(), m, fleet, device); identity.CodeOf(err) != identity.Invalid || len(claims) > 0 {
			t.Errorf("serial number %q: %v", device, err)
		}
	}
	if _, err := enrol.Apply(t.Context(), m, fleet, "S1"); identity.CodeOf(err) != identity.Pending || f.last() != identity.Pending {
		t.Errorf("before it is approved: %v", err)
	}
	approved = true
	got, err := enrol.Apply(t.Context(), m, fleet, "S1")
	if err != nil {
		t.Fatal(err)
	}
	want := identity.Claim{Name: m.Name, Key: identity.KeyName(got.Machine.Chain[0]), Device: "S1", Remote: claims[1].Remote}
	if len(claims) != 2 || claims[0].Key != want.Key || claims[1].Token != "" || claims[1].Name != want.Name || claims[1].Key != want.Key || claims[1].Device != "S1" {
		t.Errorf("claims %+v, want the last to be %+v", claims, want)
	}
}

// TestKeeperApplies checks that a machine without a token asks until it is approved, and stores why it waits.
func TestKeeperApplies(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfLO("plant1"), identity.EN)
	var approved atomic.Bool
	waits := make(chan bool, 100)
	s := httptest.NewUnstartedServer(enrol.NewServer(enrol.ServerOptions{
		Holder: f.holder, Registrar: f.registrar, Tier: identity.EN, Logger: slog.New(slog.DiscardHandler),
		Authority: func() (*identity.Authority, error) { return f.root, nil },
		Apply: func(context.Context, identity.Claim) error {
			if approved.Load() {
				return nil
			}
			waits <- true
			return identity.Refuse(identity.Pending, "it waits")
		},
	}))
	s.TLS = f.holder.EnrolTLS()
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	vault, err := store.Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	fleet, issued := identity.Fingerprint(f.token.Root), make(chan enrol.Issued, 1)
	k := enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfNode("plant1", "g1"), Server: identity.OfLO("plant1"), Addresses: []string{strings.TrimPrefix(s.URL, "https://")},
		TokenFile: filepath.Join(dir, "token"), Fleet: &fleet, Device: "S1", Vault: vault, Holder: identity.NewHolder(vault.Clock(f.now.now)),
		Changed: func(i enrol.Issued) { issued <- i }, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	<-waits
	<-waits // the refusal of the first is stored by now
	if r, err := vault.Refusal(); err != nil || r.Code != identity.Pending {
		t.Errorf("stored refusal: %v, %v", r, err)
	}
	approved.Store(true)
	got := <-issued
	cancel()
	<-done
	if name, err := vault.KeyName(store.Machine); err != nil || name != identity.KeyName(got.Machine.Chain[0]) {
		t.Errorf("the key is %s (%v), the certificate's %s", name, err, identity.KeyName(got.Machine.Chain[0]))
	}
}
