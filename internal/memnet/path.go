package memnet

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

const (
	mss         = 1448 // the most bytes of a segment
	headerBytes = 52   // IPv4 and TCP with time stamps, for each segment
)

// A Profile says how good a path is. The zero value delivers at once.
type Profile struct {
	Rate   int           // bytes per second each way, headers included; 0: no limit
	Delay  time.Duration // one way
	Jitter time.Duration // the most that is added to Delay
	Loss   float64       // the part of the segments that is lost, 0 to below 1
}

// A Path is the way between two hosts.
type Path struct {
	n     *Network
	first string // the lesser name of the two: up is what it sends

	// What follows is protected by n.mu.
	profile Profile
	cut     bool
	cutAt   time.Time        // when it was cut; meaningless while it is not
	changed notify.Broadcast // when cut changes
	free    [2]time.Time     // when each direction has sent what it was given
	conns   []*conn          // those that dialled and did not close
}

// Set changes the profile for what is written from now on.
func (p *Path) Set(profile Profile) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.profile = profile
}

// Cut stops all delivery without a sign, until Restore.
func (p *Path) Cut() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if !p.cut {
		p.change(true)
		p.cutAt = time.Now()
	}
}

// Restore ends a cut. What was under way, and what was written meanwhile, arrives a
// delay later.
func (p *Path) Restore() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if !p.cut {
		return
	}
	p.change(false)
	earliest := time.Now().Add(p.profile.Delay)
	for _, c := range p.conns {
		c.in.postpone(p.cutAt, earliest)
		c.out.postpone(p.cutAt, earliest)
	}
}

// change sets cut and wakes the goroutines that wait for that. The caller holds n.mu.
func (p *Path) change(cut bool) {
	p.cut = cut
	p.changed.Notify()
	for _, c := range p.conns {
		c.in.cond.Broadcast()
		c.out.cond.Broadcast()
	}
}

// Reset ends the path's connections with ECONNRESET at both ends, also while it is cut.
func (p *Path) Reset() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	for _, c := range p.conns {
		c.in.reset()
		c.out.reset()
	}
	p.conns = nil
}

// forget drops a connection of which nothing is to come. The caller holds n.mu.
func (p *Path) forget(in, out *pipe) {
	p.conns = slices.DeleteFunc(p.conns, func(c *conn) bool { return c.in == in && c.out == out || c.in == out && c.out == in })
}

// handshake waits for the round trip of a new connection.
func (p *Path) handshake(ctx context.Context, rng *rand.Rand) error {
	p.n.mu.Lock()
	trip := p.profile.delay(rng) + p.profile.delay(rng)
	p.n.mu.Unlock()
	timer := time.NewTimer(trip)
	defer timer.Stop()
	arrived := false
	for {
		p.n.mu.Lock()
		cut, changed := p.cut, p.changed.C()
		p.n.mu.Unlock()
		if arrived && !cut {
			return ctx.Err()
		}
		select {
		case <-timer.C:
			arrived = true
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// delay draws how long a segment is under way, its repetitions included.
func (f Profile) delay(rng *rand.Rand) time.Duration {
	d := f.Delay
	if f.Jitter > 0 {
		d += time.Duration(rng.Int64N(int64(f.Jitter)))
	}
	for rto := max(rtoMin, 4*f.Delay); f.Loss > 0 && rng.Float64() < f.Loss; rto *= 2 {
		d += rto
	}
	return d
}

// send returns when a segment of size bytes that is written now arrives. The caller
// holds n.mu.
func (p *Path) send(direction, size int, rng *rand.Rand) time.Time {
	at := time.Now()
	if p.profile.Rate > 0 {
		if p.free[direction].After(at) {
			at = p.free[direction]
		}
		at = at.Add(time.Duration(size+headerBytes) * time.Second / time.Duration(p.profile.Rate))
		p.free[direction] = at
	}
	return at.Add(p.profile.delay(rng))
}
