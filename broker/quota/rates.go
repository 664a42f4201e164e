package quota

import (
	"sync"
	"sync/atomic"
	"time"
)

// Rates bound what each of many owners takes per second. The methods may be called concurrently.
type Rates struct {
	perSecond float64
	slack     time.Duration // of which an owner may take what it has not taken
	most      time.Duration // the greatest debt of an owner

	watched atomic.Int64 // until when an owner is watched, in ns

	mu     sync.Mutex           // protects what follows
	paid   map[string]time.Time // until when what each owner has taken is its share; one that is missing has all of its slack
	lines  map[string]*line     // of those that wait for their turn
	tidied time.Time
}

// watch is for how long after it has taken something an owner waits for its turns. Others take what they do without looking.
const watch = 10 * time.Minute

// NewRates returns Rates of so much per second for each owner. An owner may use the amount of slack at once, and never owes more
// than most.
func NewRates(perSecond float64, slack, most time.Duration) *Rates {
	return &Rates{perSecond: perSecond, slack: slack, most: most, paid: make(map[string]time.Time), lines: make(map[string]*line)}
}

// Take counts n more for an owner. The turn that it has is over.
func (r *Rates) Take(owner string, n int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tidy(now)
	paid := r.paid[owner]
	if least := now.Add(-r.slack); paid.Before(least) {
		paid = least
	}
	paid = paid.Add(time.Duration(min(float64(n)/r.perSecond*float64(time.Second), float64(r.slack+r.most))))
	if most := now.Add(r.most); paid.After(most) {
		paid = most
	}
	r.paid[owner] = paid
	r.watched.Store(max(r.watched.Load(), now.Add(watch).UnixNano()))
	r.next(owner)
}

// Watched reports whether an owner has taken something lately, and so waits for its turn.
func (r *Rates) Watched(owner string, now time.Time) bool {
	if r.watched.Load() <= now.UnixNano() { // none is: no message waits for the lock
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.paid[owner]
	return is
}

// owed is how long an owner has to wait until what it has taken is its share. r.mu is held.
func (r *Rates) owed(owner string, now time.Time) time.Duration {
	return max(r.paid[owner].Sub(now), 0)
}

// tidy forgets the owners that have all of their slack, and are not watched any more. r.mu is held.
func (r *Rates) tidy(now time.Time) {
	if now.Sub(r.tidied) < watch/10 {
		return
	}
	r.tidied = now
	for owner, paid := range r.paid {
		if paid.Before(now.Add(-r.slack - watch)) {
			delete(r.paid, owner)
		}
	}
}
