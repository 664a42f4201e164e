package state

import "time"

// plausible is the Unix time, in nanoseconds, before which no machine runs this program: a
// clock that shows less is not set.
var plausible = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

// A Clock counts the time that has certainly passed since the log was made: all that the
// program runs, and between two runs what the clock of the machine shows, where that can
// be. In doubt no time has passed, so that nothing expires too early. It does not change,
// and may be used concurrently.
type Clock struct {
	at    int64 // nanoseconds at since
	since time.Time
}

// Resume returns the clock of a log whose last stamp is last, at a time of the machine.
func Resume(last Time, now time.Time) Clock {
	c := Clock{at: max(1, last.Clock), since: now}
	if wall := now.UnixNano(); last.Wall >= plausible && wall > last.Wall {
		c.at += wall - last.Wall
	}
	return c
}

// At returns what the clock shows at a time that was read from the machine's clock with
// its monotonic part.
func (c Clock) At(now time.Time) int64 { return c.at + max(0, int64(now.Sub(c.since))) }

// Stamp returns what both clocks show.
func (c Clock) Stamp(now time.Time) Time { return Time{Clock: c.At(now), Wall: max(0, now.UnixNano())} }

// Drifted reports whether a stamp must be written, as the machine's clock has been set since last,
// or it is more than a minute old.
func (c Clock) Drifted(last Time, now time.Time) bool {
	s := c.Stamp(now)
	passed := s.Clock - last.Clock
	drift := s.Wall - last.Wall - passed
	return passed > int64(time.Minute) || drift > int64(time.Second) || drift < -int64(time.Second)
}

// Time returns when the clock shows at, as a time with a monotonic part; the zero time
// where at is 0, which is never.
func (c Clock) Time(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return c.since.Add(time.Duration(at - c.at))
}

// Until returns what the clock shows at a time t; 0 where that is zero.
func (c Clock) Until(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, c.at+int64(t.Sub(c.since)))
}
