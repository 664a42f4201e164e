package enrol

import (
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// missing is the pace of a machine that has no certificate, or whose site has no authority: those of a machine that may
// be one of thousands.
var missing = retry.Policy{Min: time.Second, Max: 30 * time.Second, Jitter: 0.5}

// renewal is the policy of a machine with a certificate, whether the next one is due or the machine is refused. If the clock
// of the upper tier jumps, certificates of before end at once, and certificates of that time end once the clock is right
// again.
var renewal = retry.Policy{Min: 2 * time.Second, Max: 10 * time.Minute, Jitter: 0.5}

// afterSuccess has the least times from a new certificate to the next one that is due: one that is due at once,
// by a clock that is ahead of the server's, is asked for less and less often.
var afterSuccess = retry.Policy{Min: time.Minute, Max: 6 * time.Hour}

// letIn is after how long without a refusal a machine counts as let in: some times the wait between two attempts to
// connect. The refusal after it is the first one again. So a machine that is let in for seconds only asks as
// slowly in the end as one that is refused all the time, and no machine asks more than once in this time for long.
const letIn = 2 * time.Minute

// A pace says when a machine may ask for its next certificate. Times are those of the monotonic clock. Keeper.Run has it.
type pace struct {
	tries   retry.Backoff // since the machine was let in
	last    time.Time     // when it asked; zero: it has not
	wait    time.Duration // from last on, for a request with any reason
	due     time.Duration // from last on, where the next one is due and the machine is not refused
	atOnce  int           // new certificates in a row that were due at once
	refused time.Time     // when the machine was not let in the last time; zero: never
}

// left is how long to wait yet.
func (p *pace) left() time.Duration { return max(p.wait-time.Since(p.last), 0) }

// leftOfDue is left for a certificate that is due.
func (p *pace) leftOfDue() time.Duration { return max(p.left(), p.due-time.Since(p.last)) }

// isLetIn reports whether the machine counts as let in.
func (p *pace) isLetIn() bool { return time.Since(p.refused) > letIn }

// refuse notes that the machine was not let in: the first time it may ask at once.
func (p *pace) refuse() {
	if p.isLetIn() {
		p.tries.Reset()
		p.wait = 0
	}
	p.refused = time.Now()
}

// failed notes that the machine has got none.
func (p *pace) failed(as retry.Policy) {
	p.tries.Policy = as
	p.wait, p.due, p.last = p.tries.Next(), 0, time.Now()
}

// succeeded notes that it has got one, and whether that is due at once.
func (p *pace) succeeded(atOnce bool) {
	if p.isLetIn() {
		p.tries.Reset()
	}
	p.failed(renewal) // a certificate with which the machine is not let in is no better than none
	if atOnce {
		p.atOnce++
	} else {
		p.atOnce = 0
	}
	p.due = afterSuccess.Delay(max(p.atOnce-1, 0), nil)
}
