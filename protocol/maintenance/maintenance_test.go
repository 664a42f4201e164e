package maintenance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
)

func window(t testing.TB, days, start string, lasts time.Duration) protocol.Window {
	t.Helper()
	bits, err := Days(strings.Fields(days))
	if err != nil {
		t.Fatal(err)
	}
	at, err := Clock(start)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Window{Days: bits, Start: at, Minutes: uint16(lasts / time.Minute)}
}

func TestAt(t *testing.T) {
	t.Parallel()
	weekend := []protocol.Window{window(t, "sat sun", "22:00", 4*time.Hour)}
	nightly := []protocol.Window{window(t, "", "02:30", time.Hour)}
	for _, c := range []struct {
		name    string
		zone    string
		windows []protocol.Window
		now     string // in that zone; where a clock shows it twice, with its offset
		open    bool
		changes string
	}{
		{"a weekday", "Europe/Berlin", weekend, "2026-11-25T12:00:00+01:00", false, "2026-11-28T22:00:00+01:00"},
		{"the moment of its beginning", "Europe/Berlin", weekend, "2026-11-28T22:00:00+01:00", true, "2026-11-29T02:00:00+01:00"},
		{"past midnight", "Europe/Berlin", weekend, "2026-11-29T01:59:59+01:00", true, "2026-11-29T02:00:00+01:00"},
		{"the moment of its end", "Europe/Berlin", weekend, "2026-11-29T02:00:00+01:00", false, "2026-11-29T22:00:00+01:00"},
		{"from Sunday into Monday", "Europe/Berlin", weekend, "2026-11-30T00:30:00+01:00", true, "2026-11-30T02:00:00+01:00"},
		{"another day of the week in UTC", "Pacific/Kiritimati", weekend, "2026-11-28T22:30:00+14:00", true, "2026-11-29T02:00:00+14:00"},
		{"left out by summer time: an hour later", "Europe/Berlin", nightly, "2026-03-29T01:00:00+01:00", false, "2026-03-29T03:30:00+02:00"},
		{"an hour that passes", "Europe/Berlin", nightly, "2026-03-29T04:29:59+02:00", true, "2026-03-29T04:30:00+02:00"},
		{"over the change to summer time", "Europe/Berlin", weekend, "2026-03-28T23:00:00+01:00", true, "2026-03-29T03:00:00+02:00"},
		{"repeated at the end of summer time: the first of both", "Europe/Berlin", nightly, "2026-10-25T02:00:00+02:00", false, "2026-10-25T02:30:00+02:00"},
		{"the second of both", "Europe/Berlin", nightly, "2026-10-25T02:30:00+01:00", false, "2026-10-26T02:30:00+01:00"},
		{"over the end of summer time", "Europe/Berlin", weekend, "2026-10-24T23:00:00+02:00", true, "2026-10-25T02:00:00+02:00"},
		{"half an hour of summer time", "Australia/Lord_Howe", nightly, "2026-10-04T01:00:00+10:30", false, "2026-10-04T02:30:00+11:00"},
		{"windows that touch are one", "UTC", []protocol.Window{window(t, "mon", "08:00", 4*time.Hour), window(t, "mon", "12:00", time.Hour)}, "2026-11-30T09:00:00Z", true, "2026-11-30T13:00:00Z"},
		{"one inside another", "UTC", []protocol.Window{window(t, "mon", "08:00", 4*time.Hour), window(t, "mon", "09:00", time.Hour)}, "2026-11-30T08:30:00Z", true, "2026-11-30T12:00:00Z"},
		{"always", "UTC", []protocol.Window{window(t, "wed", "00:00", 7*24*time.Hour)}, "2026-11-30T09:00:00Z", true, ""},
		{"each day, all day", "America/New_York", []protocol.Window{window(t, "", "00:00", 24*time.Hour)}, "2026-06-30T09:00:00-04:00", true, ""},
	} {
		s, err := New(protocol.Maintenance{TimeZone: c.zone, Windows: c.windows})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		open, changes := s.At(now)
		got := ""
		if !changes.IsZero() {
			got = s.In(changes).Format(time.RFC3339)
		}
		if open != c.open || got != c.changes {
			t.Errorf("%s: open %t until %q, want %t until %q", c.name, open, got, c.open, c.changes)
		}
	}
}

// TestEachMinute compares At with what each minute says of itself, over a year with all changes of time zones.
func TestEachMinute(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := protocol.Maintenance{TimeZone: rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"}).Draw(t, "zone")}
		m.Windows = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) protocol.Window {
			return protocol.Window{
				Days: rapid.Uint8Range(0, 127).Draw(t, "days"), Start: rapid.Uint16Range(0, 1439).Draw(t, "start"), Minutes: rapid.Uint16Range(MinMinutes, 2000).Draw(t, "minutes"),
			}
		}), 1, 3).Draw(t, "windows")
		s, err := New(m)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1_767_225_600, 0).Add(time.Duration(rapid.IntRange(0, 365*24*60).Draw(t, "minute")) * time.Minute)
		open, changes := s.At(now)
		if changes.IsZero() {
			changes = now.Add(8 * day)
		} else if still, _ := s.At(changes); still == open {
			t.Fatalf("%v: open %t at %v, and at %v, where that changes", m, open, now, changes)
		}
		for at := now; at.Before(changes); at = at.Add(7 * time.Minute) {
			if same, next := s.At(at); same != open || !next.IsZero() && !next.Equal(changes) && changes.Sub(now) < 8*day {
				t.Fatalf("%v: open %t at %v until %v, and %t at %v until %v", m, open, now, changes, same, at, next)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	good := []protocol.Window{{Minutes: 60}}
	for name, m := range map[string]protocol.Maintenance{
		"no time zone":      {Windows: good},
		"of the machine":    {TimeZone: "Local", Windows: good},
		"unknown time zone": {TimeZone: "Europe/Berlyn", Windows: good},
		"a path":            {TimeZone: "../etc/passwd", Windows: good},
		"no window":         {TimeZone: "UTC"},
		"too many windows":  {TimeZone: "UTC", Windows: slices.Repeat(good, MaxWindows+1)},
		"days":              {TimeZone: "UTC", Windows: []protocol.Window{{Days: 128, Minutes: 60}}},
		"start":             {TimeZone: "UTC", Windows: []protocol.Window{{Start: 1440, Minutes: 60}}},
		"too short":         {TimeZone: "UTC", Windows: []protocol.Window{{Minutes: MinMinutes - 1}}},
		"too long":          {TimeZone: "UTC", Windows: []protocol.Window{{Minutes: MaxMinutes + 1}}},
	} {
		if _, err := New(m); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v, want an error of kind Invalid", name, err)
		}
	}
	for _, text := range []string{"", "8:00", "24:00", "12:60", "22", "22:00 ", "-1:00"} {
		if at, err := Clock(text); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q is read as %d, %v", text, at, err)
		}
	}
	for _, list := range []string{"sam", "Sat", "sat sun sat"} {
		if days, err := Days(strings.Fields(list)); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q is read as %b, %v", list, days, err)
		}
	}
	if days, err := Days([]string{"sun", "mon", "sat"}); err != nil || !slices.Equal(DayNames(days), []string{"mon", "sat", "sun"}) {
		t.Errorf("%b, %v, written as %v", days, err, DayNames(days))
	}
	if at, err := Clock("22:05"); err != nil || ClockText(at) != "22:05" {
		t.Errorf("%d, %v, written as %s", at, err, ClockText(at))
	}
}

// TestZonesOfTheMachine: what only a machine has under a name is no time zone of windows.
func TestZonesOfTheMachine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Local", "localtime", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin", "Factory", "../etc/localtime", "europe/berlin"} {
		if zone, err := Zone(name); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q is %v, %v", name, zone, err)
		}
	}
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"} {
		if _, err := Zone(name); err != nil {
			t.Error(err)
		}
	}
}
