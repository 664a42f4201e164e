// Package quota bounds the bytes that are held for each of many owners, and for all of them, and what each takes per second.
package quota

import "sync"

// Limits are in bytes.
type Limits struct{ All, PerOwner int64 }

// A Ledger counts bytes by owner. Its methods may be called concurrently.
type Ledger struct {
	limits Limits

	mu     sync.Mutex // protects what follows
	all    int64
	owners map[string]int64
}

// New returns a Ledger without entries.
func New(l Limits) *Ledger { return &Ledger{limits: l, owners: make(map[string]int64)} }

// Take counts n bytes more for an owner, unless a limit leaves no room: which names it then. The
// owner "" is bounded by the limit for all alone.
func (l *Ledger) Take(owner string, n int64) (ok bool, which string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case owner != "" && l.owners[owner]+n > l.limits.PerOwner:
		return false, owner
	case l.all+n > l.limits.All:
		return false, "all clients"
	}
	l.add(owner, n)
	return true, ""
}

// Add counts n bytes more, or with a negative n fewer, without a limit.
func (l *Ledger) Add(owner string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(owner, n)
}

func (l *Ledger) add(owner string, n int64) {
	l.all += n
	if owner == "" {
		return
	}
	if l.owners[owner] += n; l.owners[owner] == 0 {
		delete(l.owners, owner)
	}
}

// Bytes is how many bytes are counted for all owners.
func (l *Ledger) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
