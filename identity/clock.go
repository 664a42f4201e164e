package identity

import (
	"crypto/x509"
	"math/big"
	"sync"
	"time"
)

// A Floor is what a clock never lies below.
type Floor struct {
	// Generation is that of the certificate which has shown Time, see GenerationOf.
	Generation uint32
	// Time is when the certificate began. Zero: none has shown a time.
	Time time.Time
}

// A Clock is a time of day that never lies below a floor: a machine whose battery is empty starts in 1970 and must not take
// that for the present. The floor advances with the time that passes, by a clock that cannot be set. Its methods may be
// called concurrently.
type Clock struct {
	now  func() time.Time
	save func(Floor) error

	mu    sync.Mutex // protects what follows
	floor Floor
	set   time.Time // when floor was set, by the monotonic clock
	ahead time.Duration
}

// floorStep is how far the floor rises before it is stored again.
const floorStep = time.Hour

// Farthest is how far the beginning of a certificate may lie ahead of a clock that can be right. Certificates of a
// clock that is right last longer, so that a floor that is too high by it refuses none.
const Farthest = LeafLife * 4 / 5

// NewClock returns a clock over now, whose floor was stored as floor. save stores it again
// when it rises, an hour at a time; nil stores nothing.
func NewClock(now func() time.Time, floor Floor, save func(Floor) error) *Clock {
	return &Clock{now: now, floor: floor, save: save, set: time.Now()}
}

// Now is the time of day, or the floor where the machine's clock is below it.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present()
}

// present is Now. c.mu is held.
func (c *Clock) present() time.Time {
	if c.floor.Time.IsZero() {
		return c.now()
	}
	return latest(c.now(), c.floor.Time.Add(time.Since(c.set)))
}

// For is the time at which a certificate is judged: Now, but never before the certificate begins, as an issuer of the fleet
// made it. A floor of an earlier generation says nothing about it.
func (c *Clock) For(leaf *x509.Certificate) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if GenerationOf(leaf) <= c.floor.Generation {
		now = c.present()
	}
	return latest(now, leaf.NotBefore)
}

// Raise says that a certificate has begun: that of a verified peer of an upper tier, or the machine's own. root is the
// certificate of the fleet's root. The floor rises to that moment, or falls to it where the certificate is of a later
// generation than the floor. A moment more than Farthest ahead of the machine's clock counts only where that is wrong for
// certain, as it is before the root began; see Ahead. An error says that the floor was not stored; it counts until the
// process ends.
func (c *Clock) Raise(leaf, root *x509.Certificate) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	begin, generation := leaf.NotBefore, GenerationOf(leaf)
	credible := !c.now().Before(root.NotBefore)
	if now := c.present(); credible && begin.After(now.Add(Farthest)) {
		c.ahead = begin.Sub(now)
		return nil
	}
	c.ahead = 0
	if generation < c.floor.Generation || generation == c.floor.Generation && begin.Before(c.floor.Time.Add(floorStep)) {
		return nil
	}
	c.floor, c.set = Floor{generation, begin}, time.Now()
	if c.save == nil {
		return nil
	}
	return c.save(c.floor)
}

// Ahead is how far the beginning of the certificate that Raise met last lies ahead of the machine's clock, where that was
// too far to count; else 0. One of the two clocks is wrong by as much.
func (c *Clock) Ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead
}

// generationBit is where the generation begins in a serial number. The bits below are random.
const generationBit = 128

// MaxGeneration is the highest generation: a serial number has 20 bytes at most (RFC 5280, section 4.1.2.2).
const MaxGeneration = 1<<24 - 1

// GenerationOf is how often an issuer had found, when it made a certificate, that its clock had been ahead: the upper bits of
// the serial number. Of two certificates the one of the later generation is the later one, independently of their times.
func GenerationOf(c *x509.Certificate) uint32 {
	return uint32(new(big.Int).Rsh(c.SerialNumber, generationBit).Uint64() & MaxGeneration)
}
