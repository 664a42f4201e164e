package identity_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
)

// TestTally reports a refusal, counts those of the next hour, and reports how many there were; and of very many kinds
// only some, until an hour is over.
func TestTally(t *testing.T) {
	t.Parallel()
	var tally identity.Tally
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		kind  string
		after time.Duration
		want  string // "": it is only counted
	}{
		{"g1", 0, "why"},
		{"g1", time.Second, ""},
		{"g2", time.Second, "why"},
		{"g1", time.Hour - 1, ""},
		{"g1", time.Hour, "why (and 2 more since 2026-01-02T03:00:00Z)"},
		{"g1", time.Hour + 1, ""},
		{"g1", 3 * time.Hour, "why (and 1 more since 2026-01-02T04:00:00Z)"},
		{"g1", 5 * time.Hour, "why"},
	} {
		if got, ok := tally.Add(c.kind, "why", begin.Add(c.after)); got != c.want || ok != (c.want != "") {
			t.Errorf("%s after %s: %q, %v, want %q", c.kind, c.after, got, ok, c.want)
		}
	}
	reported := func(at time.Time) (n int) {
		for i := range 1000 {
			if _, ok := tally.Add(fmt.Sprintf("many%d", i), "why", at); ok {
				n++
			}
		}
		return n
	}
	if n := reported(begin.Add(6 * time.Hour)); n == 0 || n > 256 {
		t.Errorf("%d of 1000 kinds are reported at once, want up to 256", n)
	}
	if n := reported(begin.Add(8 * time.Hour)); n != 256 {
		t.Errorf("%d kinds are reported two hours later, want 256", n)
	}
}
