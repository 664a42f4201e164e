package cotime

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol/command"
	"pgregory.net/rapid"
)

func TestClock(t *testing.T) {
	t.Parallel()
	var c Clock
	if _, known := c.Latest(time.Hour); known {
		t.Error("a clock that nobody answered knows the time")
	}
	c.Ask(1, time.Minute)
	c.Ask(2, 2*time.Minute)
	if c.Learn(command.Time{Nonce: 3, UnixMillis: 5}) || c.Learn(command.Time{Nonce: 2}) {
		t.Error("an answer to no question, or of one who does not know, says the time")
	}
	if c.Learn(command.Time{Nonce: 1, UnixMillis: 5}) {
		t.Error("the answer to a question before one that was answered says the time")
	}
	c.Ask(4, 3*time.Minute)
	if !c.Learn(command.Time{Nonce: 4, UnixMillis: 1_000_000}) {
		t.Fatal("an answer says nothing")
	}
	if got, known := c.Latest(3*time.Minute + 10*time.Second); !known || got != 1_010_010 {
		t.Errorf("latest %d, %t; want the answer, what passed since the question, and a thousandth of that", got, known)
	}
	if got, known := c.Now(3*time.Minute + 40*24*time.Hour); !known || got != 1_000_000+40*24*time.Hour.Milliseconds() {
		t.Errorf("the best estimate is %d, %t; want the answer and what passed since", got, known)
	}
	var later Clock
	a, _ := c.Answer("boot-1")
	if later.Restore(a, "boot-2"); later.known {
		t.Error("an answer of another boot counts")
	}
	later.Restore(a, "boot-1")
	if got, known := later.Now(4 * time.Minute); !known || got != 1_060_000 {
		t.Errorf("a clock that was restored says %d, %t", got, known)
	}
	if age, known := c.Age(4 * time.Minute); age != time.Minute || !known {
		t.Errorf("age %s", age)
	}
	c.AtLeast(2_000_000)
	c.AtLeast(1)
	if got, _ := c.Latest(4 * time.Minute); got != 2_000_000 || c.Least() != 2_000_000 {
		t.Errorf("latest %d: before what the CO has signed", got)
	}
	for n := range uint64(100) { // only the last ones wait
		c.Ask(100+n, time.Hour)
	}
	if c.Learn(command.Time{Nonce: 100, UnixMillis: 7}) || !c.Learn(command.Time{Nonce: 199, UnixMillis: 7}) {
		t.Error("other questions wait than the last ones")
	}
}

// TestNeverEarly asks and answers in any order, over two links that delay and lose, with clocks that drift: the latest time that the
// machine believes in is never before that of the CO.
func TestNeverEarly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		const co = int64(1_700_000_000_000)
		speed := float64(rapid.IntRange(9995, 10005).Draw(r, "speed")) / 10000 // of the machine's clock
		var c Clock
		truth := time.Duration(0) // what has passed at the CO
		machine := func() time.Duration { return time.Duration(float64(truth) * speed) }
		var flying []command.Time
		for n := range rapid.IntRange(1, 30).Draw(r, "steps") {
			truth += time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(r, "passes"))
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				ask := c.Ask(uint64(n+1), machine())
				truth += time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(r, "way"))
				flying = append(flying, command.Time{Nonce: ask.Nonce, UnixMillis: co + truth.Milliseconds()})
			case 1:
				if len(flying) > 0 {
					c.Learn(flying[rapid.IntRange(0, len(flying)-1).Draw(r, "answer")])
				}
			default:
				if latest, known := c.Latest(machine()); known && latest < co+truth.Milliseconds() {
					r.Fatalf("latest %d, and the CO has %d", latest, co+truth.Milliseconds())
				}
			}
		}
	})
}
