package identity

import (
	"sync"
	"time"
)

// A Clock is a time of day that never lies below a floor, which only rises: a machine whose
// battery is empty starts in 1970 and must not take that for the present. Its methods may be
// called concurrently.
type Clock struct {
	now  func() time.Time
	save func(time.Time) error

	mu    sync.Mutex // protects floor
	floor time.Time
}

// floorStep is how far the floor rises before it is stored again.
const floorStep = time.Hour

// NewClock returns a clock over now, whose floor was stored as floor. save stores it again
// when it rises, an hour at a time; nil stores nothing.
func NewClock(now func() time.Time, floor time.Time, save func(time.Time) error) *Clock {
	return &Clock{now: now, floor: floor, save: save}
}

// Now is the time of day, or the floor where the machine's clock is below it.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return latest(c.now(), c.floor)
}

// Raise says that a moment is over, as a verified peer of an upper tier proves. An error says
// that it was not stored; it counts until the process ends.
func (c *Clock) Raise(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Before(c.floor.Add(floorStep)) {
		return nil
	}
	c.floor = t
	if c.save == nil {
		return nil
	}
	return c.save(t)
}
