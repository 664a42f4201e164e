package testpart

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait looks until a condition holds, and once more when the time is up.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		Eventually(t, "the third look", func() bool { looks++; return looks == 3 })
		if took := time.Since(began); took != 2*look {
			t.Errorf("three looks took %s, want %s", took, 2*look)
		}
		if wait(time.Second, func() bool { return false }) {
			t.Error("what never holds holds")
		}
		began = time.Now()
		if !wait(time.Millisecond, func() bool { return time.Since(began) >= time.Millisecond }) {
			t.Error("nobody looks when the time is up")
		}
		tries := 0
		Within(t, time.Second, "the second try", func() error {
			if tries++; tries < 2 {
				return errors.New("not yet")
			}
			return nil
		})
		if tries != 2 {
			t.Errorf("%d tries, want 2", tries)
		}
	})
}

// TestDamage changes one bit.
func TestDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	Damage(t, path)
	if got := string(Must[[]byte](t)(os.ReadFile(path))); got != "acc" {
		t.Errorf("the file holds %q, want acc", got)
	}
}
