package impair

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Retransmission times: what TCP of Linux has at the least.
const (
	minProbe = 200 * time.Millisecond
	maxRTO   = 120 * time.Second
)

// direction is the serialising link one way, for all connections.
type direction struct {
	mu   sync.Mutex
	rng  *rand.Rand
	free time.Time // when the transmitter has sent all that it was given
	rate int       // of what it was given last
	sum  Counters
}

// send puts a segment of n bytes on the link and returns when it arrives at the
// other end, were nothing of its connection before it.
func (d *direction) send(now time.Time, n int, p Profile) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.Segments++
	stream := d.free.After(now)
	sent := d.transmit(now, n, p.Rate)
	late := time.Duration(0)
	for try := 0; p.Loss > 0 && d.rng.Float64() < p.Loss; try++ {
		d.sum.Lost++
		d.transmit(now, n, p.Rate) // the repeat uses its part of the link too
		switch {
		case try > 0:
			late += min(max(minProbe, p.rtt()*3/2)<<min(try-1, 10), maxRTO)
		case stream:
			late += p.rtt() + 3*air(MSS, p.Rate) // three duplicate acknowledgements
		default:
			late += max(minProbe, 2*p.rtt())
		}
	}
	jitter := time.Duration(0)
	if p.Jitter > 0 {
		jitter = time.Duration(d.rng.Int64N(int64(p.Jitter)))
	}
	return sent.Add(p.Delay + jitter + late)
}

// transmit uses the link's time for n bytes and returns when the last is on it.
func (d *direction) transmit(now time.Time, n, rate int) time.Time {
	d.sum.Wire += uint64(n + HeaderBytes)
	d.rate = rate
	if d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(air(n, rate))
	return d.free
}

// air is how long a segment of n bytes occupies the link.
func air(n, rate int) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(n+HeaderBytes) * time.Second / time.Duration(rate)
}

// ahead is how long the link is busy with what it was given.
func (d *direction) ahead(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(0, d.free.Sub(now))
}

// waiting is how many bytes a link of that rate sends in wait.
func waiting(wait time.Duration, rate int) int {
	return int(wait.Seconds() * float64(rate))
}

func (d *direction) add(delivered, swallowed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.Delivered += uint64(delivered)
	d.sum.Swallowed += uint64(swallowed)
}

// stats returns the counters without what still waits before the link.
func (d *direction) stats(now time.Time) Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sum
	if wait := d.free.Sub(now); wait > 0 {
		s.Wire -= min(s.Wire, uint64(waiting(wait, d.rate)))
	}
	return s
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
