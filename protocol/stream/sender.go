package stream

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Sent is a batch of events that a sender has sent and the receiver has not
// acknowledged.
type Sent interface {
	// Through is the sequence of its last event.
	Through() uint64
	// Bytes is what it counts against the bounds of a Window.
	Bytes() int
}

// A Window holds the batches of a sender that are in flight, in the order of their
// sequences. The zero Window is empty. It is not safe for concurrent use.
type Window[B Sent] struct {
	batches []B
	bytes   int
}

// Add puts a batch behind the others.
func (w *Window[B]) Add(b B) {
	w.batches = append(w.batches, b)
	w.bytes += b.Bytes()
}

// Len is how many batches are in flight.
func (w *Window[B]) Len() int { return len(w.batches) }

// Bytes is the sum over the batches in flight.
func (w *Window[B]) Bytes() int { return w.bytes }

// Batches returns the batches in flight, the oldest first. The caller does not
// change them, nor keep the slice over a call of another method.
func (w *Window[B]) Batches() []B { return w.batches }

// Acknowledge removes the batches of which the receiver has every event, the
// oldest first, and returns them.
func (w *Window[B]) Acknowledge(seq uint64) []B {
	n := 0
	for n < len(w.batches) && w.batches[n].Through() <= seq {
		w.bytes -= w.batches[n].Bytes()
		n++
	}
	done := w.batches[:n:n]
	w.batches = w.batches[n:]
	return done
}

// Clear gives up all batches in flight.
func (w *Window[B]) Clear() { w.batches, w.bytes = nil, 0 }

// A Refusal shows when a receiver has retired a sender's epoch: its Ack says so; a receiver of an
// earlier release shows it by answering with another epoch although the sender declared its own.
// The zero Refusal has seen no such answer.
type Refusal struct{ since time.Time }

// Answer notes an Ack, where own is the sender's epoch. It reports whether the Ack says that own is
// retired, or whether all Acks for longer than patience were of another epoch. patience must exceed
// the longest delay of an Ack: an Ack that was sent before the declaration names another epoch and
// is no refusal, and a new epoch makes the receiver store again what is in flight.
func (r *Refusal) Answer(own string, a protocol.Ack, now time.Time, patience time.Duration) bool {
	if a.Epoch == own || a.Epoch == "" {
		r.since = time.Time{}
		return false
	}
	if a.Retired == own {
		return true
	}
	if r.since.IsZero() {
		r.since = now
	}
	return now.Sub(r.since) > patience
}

// Clear forgets what was answered, as after a new epoch began.
func (r *Refusal) Clear() { r.since = time.Time{} }
