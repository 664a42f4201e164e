// Package window says whether a site is outside of its maintenance windows, by what its LO knows of the time. It is pure.
package window

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/maintenance"
)

const (
	// lookEvery is how often it is looked whether a window has begun: the time may become known, a clock may be set, and the machine sleep.
	lookEvery = time.Minute
	// fresh is how old the time of the CO may be to count before a clock of the machine that something keeps in step.
	fresh = 24 * time.Hour
)

// A Clock is what an LO knows of the time.
type Clock struct {
	Now time.Time // by the clock of the machine
	// Unsynced says that nothing keeps that in step.
	Unsynced bool
	// COMillis is the time of the CO, as it was learnt since the machine was started and counted on, in milliseconds since 1970; 0: it is not known.
	COMillis int64
	COAge    time.Duration // since it was asked for
}

// now returns the time that counts; known is false where none does.
func (c Clock) now() (at time.Time, known bool) {
	switch {
	case c.COMillis > 0 && (c.COAge <= fresh || c.Unsynced):
		return time.UnixMilli(c.COMillis), true
	case c.Unsynced:
		return time.Time{}, false
	}
	return c.Now, true
}

// Unknown is why a site has no window where nothing says what time it is.
const Unknown = "its maintenance windows count as closed: the clock of the site's machine is not synchronised, and the time of the CO is not known"

// Closed says, for people, why updates and removals wait; "": they do not. opens is when a window begins; zero: that is not known. next is when, by c.Now, that is to be asked again; zero: never. The time is that of
// the CO, else that of the machine, where it is synchronised, or where the CO was asked long ago. Where neither is known no window counts as open, nor where
// m cannot be read.
func Closed(m *protocol.Maintenance, c Clock) (why string, opens, next time.Time) {
	if m == nil {
		return "", time.Time{}, time.Time{}
	}
	schedule, err := maintenance.New(*m)
	if err != nil { // of a later release, or of a time zone that this program does not know
		return "its maintenance windows cannot be read, and count as closed; see whether the LO is to be upgraded: " + err.Error(), time.Time{}, time.Time{}
	}
	next = c.Now.Add(lookEvery)
	at, known := c.now()
	if !known {
		return Unknown, time.Time{}, next
	}
	open, changes := schedule.At(at)
	if wait := changes.Sub(at); !changes.IsZero() && wait < lookEvery {
		next = c.Now.Add(wait)
	}
	if open {
		return "", time.Time{}, next
	}
	return "the site is outside of its maintenance windows until " + schedule.In(changes).Format("Mon 2 Jan 15:04 MST"), changes, next
}
