package transport

import (
	"testing"
	"time"
)

// TestPace has a publisher wait as long as it may, and each time a little longer, as where the machine is busy: over time
// that is a twentieth of it, after what it may wait at first.
func TestPace(t *testing.T) {
	t.Parallel()
	var p Pace
	now := time.Unix(0, 0)
	begun, waited := now, time.Duration(0)
	first := p.Left(now)
	if first != waitAtFirst {
		t.Errorf("at first it may wait %s, want %s", first, waitAtFirst)
	}
	for range 1000 {
		if most := p.Left(now); most > 0 {
			took := most + 30*time.Millisecond
			p.Spend(took)
			waited += took
			now = now.Add(took)
		}
		now = now.Add(10 * time.Millisecond) // what it does beside
	}
	// Each wait is longer than it may be by 30 ms at most, and that is paid back.
	if most := waitAtFirst + now.Sub(begun)/waitShare + 30*time.Millisecond; waited > most {
		t.Errorf("it waited %s of %s, want %s at most", waited, now.Sub(begun), most)
	}
	if least := now.Sub(begun) / (2 * waitShare); waited < least {
		t.Errorf("it waited %s of %s, want %s at least: it may", waited, now.Sub(begun), least)
	}
	// A client that waited for nothing for long may wait as long as at first, and no longer.
	if got := p.Left(now.Add(time.Hour)); got != waitAtFirst {
		t.Errorf("after an hour it may wait %s, want %s", got, waitAtFirst)
	}
}
