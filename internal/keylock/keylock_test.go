package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestLocksAreByName(t *testing.T) {
	t.Parallel()
	var l Locks
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v, want the end of its context", err)
	}
	unlock()
	n := 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			unlock, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			n++
			unlock()
		})
	}
	wg.Wait()
	if n != 50 || len(l.held) != 0 {
		t.Errorf("%d holders, %d locks left; want 50 and 0", n, len(l.held))
	}
}
