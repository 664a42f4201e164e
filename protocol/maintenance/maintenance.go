// Package maintenance says when a site may be changed: whether a time is in one of its maintenance windows, and when that changes next.
//
// A window begins by the clock on the wall of its time zone, and lasts a number of minutes that pass, over a change to summer time as
// well. A beginning that the change leaves out comes as much later as the clock goes forward, and one that it repeats comes at the first of both.
//
// The package is pure. All of it is since release 0.3.0.
package maintenance

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a gateway may have no time zones

	"github.com/colonyfleet/colony/protocol"
)

// Bounds of a Maintenance.
const (
	MaxWindows = 32 // windows of a site
	// MinMinutes and MaxMinutes bound how long a window lasts.
	MinMinutes = 5
	MaxMinutes = 7 * 24 * 60
)

const day = 24 * time.Hour

// A Schedule is a Maintenance that passes Check.
type Schedule struct {
	zone    *time.Location
	windows []protocol.Window
}

// New returns the Schedule of a Maintenance, or why it is none: an error of kind Invalid.
func New(m protocol.Maintenance) (Schedule, error) {
	zone, err := Zone(m.TimeZone)
	if err != nil {
		return Schedule{}, err
	}
	if n := len(m.Windows); n == 0 || n > MaxWindows {
		return Schedule{}, protocol.Errorf(protocol.Invalid, "%d maintenance windows: want 1 to %d; without any the site would never be updated", n, MaxWindows)
	}
	for _, w := range m.Windows {
		if w.Days > 127 || w.Start >= 24*60 || w.Minutes < MinMinutes || w.Minutes > MaxMinutes {
			return Schedule{}, protocol.Errorf(protocol.Invalid, "maintenance window %+v: want days up to 127, a start below 1440 and %d to %d minutes", w, MinMinutes, MaxMinutes)
		}
	}
	return Schedule{zone, slices.Clone(m.Windows)}, nil
}

// Zone returns the time zone of a name, or why there is none: an error of kind Invalid.
func Zone(name string) (*time.Location, error) {
	// What a machine has beside the names of the database, in small letters, differs from one to the next: localtime, posixrules, and the
	// directories posix and right, of which the latter counts leap seconds.
	if name == "" || name == "Local" || name == "Factory" || name[0] < 'A' || name[0] > 'Z' {
		return nil, protocol.Errorf(protocol.Invalid, "time zone %q: want a name of the IANA Time Zone Database, such as Europe/Berlin or UTC", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "time zone %q is not known: want a name of the IANA Time Zone Database, such as Europe/Berlin or UTC", name)
	}
	return zone, nil
}

// At reports whether now is in a window, and when that changes; zero: never.
func (s Schedule) At(now time.Time) (open bool, changes time.Time) {
	spans := s.around(now)
	for _, b := range spans {
		if !now.Before(b.from) && now.Before(b.to) {
			open = true
		}
	}
	if !open {
		for _, b := range spans {
			if b.from.After(now) && (changes.IsZero() || b.from.Before(changes)) {
				changes = b.from
			}
		}
		return false, changes
	}
	// Windows that touch or overlap are one.
	changes = now
	for _, b := range spans { // by their beginnings
		if !b.from.After(changes) && b.to.After(changes) {
			changes = b.to
		}
	}
	if changes.Sub(now) > 8*day {
		return true, time.Time{}
	}
	return true, changes
}

// In returns t by the clock of the time zone.
func (s Schedule) In(t time.Time) time.Time { return t.In(s.zone) }

type span struct{ from, to time.Time }

// around returns the windows from those that may still be open at now to those of two weeks later, by their beginnings.
func (s Schedule) around(now time.Time) (out []span) {
	y, m, d := now.In(s.zone).Date()
	for _, w := range s.windows {
		for i := -8; i <= 15; i++ {
			date := time.Date(y, m, d+i, 12, 0, 0, 0, time.UTC) // only its date counts
			if w.Days != 0 && w.Days&(1<<date.Weekday()) == 0 {
				continue
			}
			from := s.wall(date, time.Duration(w.Start)*time.Minute)
			out = append(out, span{from, from.Add(time.Duration(w.Minutes) * time.Minute)})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return a.from.Compare(b.from) })
	return out
}

// wall returns when the clock of the time zone shows a time of a day, as the package comment says it.
func (s Schedule) wall(date time.Time, at time.Duration) time.Time {
	y, m, d := date.Date()
	clock := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Add(at) // what it shows, as if that were UTC
	_, before := clock.Add(-day).In(s.zone).Zone()
	_, after := clock.Add(day).In(s.zone).Zone()
	// The offset of before is that of the first of two times that show the same, and gives what is left out as much later as the clock
	// goes forward.
	for _, offset := range []int{before, after} {
		t := clock.Add(-time.Duration(offset) * time.Second)
		if _, real := t.In(s.zone).Zone(); real == offset {
			return t
		}
	}
	return clock.Add(-time.Duration(before) * time.Second)
}

// names are the days as people write them, from Sunday on.
var names = [...]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// Days returns the bits of names of days, such as sat; none is each day. An error is of kind Invalid.
func Days(list []string) (days uint8, err error) {
	for _, name := range list {
		i := slices.Index(names[:], name)
		if i < 0 {
			return 0, protocol.Errorf(protocol.Invalid, "day %q: want one of %s", name, strings.Join(names[:], ", "))
		}
		if days&(1<<i) != 0 {
			return 0, protocol.Errorf(protocol.Invalid, "day %q stands twice", name)
		}
		days |= 1 << i
	}
	return days, nil
}

// DayNames returns what Days reads, from Monday on.
func DayNames(days uint8) (list []string) {
	for i := range names {
		if at := (i + 1) % len(names); days&(1<<at) != 0 {
			list = append(list, names[at])
		}
	}
	return list
}

// Clock reads a time of the day such as 22:00, in minutes after midnight. An error is of kind Invalid.
func Clock(text string) (minutes uint16, err error) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != 5 {
		return 0, protocol.Errorf(protocol.Invalid, "time of the day %q: want hours and minutes from 00:00 to 23:59", text)
	}
	return uint16(t.Hour()*60 + t.Minute()), nil
}

// ClockText writes what Clock reads.
func ClockText(minutes uint16) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }
