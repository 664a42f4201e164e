package quota

import (
	"testing"
	"time"
)

// An owner that takes more than its share waits until it is its share, but never longer than the bound; others do not
// wait for it.
func TestRates(t *testing.T) {
	t.Parallel()
	r, now := NewRates(1000, 100*time.Millisecond, 2*time.Second), time.Unix(1_000_000, 0)
	owes := func(owner string, want time.Duration, when string) {
		t.Helper()
		if got := r.owed(owner, now); got != want {
			t.Errorf("%s it waits %s, want %s", when, got, want)
		}
	}
	for _, want := range []time.Duration{0, 50 * time.Millisecond, 125 * time.Millisecond} {
		r.Take("guilty", 75, now)
		owes("guilty", want, "after a further 75")
	}
	r.Take("other", 100, now)
	owes("other", 0, "another owner:")
	owes("third", 0, "one that has taken nothing:")
	now = now.Add(125 * time.Millisecond)
	owes("guilty", 0, "when it has waited")
	r.Take("guilty", 1, now)
	owes("guilty", time.Millisecond, "with one more")
	for range 3 {
		r.Take("guilty", 1_000_000_000_000_000, now)
		owes("guilty", 2*time.Second, "after very much")
	}
	now = now.Add(time.Hour)
	r.Take("guilty", 150, now)
	owes("guilty", 50*time.Millisecond, "after an hour, as what it has not taken is its own for the slack alone,")
	if len(r.paid) != 1 {
		t.Errorf("%d owners are remembered, want one: of the other nothing is to be known", len(r.paid))
	}
}

// Those of an owner that wait are let go one after another, each once all is paid that those before it have taken; one that takes little
// goes first; one that leaves is passed over.
func TestTurns(t *testing.T) {
	t.Parallel()
	r, now := NewRates(1000, 0, 2*time.Second), time.Unix(1_000_000, 0)
	if r.Watched("guilty", now) {
		t.Error("an owner is watched that has taken nothing")
	}
	r.Take("guilty", 1000, now)
	if !r.Watched("guilty", now) || r.Watched("other", now) {
		t.Error("the owner is not watched that has taken something, or another one is")
	}
	a, b, leaves, little := r.Turn("guilty", false), r.Turn("guilty", false), r.Turn("guilty", false), r.Turn("guilty", true)
	come := func(turn *Turn, want bool, delay time.Duration, what string) {
		t.Helper()
		if got, after := turn.Come(now); got != want || delay > 0 && after != delay {
			t.Errorf("%s: %v, again after %s; want %v, %s", what, got, after, want, delay)
		}
	}
	come(little, false, time.Second, "in debt")
	now = now.Add(time.Second)
	come(a, false, 0, "behind one that takes little")
	come(little, true, 0, "one that takes little")
	come(a, false, 0, "while it takes that")
	r.Take("guilty", 10, now)
	<-a.Wake()
	come(a, false, 10*time.Millisecond, "until that is paid")
	now = now.Add(10 * time.Millisecond)
	come(b, false, 0, "the second one")
	come(a, true, 0, "the first one")
	come(b, false, 0, "the second one, before the first has taken anything")
	r.Take("guilty", 5000, now)
	a.End() // which Take has done
	<-b.Wake()
	come(b, false, 2*time.Second, "the second one, behind one that has taken much")
	b.End()
	<-leaves.Wake()
	now = now.Add(2 * time.Second)
	come(leaves, true, 0, "the third one, as the second has left")
	leaves.End()
	if len(r.lines) > 0 {
		t.Error("a line is kept without anybody in it")
	}
}
