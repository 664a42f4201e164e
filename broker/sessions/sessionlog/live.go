package sessionlog

import (
	"maps"
	"sync"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// Live counts for each segment the bytes of the messages that are still to be
// delivered from it. Its methods may be called concurrently.
type Live struct {
	mu    sync.Mutex // protects bytes
	bytes map[uint32]int64
}

// NewLive returns a Live of no messages.
func NewLive() *Live { return &Live{bytes: map[uint32]int64{}} }

// Add notes that a message lives at ref, or with the sign -1 that it does no more.
func (l *Live) Add(ref state.Ref, sign int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(ref, sign)
}

func (l *Live) addLocked(ref state.Ref, sign int64) {
	if l.bytes[ref.Segment] += sign * int64(ref.Size); l.bytes[ref.Segment] == 0 {
		delete(l.bytes, ref.Segment)
	}
}

// Remove forgets a message, wherever it is now.
func (l *Live) Remove(m *state.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(m.Ref(), -1)
}

// Relocate notes that a message is elsewhere now, unless no session still has to receive it.
func (l *Live) Relocate(m *state.Message, to state.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !m.Used() {
		return
	}
	l.addLocked(m.Ref(), -1)
	m.SetRef(to)
	l.addLocked(to, 1)
}

// Segments returns which segments messages live in now.
func (l *Live) Segments() (used func(segment uint32) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := maps.Clone(l.bytes)
	return func(segment uint32) bool { return now[segment] > 0 }
}

// Of returns the bytes that live in a segment.
func (l *Live) Of(segment uint32) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes[segment]
}
