// Package turns shares out a work of which little is done at a time, such as the verification of a password. A
// source that asks for much of it in vain waits behind the others, and not they behind it.
package turns

import (
	"slices"
	"sync"
	"time"
)

// A Source waits for turns: the clients of one user name at one network address, see identity.Network.
type Source struct{ Address, User string }

// forgetAfter is for how long after the last failure of a source it stands behind those without one.
const forgetAfter = 10 * time.Minute

// mostSources is how many sources that fail are remembered, and how many that have succeeded; those of longest ago are forgotten.
const mostSources = 1024

// rests is how many times as long as the work took that failed the sources that have failed get no turn after it: what is done in vain
// takes a tenth of a processor, however many ask.
const rests = 9

// Turns are given first to the source with the fewest recent failures, of those first to one that has succeeded before, and to equal
// ones in rounds, one in each. Sources that have failed lately have one turn at a time, with rests. The methods may be called
// concurrently.
type Turns struct {
	now  func() time.Time
	most int // that may wait

	mu      sync.Mutex // protects what follows
	free    int        // turns that no source has
	waiting int
	arrived uint64 // how many have ever waited
	round   uint64 // of the last turn
	sources map[Source]*record
	right   map[Source]time.Time // the last success, apart from sources: failures of other sources do not remove it
	// suspect says that a source that has failed has its turn; the next one begins at rested, for which the timer is set.
	suspect, timed bool
	rested         time.Time
}

// A record is what is known of a source.
type record struct {
	failures int
	last     time.Time // of the failures
	round    uint64    // of its last waiter
	queue    []waiter
}

type waiter struct {
	round, arrived uint64
	turn           chan func(failed bool) // nil: there is no room any more
}

// before reports whether w comes before another waiter of a source of equal rank.
func (w *waiter) before(other *waiter) bool {
	return w.round < other.round || w.round == other.round && w.arrived < other.arrived
}

// New returns Turns of which so many are under way at once, and for which so many more may wait. now reads the clock.
func New(atOnce, waiting int, now func() time.Time) *Turns {
	return &Turns{now: now, most: waiting, free: atOnce, sources: make(map[Source]*record), right: make(map[Source]time.Time)}
}

// Succeeded notes that a source has succeeded, without a turn.
func (t *Turns) Succeeded(of Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.succeeded(of)
}

// succeeded is Succeeded. t.mu is held.
func (t *Turns) succeeded(of Source) {
	t.right[of] = t.now()
	if len(t.right) <= mostSources {
		return
	}
	oldest := of
	for of, at := range t.right {
		if at.Before(t.right[oldest]) {
			oldest = of
		}
	}
	delete(t.right, oldest)
}

// rank compares two sources by what is known of them: negative if x comes before y. t.mu is held.
func (t *Turns) rank(x, y Source, now time.Time) int {
	if c := t.sources[x].recent(now) - t.sources[y].recent(now); c != 0 {
		return c
	}
	_, xRight := t.right[x]
	_, yRight := t.right[y]
	switch {
	case xRight == yRight:
		return 0
	case xRight:
		return -1
	default:
		return 1
	}
}

// Failed reports whether a source has failed lately, and not succeeded since.
func (t *Turns) Failed(of Source) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sources[of].recent(t.now()) > 0
}

// Take waits for a turn of a source, and returns the function that ends it and says whether it was in vain. It returns nil
// where too many wait: then of the source that would come last, and among equals of the longest one, the last has to go.
func (t *Turns) Take(of Source) (end func(failed bool)) {
	t.mu.Lock()
	l := t.sources[of]
	if t.free > 0 && t.may(l, t.now()) { // a source that may have a turn does not wait
		end = t.begin(of, l)
		t.mu.Unlock()
		return end
	}
	if l == nil {
		l = &record{}
		t.sources[of] = l
	}
	t.arrived++
	l.round = max(l.round, t.round) + 1
	w := waiter{l.round, t.arrived, make(chan func(bool), 1)}
	l.queue = append(l.queue, w)
	if t.waiting++; t.waiting > t.most {
		t.dropOne()
	}
	t.give()
	t.mu.Unlock()
	return <-w.turn
}

// may reports whether a source may have a turn that is free. t.mu is held.
func (t *Turns) may(l *record, now time.Time) bool {
	return l.recent(now) == 0 || !t.suspect && !now.Before(t.rested)
}

// begin gives a turn that is free to a source, and returns what ends it. t.mu is held.
func (t *Turns) begin(of Source, l *record) (end func(failed bool)) {
	now := t.now()
	suspect := l.recent(now) > 0
	t.free--
	t.suspect = t.suspect || suspect
	return func(failed bool) { t.end(of, failed, suspect, now) }
}

// dropOne refuses a turn to one that waits. t.mu is held.
func (t *Turns) dropOne() {
	now := t.now()
	var at Source
	var worst *record
	for of, l := range t.sources {
		if len(l.queue) == 0 {
			continue
		}
		if worst != nil {
			c := t.rank(of, at, now)
			if c < 0 || c == 0 && (len(l.queue) < len(worst.queue) || len(l.queue) == len(worst.queue) && l.queue[0].arrived < worst.queue[0].arrived) {
				continue
			}
		}
		at, worst = of, l
	}
	last := len(worst.queue) - 1
	worst.queue[last].turn <- nil
	worst.queue = worst.queue[:last]
	t.waiting--
	t.tidy(at)
}

// end ends a turn that began at a time, and gives it to the next.
func (t *Turns) end(of Source, failed, suspect bool, began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if suspect {
		t.suspect = false
	}
	l := t.sources[of]
	switch {
	case failed:
		if l == nil {
			l = &record{}
			t.sources[of] = l
		}
		l.failures, l.last = l.recent(now)+1, now
		if rested := now.Add(rests * now.Sub(began)); rested.After(t.rested) {
			t.rested = rested
		}
	default:
		t.succeeded(of)
		if l != nil {
			l.failures = 0
		}
	}
	t.tidy(of)
	t.free++
	t.give()
}

// give gives the free turns to the waiting sources. t.mu is held.
func (t *Turns) give() {
	for t.free > 0 && t.waiting > 0 {
		now := t.now()
		var first Source
		var best *record
		for of, l := range t.sources {
			if len(l.queue) == 0 || !t.may(l, now) {
				continue
			}
			if best != nil {
				if c := t.rank(of, first, now); c > 0 || c == 0 && best.queue[0].before(&l.queue[0]) {
					continue
				}
			}
			first, best = of, l
		}
		if best == nil {
			t.giveAt(t.rested)
			return
		}
		t.round = max(t.round, best.queue[0].round)
		w := best.queue[0]
		best.queue = slices.Delete(best.queue, 0, 1)
		t.waiting--
		w.turn <- t.begin(first, best)
		t.tidy(first)
	}
}

// giveAt has give called at a time, unless a turn under way does so at its end. t.mu is held.
func (t *Turns) giveAt(at time.Time) {
	if t.suspect || t.timed {
		return
	}
	t.timed = true
	time.AfterFunc(max(at.Sub(t.now()), 0), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timed = false
		t.give()
	})
}

// recent is how many failures count.
func (l *record) recent(now time.Time) int {
	if l == nil {
		return 0
	}
	if now.Sub(l.last) > forgetAfter {
		return 0
	}
	return l.failures
}

// tidy forgets a source that says nothing, and where there are too many, the one that has failed least recently. t.mu is held.
func (t *Turns) tidy(of Source) {
	if l := t.sources[of]; l != nil && len(l.queue) == 0 && l.failures == 0 {
		delete(t.sources, of)
	}
	if len(t.sources) <= mostSources {
		return
	}
	var at Source
	var oldest *record
	for of, l := range t.sources {
		if len(l.queue) == 0 && (oldest == nil || l.last.Before(oldest.last)) {
			at, oldest = of, l
		}
	}
	delete(t.sources, at)
}
