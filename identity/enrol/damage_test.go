package enrol_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/statefile"
)

// TestKeeperRepairsDamage checks what an LO does whose files of the identity are damaged: it enrols
// anew where it can prove nothing by them, renews at once where it lost the authority of its site,
// which no certificate of its own depends on, and says what was damaged.
func TestKeeperRepairsDamage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file           string
		joins, renewed int
		newKey         bool
	}{
		{"machine.key", 1, 0, true},
		{"machine.crt", 1, 0, false},
		{"issuer.key", 0, 1, false},
		{"issuer.crt", 0, 1, false},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, identity.OfCO(), identity.LO)
			k := newKept(t, f)
			k.get(t)
			key := k.read(t, "machine.key")
			f.forget()
			raw := k.read(t, c.file)
			raw[len(raw)/2] ^= 4
			if err := os.WriteFile(filepath.Join(k.dir, c.file), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			k.get(t)
			if joins, renewed := f.counts(); joins != c.joins || renewed != c.renewed {
				t.Errorf("it joined %d times and renewed %d times, want %d and %d", joins, renewed, c.joins, c.renewed)
			}
			if changed := !bytes.Equal(key, k.read(t, "machine.key")); changed != c.newKey {
				t.Errorf("it has another key: %v, want %v", changed, c.newKey)
			}
			if !slices.ContainsFunc(k.damaged, func(d *statefile.Damage) bool { return filepath.Base(d.Path) == c.file }) {
				t.Errorf("damage was reported as %v", k.damaged)
			}
		})
	}
}

// TestAuthorityDamagedMeanwhile checks that an LO whose authority is damaged while it runs gets
// another one when a node asks for it, and keeps its own key although that file is damaged as well.
func TestAuthorityDamagedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	k := newKept(t, f)
	k.get(t)
	k.start(t)
	key := k.read(t, "machine.key")
	for _, name := range []string{"machine.key", "issuer.key"} {
		if err := os.WriteFile(filepath.Join(k.dir, name), []byte("-----BEGIN"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.keeper.Authority(); err == nil {
		t.Fatal("a damaged authority counts")
	}
	<-k.changed
	k.stop()
	if _, err := k.keeper.Authority(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(k.read(t, "machine.key"), key) {
		t.Error("the machine has another key, or none")
	}
}

// A kept is an LO that a keeper enrols.
type kept struct {
	f       *fleet
	dir     string
	options enrol.KeeperOptions
	keeper  *enrol.Keeper
	changed chan enrol.Issued
	damaged []*statefile.Damage
	stop    func()
}

func newKept(t *testing.T, f *fleet) *kept {
	t.Helper()
	k := &kept{f: f, dir: filepath.Join(t.TempDir(), "identity"), changed: make(chan enrol.Issued, 10)}
	vault, err := store.Open(nil, k.dir)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(f.token.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	k.options = enrol.KeeperOptions{
		Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.address}, TokenFile: token, Vault: vault,
		Changed: func(i enrol.Issued) { k.changed <- i }, Damaged: func(d *statefile.Damage) { k.damaged = append(k.damaged, d) },
		Logger: slog.New(slog.DiscardHandler),
	}
	return k
}

// start runs the keeper as a start of the LO does; k.stop ends it.
func (k *kept) start(t *testing.T) {
	t.Helper()
	k.options.Holder = identity.NewHolder(identity.NewClock(k.f.now.now, identity.Floor{}, nil))
	k.keeper = enrol.NewKeeper(k.options)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.keeper.Run(ctx) }()
	k.stop = func() { cancel(); <-done }
	t.Cleanup(k.stop)
}

// get starts the LO and stops it once it has a certificate that counts, and the authority of its site.
func (k *kept) get(t *testing.T) {
	t.Helper()
	k.start(t)
	select {
	case <-k.changed:
	case <-time.After(time.Minute):
		t.Fatalf("no certificate after a minute; refused: %v", k.f.last())
	}
	k.stop()
	if _, err := k.options.Holder.Credential().Check(k.options.Holder.Clock()); err != nil {
		t.Error(err)
	}
	if _, err := k.keeper.Authority(); err != nil {
		t.Error(err)
	}
}

func (k *kept) read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(k.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
