// Package cotime holds what a machine knows of the time of the CO: it asks the CO, and counts the time since the answer. The
// machine's own wall clock is not used. docs/adr/0011-commands.md says why.
//
// All times that the machine measures are those of one clock that begins at its boot and runs while it sleeps (CLOCK_BOOTTIME), see
// hostclock.SinceBoot. The package is pure.
package cotime

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// drift is by how much of what has passed the clocks of two machines may differ: a thousandth, ten times what crystals do.
	drift = 1000
	// maxQuestions is how many questions wait for their answers: the last ones.
	maxQuestions = 8
)

// A Clock knows the latest that the time of the CO can be, once it was answered. The zero value knows nothing. It is for one
// goroutine at a time.
type Clock struct {
	questions []question // the last one at the end
	known     bool
	millis    int64         // of the answer
	asked     time.Duration // when the question was asked that it answers
	least     int64         // what the time is at least, in milliseconds since 1970
}

// question is one that was asked.
type question struct {
	nonce uint64
	at    time.Duration
}

// Ask returns the question to send now. The nonce must differ from those of all questions before.
func (c *Clock) Ask(nonce uint64, now time.Duration) command.TimeAsk {
	c.questions = append(c.questions, question{nonce, now})
	if len(c.questions) > maxQuestions {
		c.questions = append(c.questions[:0], c.questions[1:]...)
	}
	return command.TimeAsk{V: protocol.Version, Nonce: nonce}
}

// Learn takes an answer, and reports whether it says the time: it must answer a question that waits, and come from a sender that
// knows the time. Of two answers that of the later question counts.
func (c *Clock) Learn(m command.Time) bool {
	for i, q := range c.questions {
		if q.nonce != m.Nonce {
			continue
		}
		c.questions = append(c.questions[:0], c.questions[i+1:]...) // those before it would say less
		if m.UnixMillis <= 0 {
			return false
		}
		c.known, c.millis, c.asked = true, m.UnixMillis, q.at
		return true
	}
	return false
}

// AtLeast says that the CO has signed something with that time, in milliseconds since 1970: it is no earlier there.
func (c *Clock) AtLeast(millis int64) { c.least = max(c.least, millis) }

// Least returns what AtLeast was given at most.
func (c *Clock) Least() int64 { return c.least }

// Latest returns the latest that the time of the CO can be, in milliseconds since 1970; known is false where no question was
// answered. An answer that is older than what the CO has signed since is not believed.
func (c *Clock) Latest(now time.Duration) (millis int64, known bool) {
	if !c.known {
		return 0, false
	}
	passed := max(now-c.asked, 0)
	passed += passed / drift
	return max(c.millis+int64((passed+time.Millisecond-1)/time.Millisecond), c.least), true
}

// Now returns the best estimate of the time of the CO, in milliseconds since 1970: the last answer, and what has passed since the question,
// without a margin. known is false where no question was answered.
func (c *Clock) Now(now time.Duration) (millis int64, known bool) {
	return c.millis + max(now-c.asked, 0).Milliseconds(), c.known
}

// An Answer is what a Clock knows, for the disk: the clock of the machine begins anew with each boot.
type Answer struct {
	Boot   string        `json:"boot"`   // of the machine
	Asked  time.Duration `json:"asked"`  // since the boot, in nanoseconds
	Millis int64         `json:"millis"` // of the CO, since 1970
}

// Answer returns the last answer in a boot of the machine; known is false where no question was answered.
func (c *Clock) Answer(boot string) (a Answer, known bool) {
	return Answer{boot, c.asked, c.millis}, c.known
}

// Restore takes up an answer of the present boot of the machine; one of another boot says nothing.
func (c *Clock) Restore(a Answer, boot string) {
	if a.Boot == boot && a.Millis > 0 && !c.known {
		c.known, c.millis, c.asked = true, a.Millis, a.Asked
	}
}

// Age returns how long ago the question was asked whose answer is known.
func (c *Clock) Age(now time.Duration) (age time.Duration, known bool) {
	return max(now-c.asked, 0), c.known
}
