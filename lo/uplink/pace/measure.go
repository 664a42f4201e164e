package pace

import "time"

const (
	// startAllowance is what may be under way before anything is known of the link.
	startAllowance = 4 << 10
	minAllowance   = 2 << 10
	maxAllowance   = 4 << 20
	// minBatch is the size of the smallest batches that are made on a slow link.
	minBatch = 512
	// smallQueue is what may wait before a slow link, in bytes, up to half a second
	// of it; before a fast one it is a tenth of a second.
	smallQueue = 8 << 10

	// minRateBytes is what must be delivered for a rate to differ from the time of the way.
	minRateBytes = 1 << 10

	// rateMemory is how long the best rate is believed.
	rateMemory = 5 * time.Second
	// pathMemory is how long the shortest way is believed. Then the data streams hold
	// their breath until the link is empty, to measure it again.
	pathMemory = 30 * time.Second
	// busyMemory is how much busy time the throughput is an average of.
	busyMemory = 5 * time.Second
)

// measure is what the sender knows of a link: from the Acks only, so that all that
// lies on the way counts, the commit of the CO included.
//
// It is a model of two numbers, as in BBR: the best rate of late, and the time of
// the way when nothing waits on it. Their product is what is on the way, and what
// is sent beyond it only waits before the slowest part.
type measure struct {
	delivered   uint64    // bytes with an Ack, ever
	deliveredAt time.Time // of the last Ack, or of the end of a rest

	best, earlier float64 // bytes per second, in this and in the last rateMemory
	bestSince     time.Time

	path   time.Duration // 0: unknown
	pathAt time.Time     // when it was measured
	renew  bool          // the next measurement counts, even if it is longer
	filled bool          // a queue was seen: the rate is the link's

	// of the throughput
	busySince  time.Time // zero: nothing is under way
	span, last span
}

// span is some busy time.
type span struct {
	bytes uint64
	busy  time.Duration
}

func (m *measure) forget() {
	m.best, m.earlier, m.bestSince = 0, 0, time.Time{}
	m.path, m.pathAt, m.renew, m.filled = 0, time.Time{}, false, false
}

// sample handles an Ack of p.
func (m *measure) sample(p Passage, now time.Time) {
	m.delivered += uint64(p.bytes)
	m.span.bytes += uint64(p.bytes)
	m.count(now)
	m.deliveredAt = now
	took := max(now.Sub(p.Began), time.Millisecond)
	// From Ack to Ack: so what was half on its way at the start is not overvalued.
	rate := float64(m.delivered-p.delivered) / max(now.Sub(p.since), time.Millisecond).Seconds()
	m.measurePath(p, took, rate, now)
	if m.delivered-p.delivered < minRateBytes {
		return
	}
	if now.Sub(m.bestSince) > rateMemory {
		m.earlier, m.best, m.bestSince = m.best, 0, now
	}
	m.best = max(m.best, rate)
	if took > 2*(m.path+time.Second) {
		m.earlier, m.best = 0, rate // the link is slower than it was
	}
	waited := took.Seconds() - m.path.Seconds() - float64(p.bytes)/m.rate()
	m.filled = m.filled || waited > m.queue()/m.rate()/2
}

// measurePath learns the time of the way from p, which took took, at rate bytes per
// second. That of what had the link to itself is the way. That of anything else is
// longer by what waited before it, and bounds the way from above: without the
// bound, all the time of the first Acks would count as a queue, and the link as
// full while it is nearly empty.
func (m *measure) measurePath(p Passage, took time.Duration, rate float64, now time.Time) {
	way, renew := took, false
	if p.alone {
		renew = m.renew
		// The time that the bytes themselves take is no part of the way, where the
		// rate is the link's. What it is before that is too low, and the time too long.
		if known := m.rate(); m.filled && known > rate {
			way -= time.Duration(float64(p.bytes) / known * float64(time.Second))
		}
	}
	if m.path == 0 || way <= m.path || renew {
		m.path, m.pathAt = way, now
		m.renew = m.renew && !renew
	}
}

func (m *measure) rate() float64 { return max(m.best, m.earlier) }

// queue returns how many bytes may wait before the link.
func (m *measure) queue() float64 {
	return max(m.rate()/10, min(m.rate()/2, smallQueue))
}

// allowance returns how many bytes may be under way for data to be added. data is
// how many of it there are.
func (m *measure) allowance(data int, now time.Time) int {
	if m.rate() == 0 {
		return startAllowance
	}
	if m.path > 0 && now.Sub(m.pathAt) > pathMemory {
		if data > 0 {
			return 0
		}
		m.pathAt, m.renew = now, true
	}
	return min(max(int(m.whole()), minAllowance), maxAllowance)
}

// whole is what may be under way: what is on the way, and the queue. Until a queue
// was seen it is twice the former, because the link may carry more than is known;
// later the queue itself is what shows that.
func (m *measure) whole() float64 {
	way := m.rate() * m.path.Seconds()
	if !m.filled {
		way *= 2
	}
	return way + m.queue()
}

// batch returns the size of batches with which the link stays busy: one has its Ack
// only when it is there whole, so that it must fit into what is beyond the way.
func (m *measure) batch() int {
	if m.rate() == 0 {
		return startAllowance / 2
	}
	return min(max(int(m.queue()*3/4), minAllowance/2), maxAllowance/2)
}

// busy says that something is under way from now on.
func (m *measure) busy(now time.Time) {
	if m.busySince.IsZero() {
		m.busySince, m.deliveredAt = now, now
	}
}

// rest says that nothing is.
func (m *measure) rest(now time.Time) {
	m.count(now)
	m.busySince = time.Time{}
}

// count adds the busy time until now.
func (m *measure) count(now time.Time) {
	if !m.busySince.IsZero() {
		m.span.busy += now.Sub(m.busySince)
		m.busySince = now
	}
	if m.span.busy >= busyMemory {
		m.last, m.span = m.span, span{}
	}
}

// throughput returns the bytes per second of the last busy seconds.
func (m *measure) throughput(now time.Time) uint64 {
	bytes, busy := m.span.bytes+m.last.bytes, m.span.busy+m.last.busy
	if !m.busySince.IsZero() {
		busy += now.Sub(m.busySince)
	}
	if busy <= 0 {
		return 0
	}
	return uint64(float64(bytes) / busy.Seconds())
}
