// Package notify notifies goroutines that something changed, without saying what: the
// notified goroutine reads the state itself. No notification blocks, and none is lost.
package notify

import (
	"context"
	"sync"
)

// A Signal wakes one goroutine. Notifications that come before it looks are one:
// after a Notify it is woken at least once. Copies are the same Signal, and all
// methods may be called concurrently. Only New makes one that works; the zero value
// never wakes anybody.
type Signal struct{ c chan struct{} }

// New returns a Signal that nothing was notified of.
func New() Signal { return Signal{make(chan struct{}, 1)} }

// Notify wakes the goroutine that waits, or else the next one that waits. It never blocks.
func (s Signal) Notify() {
	select {
	case s.c <- struct{}{}:
	default: // the one that is pending stands for this one, too
	}
}

// C returns the channel that delivers a value after a Notify, for use in a select.
// It is always the same one, and it is never closed.
func (s Signal) C() <-chan struct{} { return s.c }

// Wait returns nil after a Notify, or the cause of ctx where that ends first.
func (s Signal) Wait(ctx context.Context) error {
	select {
	case <-s.c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A Broadcast wakes all goroutines that wait. Its zero value is ready, its methods
// may be called concurrently, and it must not be copied.
type Broadcast struct {
	mu sync.Mutex
	c  chan struct{} // closed by the next Notify; nil: no goroutine waits
}

// Notify wakes all goroutines that called C before. It never blocks.
func (b *Broadcast) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// C returns a channel that the next Notify closes. So that no change is missed, call
// C first, then look at what may have changed, then wait; or do the first two, and
// the change with its Notify, under one lock.
func (b *Broadcast) C() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}
