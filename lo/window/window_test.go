package window

import (
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

func TestClosed(t *testing.T) {
	t.Parallel()
	m := &protocol.Maintenance{TimeZone: "Europe/Berlin", Windows: []protocol.Window{{Days: 1 << time.Saturday, Start: 22 * 60, Minutes: 240}}}
	at := func(text string) time.Time {
		now, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	wednesday, saturday := at("2026-11-25T12:00:00+01:00"), at("2026-11-28T23:00:00+01:00")
	for name, c := range map[string]struct {
		m     *protocol.Maintenance
		clock Clock
		why   string
		after time.Duration // 0: never
	}{
		"no windows":                     {nil, Clock{Now: wednesday, Unsynced: true}, "", 0},
		"closed":                         {m, Clock{Now: wednesday}, "until Sat 28 Nov 22:00 CET", time.Minute},
		"open":                           {m, Clock{Now: saturday}, "", time.Minute},
		"open, by the CO's time":         {m, Clock{Now: wednesday, Unsynced: true, COMillis: saturday.UnixMilli()}, "", time.Minute},
		"closed by it":                   {m, Clock{Now: saturday, COMillis: wednesday.UnixMilli()}, "until Sat 28 Nov 22:00 CET", time.Minute},
		"ten seconds before":             {m, Clock{Now: saturday.Add(-time.Hour - 10*time.Second)}, "until Sat 28 Nov 22:00 CET", 10 * time.Second},
		"open, by a clock in step":       {m, Clock{Now: saturday, COMillis: wednesday.UnixMilli(), COAge: 25 * time.Hour}, "", time.Minute},
		"closed, by the CO long ago":     {m, Clock{Now: saturday, Unsynced: true, COMillis: wednesday.UnixMilli(), COAge: 25 * time.Hour}, "until Sat", time.Minute},
		"nobody knows the time":          {m, Clock{Now: saturday, Unsynced: true}, "is not synchronised", time.Minute},
		"a time zone of a later release": {&protocol.Maintenance{TimeZone: "Mars/Olympus", Windows: m.Windows}, Clock{Now: saturday}, "cannot be read", 0},
		"windows that cannot be":         {&protocol.Maintenance{TimeZone: "UTC"}, Clock{Now: saturday}, "cannot be read", 0},
	} {
		why, opens, next := Closed(c.m, c.clock)
		if until := strings.HasPrefix(c.why, "until"); until != !opens.IsZero() || until && opens.UnixMilli() != at("2026-11-28T22:00:00+01:00").UnixMilli() {
			t.Errorf("%s: it opens at %v", name, opens)
		}
		if c.why == "" && why != "" || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
		if c.after == 0 && !next.IsZero() || c.after > 0 && !next.Equal(c.clock.Now.Add(c.after)) {
			t.Errorf("%s: asked again at %v, want after %v", name, next, c.after)
		}
	}
}
