package stream

import (
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// maxRetired bounds how many epochs of a stream a receiver remembers as retired.
	// Beyond it the oldest is forgotten: by then no batch of it is on its way.
	maxRetired = 64
	// MaxEpoch bounds the name of an epoch, in bytes. A batch of a longer one is left
	// out, so that the retired epochs of a stream have a bound in bytes as well.
	MaxEpoch = 64
	// maxSeq bounds the sequences that a sender may begin an epoch with. No sender
	// counts this far; a database column of 63 bits holds twice as many.
	maxSeq = 1 << 62
)

// A Position is how far a receiver has come in one stream. The zero Position is
// that of a stream of which nothing has arrived. The receiver stores it in the same
// transaction, or before the same acknowledgement, as what it counts.
type Position struct {
	// Epoch is the sender's numbering that Seq counts in.
	Epoch string `json:"epoch,omitempty"`
	// Seq is the highest sequence that the receiver has; it has, or knows as lost,
	// all before it.
	Seq uint64 `json:"seq,omitempty"`
	// Retired are the epochs that were given up for a later one, the oldest first. A
	// batch of one of them is a late copy, or comes from a sender that was put back
	// from a backup; it never moves the position.
	Retired []string `json:"retired,omitempty"`
}

// A Gap is what a sender declared as lost.
type Gap struct {
	Lost uint64 // records, of the epoch that is followed now
	// AtMost is set where the receiver may have some of those, as records of an epoch before.
	AtMost bool
	// NewEpoch is set where the sender gave up an epoch for this one. What that one
	// held after the sequence After is lost too; how much it was is not known.
	NewEpoch bool
	After    uint64
}

// Message says what is lost. holder and record are the names for what numbered the
// records and for one of them, such as journal and event.
func (g Gap) Message(holder, record string) string {
	if g.NewEpoch {
		text := fmt.Sprintf("the site began a new %s: what the old one held after %s %d is lost", holder, record, g.After)
		switch {
		case g.Lost == 0:
			return text
		case g.AtMost:
			return fmt.Sprintf("%s, and at most %d of the new", text, g.Lost)
		}
		return fmt.Sprintf("%s, and %d of the new", text, g.Lost)
	}
	return fmt.Sprintf("%d %ss will never arrive", g.Lost, record)
}

// An Advance is what a batch does to a position.
type Advance struct {
	Fresh   int  // how many events are new; they are the last of the batch
	LeftOut int  // how many were neither received now nor before
	Gap     *Gap // what the batch declares as lost; nil for nothing
}

// Follow moves the position over a batch of n events and returns what the batch
// brought. The numbers are those of the steps in the package comment.
func (p *Position) Follow(b protocol.Batch, n int) Advance {
	if n == 0 { // 1
		return Advance{}
	}
	a := Advance{LeftOut: n}
	begins := b.Trimmed < maxSeq && b.First == b.Trimmed+1
	switch {
	case b.Epoch == "" || len(b.Epoch) > MaxEpoch:
		return a
	case b.Epoch != p.Epoch: // 2
		if !begins || slices.Contains(p.Retired, b.Epoch) {
			return a
		}
		a.Gap = p.adopt(b)
	case b.Trimmed > p.Seq: // 3
		if !begins {
			return a
		}
		a.Gap = &Gap{Lost: b.Trimmed - p.Seq}
		p.Seq = b.Trimmed
	}
	if b.First > p.Seq+1 || b.First == 0 { // 4
		return a
	}
	a.LeftOut = 0
	if have := p.Seq - (b.First - 1); have < uint64(n) { // 5
		a.Fresh = n - int(have)
		p.Seq += uint64(a.Fresh)
	}
	return a
}

// adopt retires the epoch for that of the batch.
func (p *Position) adopt(b protocol.Batch) *Gap {
	var g *Gap
	have := uint64(0) // of the new epoch
	switch {
	case p.Epoch != "" && b.Previous.Epoch == p.Epoch:
		have = min(p.Seq, b.Previous.Through)
		g = &Gap{Lost: b.Trimmed - min(have, b.Trimmed), NewEpoch: true, After: max(p.Seq, b.Previous.Through)}
	case p.Epoch != "":
		g = &Gap{Lost: b.Trimmed, AtMost: b.Trimmed > 0, NewEpoch: true, After: p.Seq}
	case b.Trimmed > 0:
		g = &Gap{Lost: b.Trimmed}
	}
	if p.Epoch != "" {
		p.Retired = append(slices.Clip(p.Retired), p.Epoch)
		p.Retired = p.Retired[max(0, len(p.Retired)-maxRetired):]
	}
	p.Epoch, p.Seq = b.Epoch, max(b.Trimmed, have)
	return g
}

// Ack returns the answer to a batch, once the position is durable.
func (p *Position) Ack(b protocol.Batch) protocol.Ack {
	a := protocol.Ack{V: protocol.Version, Stream: b.Stream, Epoch: p.Epoch, Seq: p.Seq}
	if slices.Contains(p.Retired, b.Epoch) {
		a.Retired = b.Epoch
	}
	return a
}

// Number gives the last fresh of the events their sequences, the last of which is
// seq, and returns them.
func Number(events []protocol.Event, fresh int, seq uint64) []protocol.Event {
	events = events[len(events)-fresh:]
	for i := range events {
		events[i].Seq = seq - uint64(fresh-1-i)
	}
	return events
}
