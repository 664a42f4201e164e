// Package ledger checks what a link delivers: it knows every message that was acknowledged
// to its publisher, and counts what arrived, late, twice, out of order, or never.
package ledger

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Ledger knows every message that was acknowledged to its publisher, and what
// arrived. Its methods may be called concurrently.
type Ledger struct {
	mu   sync.Mutex
	keys map[int]*account

	accepted, delivered int // different messages
	doubled, disordered int

	marked      time.Time // when the link came back; zero: it has not
	first, last time.Time // the first progress after that, and the newest of all
	atFirst, at uint64    // how far it was then
}

// An account is the ledger of one key: a publisher, whose messages are numbered.
type account struct {
	accepted, arrived map[uint32]bool
	newest            uint32 // the highest number that arrived
}

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{keys: map[int]*account{}} }

func (l *Ledger) account(key int) *account {
	a := l.keys[key]
	if a == nil {
		a = &account{accepted: map[uint32]bool{}, arrived: map[uint32]bool{}}
		l.keys[key] = a
	}
	return a
}

// Accept notes that a message was acknowledged to its publisher.
func (l *Ledger) Accept(key int, seq uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(key).accepted[seq] = true
	l.accepted++
}

// Deliver notes that a message arrived. One that was published and never
// acknowledged may arrive too; it counts where it is doubled or out of order.
func (l *Ledger) Deliver(key int, seq uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(key)
	if a.arrived[seq] {
		l.doubled++
		return
	}
	if seq < a.newest {
		l.disordered++
	}
	a.newest = max(a.newest, seq)
	a.arrived[seq] = true
	l.delivered++
}

// Reached notes how far the consumer is, in messages. Only the differences count.
func (l *Ledger) Reached(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.at = time.Now(), n
	if !l.marked.IsZero() && l.first.IsZero() {
		l.first, l.atFirst = l.last, n
	}
}

// Pace returns how long after the mark the first and the last message came, and
// how many came per second between them; zero where there are none.
func (l *Ledger) Pace() (first, last time.Duration, rate float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.IsZero() {
		return 0, 0, 0
	}
	if d := l.last.Sub(l.first); d > 0 {
		rate = float64(l.at-l.atFirst) / d.Seconds()
	}
	return l.first.Sub(l.marked), l.last.Sub(l.marked), rate
}

// Quiet returns how long nothing has arrived, since the mark at the most.
func (l *Ledger) Quiet(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.marked
	if l.last.After(since) {
		since = l.last
	}
	return now.Sub(since)
}

// Mark says that the link is back, or the end that was killed starts.
func (l *Ledger) Mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked, l.first = time.Now(), time.Time{}
}

// Missing returns how many acknowledged messages have not arrived.
func (l *Ledger) Missing() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.keys {
		for seq := range a.accepted {
			if !a.arrived[seq] {
				n++
			}
		}
	}
	return n
}

// Absent names the acknowledged messages that have not arrived, by publisher and number.
func (l *Ledger) Absent() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		a := l.keys[key]
		for _, seq := range slices.Sorted(maps.Keys(a.accepted)) {
			if !a.arrived[seq] {
				names = append(names, fmt.Sprintf("%d/%d (newest %d)", key, seq, a.newest))
			}
		}
	}
	return names
}

// Overtaken returns how many acknowledged messages have not arrived although a
// later one of the same key has: what may have been superseded.
func (l *Ledger) Overtaken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		a := l.keys[key]
		for seq := range a.accepted {
			if !a.arrived[seq] && seq < a.newest {
				n++
			}
		}
	}
	return n
}

// Counts returns how many different messages were acknowledged, and arrived.
func (l *Ledger) Counts() (accepted, delivered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted, l.delivered
}

// Faults returns how many messages arrived twice, and out of order.
func (l *Ledger) Faults() (doubled, disordered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubled, l.disordered
}
