package pace

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// BulkPriority is the priority of live output; it is below that of every stream.
	BulkPriority = priorities - 1
	// bulkTime bounds how long a piece of live output keeps the link busy: an urgent message waits for one piece at most.
	bulkTime = 50 * time.Millisecond
	// leastPiece and mostPiece bound a piece, in bytes, where little is known of the link, or it is fast.
	leastPiece = 256
	mostPiece  = 32 << 10
	// steadyGain is the part of what the link has on the way that bulk fills, so that an event seldom finds something waiting. Once in probeEvery
	// times of the way it sends more than that, to learn whether the link carries more.
	steadyGain = 0.85
	// On a link that loses, what is lost holds up all that follows it on the connection, events too: the part is halved with each such delay, and
	// grows by regain with each piece that has none. That leaves little of such a link to bulk, and the events as they were.
	regain = 0.002
	// delayed is how many times longer than the way a piece takes that something was held up before.
	delayed    = 1.6
	probeGain  = 1.25
	probeEvery = 12
	// mostSmall bounds a piece that is sent at once, in bytes, such as a typed key and its echo. smallPart is the part of the link's rate for
	// such pieces, at least leastSmall bytes per second, and smallBurst how much of it may be saved up.
	mostSmall  = 512
	smallPart  = 0.125
	leastSmall = 512
	smallBurst = 1024
)

// A Bulk sends live data, which is in no journal, over the link of a Gate. It uses only the capacity that the streams leave, and sends no more
// than is in flight already, so that its data never queue before the link. It is for one goroutine.
type Bulk struct {
	gate   *Gate
	ticket *Ticket
	turn   notify.Signal
	share  share

	small  float64 // bytes that may go at once; protected by the lock of the gate
	filled time.Time
}

// share is the part of what is on the way that bulk fills; protected by the lock of the gate.
type share struct {
	part   float64
	halved time.Time // when it was last
}

// learn takes how long a piece took on a link whose way takes path.
func (s *share) learn(took, path time.Duration, now time.Time) {
	switch {
	case path == 0:
	case took <= time.Duration(delayed*float64(path))+2*bulkTime:
		s.part = min(s.part+regain, steadyGain)
	case now.Sub(s.halved) > took: // else the same delay held up this one
		s.part, s.halved = s.part/2, now
	}
}

// Small sends a piece of at most mostSmall bytes at once, in spite of waiting data. It returns the function to call once the piece is acknowledged, or
// given up; nil: too much was sent so lately. Unlike Wait it may be called by another goroutine.
func (b *Bulk) Small(n int) (end func(acked bool)) {
	now, g := time.Now(), b.gate
	g.mu.Lock()
	rate := max(g.measure.rate()*smallPart, leastSmall)
	if g.rate > 0 {
		rate = min(rate, max(g.rate*smallPart, 1))
	}
	if !b.filled.IsZero() {
		b.small = min(b.small+rate*now.Sub(b.filled).Seconds(), smallBurst)
	} else {
		b.small = smallBurst
	}
	b.filled = now
	ok := n <= mostSmall && b.small >= float64(n)
	if ok {
		b.small -= float64(n)
	}
	g.mu.Unlock()
	if !ok {
		return nil
	}
	p := b.ticket.Wait(n, now)
	return func(acked bool) { b.ticket.End(p, acked, time.Now()) }
}

// Bulk returns a Bulk of the gate's link.
func (g *Gate) Bulk() *Bulk {
	turn := notify.New()
	return &Bulk{gate: g, ticket: g.Join(BulkPriority, turn), turn: turn, share: share{part: steadyGain}}
}

// Room returns how large a piece may be, in bytes: what the link carries in 50 ms.
func (b *Bulk) Room() int {
	g := b.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	rate := g.measure.rate()
	if g.rate > 0 && (rate == 0 || g.rate < rate) {
		rate = g.rate
	}
	return min(max(int(rate*bulkTime.Seconds()), leastPiece), mostPiece)
}

// Wait waits until n bytes may go, and returns what is to be called once they are acknowledged, or given up.
func (b *Bulk) Wait(ctx context.Context, n int) (end func(acked bool), err error) {
	for {
		now := time.Now()
		wait := bulkTime
		if b.roomFor(n, now) {
			var ok bool
			if ok, wait = b.ticket.Ask(n, now); ok {
				p := b.ticket.Begin(n, n, now)
				return func(acked bool) { b.end(p, acked, time.Now()) }, nil
			}
		}
		if _, err := retry.SleepOr(ctx, min(wait, time.Second), b.turn.C()); err != nil {
			b.ticket.Cancel(0, time.Now())
			return nil, err
		}
	}
}

// end takes that a piece was acknowledged, or given up.
func (b *Bulk) end(p Passage, acked bool, now time.Time) {
	b.gate.mu.Lock()
	if acked {
		b.share.learn(now.Sub(p.Began), b.gate.measure.path, now)
	}
	b.gate.mu.Unlock()
	b.ticket.End(p, acked, now)
	b.turn.Notify() // there is room: a piece that waits for it is not to find that out by its next look alone
}

// roomFor reports whether n bytes more are on the way, and do not wait before the link.
func (b *Bulk) roomFor(n int, now time.Time) bool {
	g := b.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight == 0 {
		return true
	}
	m := &g.measure
	way := m.rate() * m.path.Seconds()
	switch {
	case !m.filled: // the link may carry more than is known
		way = max(2*way, minAllowance) * b.share.part / steadyGain
	case b.share.part < steadyGain || m.path == 0 || now.UnixNano()/int64(m.path)%probeEvery > 0:
		way *= b.share.part
	default:
		way *= probeGain
	}
	return float64(g.inFlight+n) <= way
}
