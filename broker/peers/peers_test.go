package peers

import (
	"fmt"
	"testing"
	"time"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	table, now := New(Limits{Open: 2}), time.Unix(1_000_000, 0)
	for i, want := range []Verdict{Welcome, Welcome, TooMany} {
		if got := table.Enter("a", now); got != want {
			t.Errorf("connection %d: verdict %d, want %d", i, got, want)
		}
	}
	for _, other := range []string{"b", ""} {
		if got := table.Enter(other, now); got != Welcome {
			t.Errorf("address %q: verdict %d, want %d", other, got, Welcome)
		}
	}
	table.Leave("a", TooMany, now)
	if got := table.Enter("a", now); got != TooMany {
		t.Errorf("after a refused one has ended: verdict %d, want %d", got, TooMany)
	}
	table.Leave("a", Welcome, now)
	if got := table.Enter("a", now); got != Welcome {
		t.Errorf("after one has ended: verdict %d, want %d", got, Welcome)
	}
	table.Replace("a")
	table.Leave("a", Welcome, now)
	if got := table.Enter("a", now); got != TooMany {
		t.Errorf("after one has taken the place of another: verdict %d, want %d", got, TooMany)
	}
	for range answered - 1 { // one is refused already
		table.Enter("a", now)
	}
	if got := table.Enter("a", now); got != Closed {
		t.Errorf("with %d being refused: verdict %d, want %d", answered, got, Closed)
	}
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	table, now := New(Limits{PerSecond: 2.5}), time.Unix(1_000_000, 0)
	enter := func(at time.Duration, want Verdict) {
		t.Helper()
		got := table.Enter("a", now.Add(at))
		if got != want {
			t.Errorf("at %s: verdict %d, want %d", at, got, want)
		}
		table.Leave("a", got, now.Add(at)) // that it has ended gives no new one
	}
	for range 3 {
		enter(0, Welcome)
	}
	enter(0, TooFast)
	enter(399*time.Millisecond, TooFast)
	enter(400*time.Millisecond, Welcome)
	enter(400*time.Millisecond, TooFast)
	enter(time.Hour, Welcome)
}

// Addresses without a connection are forgotten, and not before what they began counts no more.
func TestAddressesAreForgotten(t *testing.T) {
	t.Parallel()
	table, now := New(Limits{Open: 10, PerSecond: 1}), time.Unix(1_000_000, 0)
	for i := range 100_000 {
		now = now.Add(time.Millisecond)
		address := fmt.Sprint(i)
		if v := table.Enter(address, now); v != Welcome {
			t.Fatalf("address %d: verdict %d", i, v)
		}
		table.Leave(address, Welcome, now)
		if v := table.Enter(address, now); v != TooFast {
			t.Fatalf("address %d is forgotten too early: verdict %d", i, v)
		}
		table.Leave(address, TooFast, now)
	}
	if n := len(table.addresses); n > 2*1000+minSweep { // those of the last second, and as many
		t.Errorf("%d addresses are remembered", n)
	}
}

func TestAll(t *testing.T) {
	t.Parallel()
	table, now := New(Limits{All: 2, PerSecond: 2}), time.Unix(1_000_000, 0)
	for i, address := range []string{"a", ""} {
		if got := table.Enter(address, now); got != Welcome {
			t.Errorf("connection %d: verdict %d, want %d", i, got, Welcome)
		}
	}
	if got := table.Enter("a", now); got != Full || got.Refusal() != "connections" {
		t.Errorf("above the limit: verdict %d, refusal %q, want %d", got, got.Refusal(), Full)
	}
	table.Leave("", Welcome, now)
	if got := table.Enter("a", now); got != Welcome {
		t.Errorf("after one has ended: verdict %d, want %d: what finds no room is none that was begun", got, Welcome)
	}
}
