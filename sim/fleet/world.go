// Package fleet steps a fleet through virtual time in one goroutine: a CO, its sites
// and their nodes, with a wrong clock each, over links that are cut, while programs
// exit, agents and orchestrators crash, and people change what should run. It carries
// out what the pure packages decide, as the tiers do: placement, lo/nodes and
// lo/reconciler at a site, en/plan at a node, protocol/stream at the CO.
//
// Everything that happens is an event of one queue, and everything that is drawn
// comes from the seed, so that a run with the same Options writes the same trace,
// byte by byte. A fault that one seed shows is a fault that can be looked at again.
//
// What is not here: sockets, disks, containers and goroutines. The tiers with those are
// what the tests of lo, en and e2e start.
package fleet

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// A world is virtual time: the queue of what is to happen, and the trace of what did.
type world struct {
	seed  uint64
	start time.Time
	now   time.Duration // since start; what a clock that is right and was never set shows
	queue queue
	seq   uint64 // of the last event
	trace bytes.Buffer
	co    *co
}

// An event is something that is to happen.
type event struct {
	at  time.Duration
	seq uint64 // of two events at one time the one that was asked for first is first
	do  func() // nil: it was stopped
}

// stop makes an event not happen. A nil event is stopped already.
func (e *event) stop() {
	if e != nil {
		e.do = nil
	}
}

// after lets do happen d from now.
func (w *world) after(d time.Duration, do func()) *event {
	w.seq++
	e := &event{at: w.now + max(0, d), seq: w.seq, do: do}
	heap.Push(&w.queue, e)
	return e
}

// run lets everything happen that is due until then.
func (w *world) run(until time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= until {
		e := heap.Pop(&w.queue).(*event)
		w.now = e.at
		if do := e.do; do != nil {
			e.do = nil
			do()
		}
	}
	w.now = until
}

// logf writes one line of the trace: time, actor, action.
func (w *world) logf(who, format string, args ...any) {
	fmt.Fprintf(&w.trace, "%s %s ", w.now, who)
	fmt.Fprintf(&w.trace, format, args...)
	w.trace.WriteByte('\n')
}

// draws returns a source of randomness of its own for each name, so that what one part
// draws does not change what another one does.
func (w *world) draws(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte(name), w.seed)) // a hash takes everything
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))                     //nolint:gosec // chosen by the seed
}

// between draws a duration from low to below high.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)))
}

// A queue is a heap of events, the next one first.
type queue []*event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(*event)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// A clock is that of one machine. It may be wrong, run too fast, and be set.
type clock struct {
	w      *world
	offset time.Duration // what it is ahead, the drift left out
	drift  float64       // seconds that it gains in a second
}

// wall is what the machine takes for the time of day.
func (c *clock) wall() time.Time {
	return c.mono().Add(c.offset + time.Duration(c.drift*float64(c.w.now)))
}

// mono is the machine's monotonic clock, as a time to compare with others of its kind.
// Setting the clock does not change it.
func (c *clock) mono() time.Time { return c.w.start.Add(c.w.now) }

// until is how long a time of day is away.
func (c *clock) until(wall time.Time) time.Duration { return wall.Sub(c.wall()) }

// set puts the clock forward, or back with a negative d.
func (c *clock) set(d time.Duration) { c.offset += d }
