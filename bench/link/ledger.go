package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// A ledger knows every message that was acknowledged to its publisher, and what
// arrived. Its methods may be called concurrently.
type ledger struct {
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

func newLedger() *ledger { return &ledger{keys: map[int]*account{}} }

func (l *ledger) account(key int) *account {
	a := l.keys[key]
	if a == nil {
		a = &account{accepted: map[uint32]bool{}, arrived: map[uint32]bool{}}
		l.keys[key] = a
	}
	return a
}

// accept notes that a message was acknowledged to its publisher.
func (l *ledger) accept(key int, seq uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(key).accepted[seq] = true
	l.accepted++
}

// deliver notes that a message arrived. One that was published and never
// acknowledged may arrive too; it counts where it is doubled or out of order.
func (l *ledger) deliver(key int, seq uint32) {
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

// reached notes how far the consumer is, in messages. Only the differences count.
func (l *ledger) reached(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.at = time.Now(), n
	if !l.marked.IsZero() && l.first.IsZero() {
		l.first, l.atFirst = l.last, n
	}
}

// pace returns how long after the mark the first and the last message came, and
// how many came per second between them; zero where there are none.
func (l *ledger) pace() (first, last time.Duration, rate float64) {
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

// quiet returns how long nothing has arrived, since the mark at the most.
func (l *ledger) quiet(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.marked
	if l.last.After(since) {
		since = l.last
	}
	return now.Sub(since)
}

// mark says that the link is back, or the end that was killed starts.
func (l *ledger) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked, l.first = time.Now(), time.Time{}
}

// missing returns how many acknowledged messages have not arrived.
func (l *ledger) missing() int {
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

// absent names the acknowledged messages that have not arrived, by publisher and number.
func (l *ledger) absent() (names []string) {
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

// overtaken returns how many acknowledged messages have not arrived although a
// later one of the same key has: what may have been superseded.
func (l *ledger) overtaken() int {
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

// counts returns how many different messages were acknowledged, and arrived.
func (l *ledger) counts() (accepted, delivered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted, l.delivered
}
