package notify

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestSignalCoalesces(t *testing.T) {
	t.Parallel()
	s := New()
	select {
	case <-s.C():
		t.Fatal("woken without a notification")
	default:
	}
	for range 3 {
		s.Notify() // blocks for ever where it blocks at all
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.C():
		t.Error("three notifications woke twice")
	default:
	}
}

// A reader that looks after each wake-up sees the last change, however the two meet.
func TestSignalLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const last = 1000
		s, seen := New(), int64(0)
		var value atomic.Int64
		go func() {
			for seen < last {
				<-s.C()
				seen = value.Load()
			}
		}()
		for range last {
			value.Add(1)
			s.Notify()
		}
		synctest.Wait() // the test fails with a deadlock where the reader still waits
		if seen != last {
			t.Errorf("the reader saw %d, want %d", seen, last)
		}
	})
}

func TestSignalWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, why := New(), errors.New("no longer wanted")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error, 1)
		go func() { got <- s.Wait(ctx) }()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("woken without a notification")
		}
		cancel(why)
		if err := <-got; !errors.Is(err, why) {
			t.Errorf("wait ended with %v, want %v", err, why)
		}
	})
}

func TestBroadcastWakesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Broadcast
		b.Notify() // no goroutine waits
		var woken atomic.Int64
		for range 3 {
			c := b.C()
			go func() {
				<-c
				woken.Add(1)
			}()
		}
		synctest.Wait()
		if n := woken.Load(); n != 0 {
			t.Errorf("%d woken without a notification", n)
		}
		b.Notify()
		b.Notify()
		synctest.Wait()
		if n := woken.Load(); n != 3 {
			t.Errorf("%d woken, want 3", n)
		}
		select {
		case <-b.C():
			t.Error("woken by a notification from before")
		default:
		}
	})
}
