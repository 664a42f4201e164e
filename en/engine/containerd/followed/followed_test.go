package followed

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

func at(generation uint64) protocol.Position {
	return protocol.Position{Epoch: 1, Generation: generation}
}

// TestPositionsGrow stores positions over restarts: none is lowered, and one that is removed may be of before.
func TestPositionsGrow(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "followed")
	check := func(when string, want map[protocol.DeploymentName]protocol.Position) {
		t.Helper()
		got, err := New(dir, nil).All()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v (%v), want %v", when, got, err, want)
		}
	}
	check("at first", nil)
	s := New(dir, nil)
	for _, generation := range []uint64{7, 9, 8} {
		if err := s.Raise("app", at(generation)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Raise("other", at(2)); err != nil {
		t.Fatal(err)
	}
	check("raised", map[protocol.DeploymentName]protocol.Position{"app": at(9), "other": at(2)})
	for range 2 {
		if err := s.Remove("app"); err != nil {
			t.Fatal(err)
		}
	}
	check("removed", map[protocol.DeploymentName]protocol.Position{"other": at(2)})
	if err := s.Raise("app", at(1)); err != nil {
		t.Fatal(err)
	}
	check("anew", map[protocol.DeploymentName]protocol.Position{"app": at(1), "other": at(2)})
}

// TestDamage flips each bit of a file: what is damaged is not known, set aside, and stored anew.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var damaged []*statefile.Damage
	s := New(dir, func(d *statefile.Damage) { damaged = append(damaged, d) })
	if err := s.Raise("app", at(7)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "app")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(whole) * 8 {
		b := append([]byte(nil), whole...)
		b[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		before := len(damaged)
		all, err := s.All()
		if got, known := all["app"]; err != nil || known && got != at(7) || !known && len(damaged) == before && !newer(b) {
			t.Fatalf("bit %d: %v (%v), %d found damaged", bit, all, err, len(damaged)-before)
		}
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := s.Raise("app", at(3)); err != nil {
		t.Fatal(err)
	}
	if all, err := s.All(); err != nil || all["app"] != at(3) {
		t.Errorf("stored anew: %v (%v)", all, err)
	}
}

// newer reports whether a file says that a later release wrote it.
func newer(b []byte) bool {
	_, _, err := statefile.Identity{Role: "en/followed", Name: "app"}.Unseal(b)
	_, ok := err.(*statefile.NewerError) //nolint:errorlint // it is returned as it is
	return ok
}
