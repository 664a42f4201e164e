// Package lane decides what a batch does to the position of a lane of a site, by the
// contract of the uplink. It is pure: the position comes from the database and goes
// back into it.
package stream

import (
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// maxRetired bounds how many journals of a lane are remembered as given up.
const maxRetired = 64

// A Position is how far a lane of a site has come: the last sequence committed, in
// which epoch, and the epochs that were given up.
type Position struct {
	Epoch   string
	Seq     uint64
	Retired []string
}

// A Gap is what a site declared as lost.
type Gap struct {
	Lost uint64 // records, of the epoch that is followed now
	// NewEpoch is set where the site gave up an epoch for this one; what that one
	// held after the sequence After is lost too, and nobody knows how much it was.
	NewEpoch bool
	After    uint64
}

// Message says what is lost; queue and record are the words for what holds it and
// for what is lost.
func (g Gap) Message(queue, record string) string {
	if g.NewEpoch {
		return fmt.Sprintf("the site began a new %s: what the old one held after %s %d is lost, and %d of the new", queue, record, g.After, g.Lost)
	}
	return fmt.Sprintf("%d %ss will never arrive", g.Lost, record)
}

// An Advance is what a batch does to a position.
type Advance struct {
	Fresh   int  // how many events are new, at the end of the batch
	LeftOut int  // how many were neither committed now nor before
	Gap     *Gap // what the batch declares as lost
}

// Follow moves the position over a batch of n events. The steps bear the numbers
// of the uplink's contract.
func (p *Position) Follow(b protocol.Batch, n int) Advance {
	if n == 0 { // 1
		return Advance{}
	}
	a := Advance{LeftOut: n}
	begins := b.Trimmed < 1<<62 && b.First == b.Trimmed+1
	switch {
	case b.Epoch == "":
		return a
	case b.Epoch != p.Epoch: // 2
		if !begins || slices.Contains(p.Retired, b.Epoch) {
			return a
		}
		a.Gap = p.leave(b)
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

// leave gives up the epoch for that of the batch.
func (p *Position) leave(b protocol.Batch) *Gap {
	var g *Gap
	switch {
	case p.Epoch != "":
		g = &Gap{Lost: b.Trimmed, NewEpoch: true, After: p.Seq}
		p.Retired = append(p.Retired, p.Epoch)
		p.Retired = p.Retired[max(0, len(p.Retired)-maxRetired):]
	case b.Trimmed > 0:
		g = &Gap{Lost: b.Trimmed}
	}
	p.Epoch, p.Seq = b.Epoch, b.Trimmed
	return g
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
