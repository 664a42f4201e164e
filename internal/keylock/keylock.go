// Package keylock is a set of locks by name, made as they are asked for.
package keylock

import (
	"context"
	"sync"
)

// Locks is a set of locks by name. The zero value is ready; its methods may be called
// concurrently.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token chan struct{} // holds one token while the lock is free
	users int           // holders and waiters
}

// Lock waits for the lock of name, or for the end of ctx. Only without an error
// is unlock to be called.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[name]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		l.held[name] = k
	}
	k.users++
	l.mu.Unlock()
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; l.leave(name, k) }, nil
	case <-ctx.Done():
		l.leave(name, k)
		return nil, context.Cause(ctx)
	}
}

func (l *Locks) leave(name string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, name)
	}
}
