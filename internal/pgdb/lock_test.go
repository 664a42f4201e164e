package pgdb_test

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// TestLock has two programs share a lock, exclude each other, and get one that its holder has kept too long.
func TestLock(t *testing.T) {
	t.Parallel()
	d := open(t)
	lock := func(most time.Duration) *pgdb.Lock {
		l := d.Lock("files", most)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	a, b := lock(time.Minute), lock(time.Minute)
	for _, l := range []*pgdb.Lock{a, b} {
		if err := l.Acquire(true); err != nil {
			t.Fatal(err)
		}
	}
	a.Release()
	if got, err := a.Try(); got || err != nil {
		t.Errorf("alone beside one who shares it: %t, %v", got, err)
	}
	b.Release()
	if got, err := a.Try(); !got || err != nil {
		t.Fatalf("of nobody: %t, %v", got, err)
	}
	if got, err := b.Try(); got || err != nil {
		t.Errorf("of another one: %t, %v", got, err)
	}
	if err := a.Held(); err != nil {
		t.Error(err)
	}
	a.Release()

	stopped := lock(50 * time.Millisecond)
	if err := stopped.Acquire(false); err != nil {
		t.Fatal(err)
	}
	if err := b.Acquire(false); err != nil { // the server takes it from the other one
		t.Fatal(err)
	}
	if err := stopped.Held(); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("the first one believes to hold it: %v", err)
	}
	stopped.Release()
	b.Release()
	if err := stopped.Acquire(true); err != nil {
		t.Errorf("not after a new connection: %v", err)
	}
	stopped.Release()
}
