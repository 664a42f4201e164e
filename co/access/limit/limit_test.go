package limit

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	table := NewTable(Rate{PerSecond: 2, Burst: 3})
	take := func(key string, want time.Duration) {
		t.Helper()
		if wait := table.Wait(key, now); wait != want {
			t.Errorf("%s would wait %s, want %s", key, wait, want)
		}
		if wait := table.Take(key, now); wait != want {
			t.Errorf("%s waits %s, want %s", key, wait, want)
		}
	}
	for range 3 {
		take("a", 0)
	}
	take("a", 500*time.Millisecond)
	take("a", 500*time.Millisecond) // a refused one takes nothing
	take("b", 0)
	now = now.Add(500 * time.Millisecond)
	take("a", 0)
	take("a", 500*time.Millisecond)
	now = now.Add(time.Hour)
	for range 3 {
		take("a", 0)
	}
	take("a", 500*time.Millisecond)
	none := NewTable(Rate{})
	for range 10 {
		if none.Take("a", now) != 0 || none.Wait("a", now) != 0 {
			t.Error("no limit limits")
		}
	}
}

// TestBounded has more keys than there are buckets: the others share one, and there is room once some are full again.
func TestBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	table := NewTable(Rate{PerSecond: 1, Burst: 1})
	for i := range most {
		if table.Take(fmt.Sprint(i), now) != 0 {
			t.Fatal("a new key waits")
		}
	}
	if table.Take("x", now) != 0 || table.Wait("y", now) != time.Second || table.Take("y", now) != time.Second || len(table.buckets) != most {
		t.Errorf("keys without a bucket do not share one: %d", len(table.buckets))
	}
	now = now.Add(time.Second)
	if table.Take("x", now) != 0 || table.Take("y", now) != 0 || len(table.buckets) != 2 {
		t.Errorf("%d buckets, want 2", len(table.buckets))
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := Default.Validate(); err != nil {
		t.Error(err)
	}
	if err := (Limits{}).Validate(); err != nil {
		t.Error(err)
	}
	bad := Limits{Address: Rate{-1, 0}, Principal: Rate{1, 0}, Failures: Rate{math.NaN(), 1}}
	for _, words := range []string{"address.perSecond -1", "principal.burst 0", "failures.perSecond NaN"} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}
