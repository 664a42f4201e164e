// Package pace decides which stream of a link may send next, and how much: a Gate grants the
// link by priority, and learns from acknowledgements how fast it is and how long its way.
package pace

import (
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol/stream"
)

// priorities is the number of priorities: that of events, three of machine data, and that of Bulk.
const priorities = 5

const (
	// fairShare is the part of what the streams before it send that a priority gets
	// all the same while it waits: a twelfth.
	fairShare = 12
	// maxCredit bounds what a priority can save up of it, in bytes.
	maxCredit = 1 << 20
)

const (
	// slowDistance and fastDistance bound the distance of small batches, and with it
	// how long news waits that comes right after other news. Below leastDistance
	// batches would cost both ends more than what is in them.
	slowDistance  = time.Second
	fastDistance  = 100 * time.Millisecond
	leastDistance = 10 * time.Millisecond
	fastRate      = 125_000 // bytes per second
)

// untilNotified is the wait of a stream whose turn comes with a notification.
const untilNotified = time.Hour

// Options are those of a Gate.
type Options struct {
	// Rate limits the bytes per second of payload of all streams together. 0 means no limit.
	Rate int
}

// A Gate decides which stream of a link may send next. It is shared by the Uplinks
// of the link, which may run concurrently.
//
// Priority 0 goes at once: it waits for the rate limit only. The others together
// keep no more under way than the link carries in a fraction of a second, see
// measure.allowance, so that what is urgent finds the link nearly free. Among them
// the one of the lowest number goes first, but each priority that waits gets a
// twelfth of what goes before it. Streams of one priority share it equally, by bytes.
type Gate struct {
	rate    float64 // bytes per second; 0: no limit
	burst   float64
	Encoder *stream.Encoder // for all streams, because it holds megabytes

	mu       sync.Mutex // protects what follows
	tickets  []*Ticket
	levels   [priorities]level
	inFlight int // bytes, of all streams
	data     int // of those of priority 1 and more
	passages int // on their way; what is granted and has not begun is none
	tokens   float64
	filled   time.Time // when tokens was right
	measure  measure
}

// level is one priority.
type level struct {
	credit int    // bytes that it may send before those that go first
	served uint64 // the virtual time of its last turn
}

// Ticket is one stream's position in the queue of the Gate.
type Ticket struct {
	gate     *Gate
	priority int
	turn     notify.Signal // it may be the stream's

	wanting int    // bytes that wait for their turn; 0: none
	time    uint64 // virtual: bytes sent, or the level's time where that is later
}

// Passage is something on its way.
type Passage struct {
	bytes     int
	Began     time.Time
	delivered uint64    // bytes that the link had delivered by then
	since     time.Time // and when that was
	alone     bool      // nothing else was under way
}

// New returns a Gate without streams.
func New(o Options) *Gate {
	g := &Gate{rate: float64(max(0, o.Rate)), Encoder: stream.NewEncoder(stream.More)}
	g.burst = max(g.rate/4, 1024)
	g.tokens = g.burst
	return g
}

// Join adds a stream. turn is notified when it may be the stream's.
func (g *Gate) Join(priority int, turn notify.Signal) *Ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &Ticket{gate: g, priority: priority, turn: turn}
	g.tickets = append(g.tickets, t)
	return t
}

// Leave removes the stream. Nothing of it may be under way.
func (t *Ticket) Leave(now time.Time) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.tickets {
		if g.tickets[i] == t {
			g.tickets = append(g.tickets[:i], g.tickets[i+1:]...)
			break
		}
	}
	g.notifyNext(now)
}

// Connected says that the stream's connection is new. Where nothing is under way
// any more, what was known of the link is forgotten.
func (t *Ticket) Connected() {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight == 0 {
		g.measure.forget()
	}
}

// Ask requests n bytes of the link. If they are not granted, ask again after wait or
// when woken; the stream keeps its position until then, or until it gives it up.
func (t *Ticket) Ask(n int, now time.Time) (ok bool, wait time.Duration) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refill(now)
	if t.wanting == 0 {
		t.time = max(t.time, g.levels[t.priority].served)
	}
	t.wanting = max(n, 1)
	turn, ahead := g.turn(now)
	if turn != t && (t.priority > 0 || g.rate > 0) {
		return false, untilNotified
	}
	ahead = ahead && turn == t
	if wait := g.starved(ahead || t.priority == 0); wait > 0 {
		return false, wait
	}
	t.wanting = 0
	t.charge(n)
	if ahead {
		g.levels[t.priority].credit -= n
	}
	g.notifyNext(now)
	return true, 0
}

// charge enters n bytes that go now.
func (t *Ticket) charge(n int) {
	g := t.gate
	g.inFlight += n
	if t.priority > 0 {
		g.data += n
	}
	g.tokens -= float64(n)
	g.levels[t.priority].served = t.time
	t.time += uint64(max(n, 0))
	waits := [priorities]bool{}
	for _, o := range g.tickets {
		waits[o.priority] = waits[o.priority] || o.wanting > 0
	}
	for p := t.priority + 1; p < priorities; p++ {
		if l := &g.levels[p]; waits[p] {
			l.credit = min(maxCredit, l.credit+max(n, 0)/fairShare)
		}
	}
}

// Begin says that what was granted goes now, and has n bytes.
func (t *Ticket) Begin(granted, n int, now time.Time) Passage {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.measure.busy(now)
	p := Passage{bytes: n, Began: now, delivered: g.measure.delivered, since: g.measure.deliveredAt, alone: g.passages == 0}
	g.passages++
	t.charge(n - granted)
	return p
}

// Wait sends n bytes without asking: a few that must go.
func (t *Ticket) Wait(n int, now time.Time) Passage { return t.Begin(0, n, now) }

// Cancel returns what was granted and not sent, and ends the wait of a stream that waits.
func (t *Ticket) Cancel(granted int, now time.Time) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	t.wanting = 0
	t.free(granted, now)
	g.tokens += float64(granted)
	g.notifyNext(now)
}

// End says that p is no longer under way: it was acknowledged, or given up.
func (t *Ticket) End(p Passage, acked bool, now time.Time) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passages--
	if acked {
		g.measure.sample(p, now)
	}
	t.free(p.bytes, now)
	g.notifyNext(now)
}

func (t *Ticket) free(n int, now time.Time) {
	g := t.gate
	g.inFlight -= n
	if t.priority > 0 {
		g.data -= n
	}
	if g.inFlight == 0 {
		g.measure.rest(now)
	}
}

// turn returns the stream that goes next, nil where the link is full for all that
// wait. ahead says that it goes before others, on the credit of its priority.
func (g *Gate) turn(now time.Time) (t *Ticket, ahead bool) {
	var first [priorities]*Ticket
	top := -1
	for _, o := range g.tickets {
		if o.wanting == 0 {
			continue
		}
		if f := first[o.priority]; f == nil || o.time < f.time {
			first[o.priority] = o
		}
		if top < 0 || o.priority < top {
			top = o.priority
		}
	}
	if top < 0 {
		return nil, false
	}
	full := g.measure.allowance(g.data, now)
	for p := priorities - 1; p > top && g.data < full; p-- {
		if f := first[p]; f != nil && g.levels[p].credit >= f.wanting {
			return f, true
		}
	}
	f := first[top]
	if top > 0 && g.inFlight > 0 && g.inFlight+f.wanting/2 > full {
		// The credit covers it where only the events have filled the link.
		if g.data < full && g.levels[top].credit >= f.wanting {
			return f, true
		}
		return nil, false
	}
	return f, false
}

// starved returns how long the rate limit holds up what goes next. What is urgent
// may go half a second into debt, so that it does not pay for what went before.
func (g *Gate) starved(urgent bool) time.Duration {
	if g.rate == 0 {
		return 0
	}
	missing := -g.tokens
	if urgent {
		missing -= g.rate / 2
	}
	if missing < 0 {
		return 0
	}
	return time.Duration(missing/g.rate*float64(time.Second)) + time.Millisecond
}

func (g *Gate) refill(now time.Time) {
	if d := now.Sub(g.filled); d > 0 && !g.filled.IsZero() {
		g.tokens = min(g.burst, g.tokens+d.Seconds()*g.rate)
	}
	g.filled = now
}

// notifyNext notifies the stream whose turn it is. A stream that the rate limit delays sets
// a timer when ask returns its wait.
func (g *Gate) notifyNext(now time.Time) {
	t, _ := g.turn(now)
	if t != nil {
		t.turn.Notify()
	}
}

// BatchBytes returns how large a batch of a stream should be on the wire, if the
// stream by itself would make it of n bytes; 0: it has no opinion.
func (g *Gate) BatchBytes(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == 0 {
		n = g.measure.batch()
	}
	if g.rate > 0 {
		n = min(n, int(g.rate/2)) // the next one waits so long for it
	}
	return max(n, minBatch)
}

// Distance returns how long after a small batch the next one may go, where the
// last one had its Ack after latency. On a slow link that is up to a second, so
// that a trickle of events does not cost a batch each.
func (g *Gate) Distance(latency time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := slowDistance
	if g.measure.rate() > fastRate {
		most = fastDistance
	}
	return min(max(latency*3/2, leastDistance), most)
}

// BytesPerSecond returns what the link carried in its last busy seconds.
func (g *Gate) BytesPerSecond(now time.Time) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.measure.throughput(now)
}

// Carries returns how many bytes are on a busy link of which the last waits for d.
func (g *Gate) Carries(d time.Duration, now time.Time) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(float64(g.measure.throughput(now)) * (d + g.measure.path).Seconds())
}

// Load returns the bytes under way, those of them that are of the priorities below events,
// and how many streams have joined.
func (g *Gate) Load() (inFlight, data, streams int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight, g.data, len(g.tickets)
}
