package fleet

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// day is what the tests simulate: 3 sites with 10 nodes each, for a day.
func day(seed uint64) Options {
	return Options{Seed: seed, Sites: 3, Nodes: 10, Day: 24 * time.Hour, Settle: 2 * time.Hour}
}

// TestOneSeedOneTrace runs a day twice with one seed, and once with another.
func TestOneSeedOneTrace(t *testing.T) {
	t.Parallel()
	one, same := Run(day(1)), Run(day(1))
	if !bytes.Equal(one.Trace, same.Trace) {
		t.Errorf("one seed, two traces; they part at:\n%s", parting(one.Trace, same.Trace))
	}
	if other := Run(day(2)); bytes.Equal(one.Trace, other.Trace) {
		t.Error("two seeds, one trace")
	}
	t.Logf("%d lines, settled after %s", bytes.Count(one.Trace, []byte("\n")), one.Settled)
}

// parting returns the first line in which two traces differ.
func parting(a, b []byte) string {
	was, is := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	for i := range min(len(was), len(is)) {
		if !bytes.Equal(was[i], is[i]) {
			return fmt.Sprintf("line %d\n- %s\n+ %s", i+1, was[i], is[i])
		}
	}
	return fmt.Sprintf("one ends after %d lines, the other after %d", len(was), len(is))
}

// TestConverges checks that the fleet does what is desired once the faults end,
// whatever befell it.
func TestConverges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := Run(day(seed))
			for _, p := range r.Problems {
				t.Error(p)
			}
			if faults := bytes.Count(r.Trace, []byte("FAULT")); faults > 0 {
				t.Errorf("%d decisions could not be carried out", faults)
			}
		})
	}
}
