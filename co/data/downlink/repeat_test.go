package downlink

import (
	"slices"
	"testing"
	"time"
)

// TestRepetitionsAreSpaced checks the wait for an Ack that never comes: it doubles with
// each repetition, to ten times as much, and is the first one again after an Ack.
func TestRepetitionsAreSpaced(t *testing.T) {
	t.Parallel()
	d := &Downlink{opts: Options{AckTimeout: 30 * time.Second}, ctx: t.Context()}
	s := d.newSession("plant", "one")
	defer s.cancel()
	l := &ruleStream{}
	s.streams = []*ruleStream{l}
	now := time.Unix(1e9, 0)
	var got []time.Duration
	for range 7 {
		l.asked = now
		got = append(got, s.wait)
		s.repeat(now.Add(s.wait - time.Nanosecond))
		if l.asked.IsZero() {
			t.Fatalf("the question was repeated before its wait of %s was over", s.wait)
		}
		now = now.Add(s.wait)
		if s.repeat(now); !l.asked.IsZero() {
			t.Fatalf("the question was not repeated after %s", got[len(got)-1])
		}
	}
	want := []time.Duration{30e9, 60e9, 120e9, 240e9, 300e9, 300e9, 300e9}
	if !slices.Equal(got, want) {
		t.Errorf("waits %v, want %v", got, want)
	}
	if s.answered(); s.wait != 30*time.Second {
		t.Errorf("after an Ack the wait is %s, want 30s", s.wait)
	}
}
