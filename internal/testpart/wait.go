package testpart

import (
	"os"
	"testing"
	"time"
)

// patience bounds the wait for a condition: far more than any needs, on a busy machine too.
const patience = 2 * time.Minute

// look is the time between two looks at a condition.
const look = 10 * time.Millisecond

// Eventually waits until a condition holds. One that does not in two minutes fails the test.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !wait(patience, holds) {
		t.Fatalf("not within %s: %s", patience, what)
	}
}

// Within waits until check returns nil. Where it does not in time, its last error fails the test.
func Within(t testing.TB, within time.Duration, what string, check func() error) {
	t.Helper()
	var err error
	if !wait(within, func() bool { err = check(); return err == nil }) {
		t.Fatalf("not within %s: %s: %v", within, what, err)
	}
}

// wait reports whether a condition holds in time. It looks at least twice: a machine may be too
// busy to look in between.
func wait(within time.Duration, holds func() bool) bool {
	late, tick := time.NewTimer(within), time.NewTicker(look)
	defer late.Stop()
	defer tick.Stop()
	for !holds() {
		select {
		case <-late.C:
			return holds()
		case <-tick.C:
		}
	}
	return true
}

// Must returns what returns a value or an error, and fails the test for an error.
func Must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Damage flips the lowest bit of the byte in the middle of a file.
func Damage(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
