// Package retry spaces the attempts at what fails for a passing reason: how long
// to wait after the n-th failure, and a sleep that a context ends.
//
// It is a package of its own and not a library such as cenkalti/backoff. The loops
// of Colony own their attempts: they select on several channels while they wait,
// log each failure in their own words, and forget failures when they choose. They
// would use one function of such a library, and none offers a delay that depends
// only on the number of failures and on a given source of randomness, which the
// LO's pure logic and its replay need.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// least is the shortest random delay: even with full jitter no caller tries again in a busy loop.
const least = time.Millisecond

// A Policy says how the delay between two attempts grows. It is a value, and may be
// used concurrently.
type Policy struct {
	// Min is the upper bound of the delay after the first failure. It doubles with
	// each further one.
	Min time.Duration
	// Max caps that bound, also where Min is greater.
	Max time.Duration
	// Jitter is the part of the delay that is drawn at random, from 0 (none: each delay is its
	// bound) to 1 (any time up to the bound), so that clients that failed together do not try again
	// together.
	Jitter float64
}

// Delay returns how long to wait after a failure that earlier failures in a row
// came before; 0 stands for the first. The same arguments and the same state of r
// give the same delay. With a nil r it draws from the process's own source, which
// may be shared; any other r belongs to the caller.
func (p Policy) Delay(earlier int, r *rand.Rand) time.Duration {
	bound := min(p.Min, p.Max)
	for ; earlier > 0 && bound > 0 && bound < p.Max; earlier-- {
		if bound > p.Max/2 {
			bound = p.Max
		} else {
			bound *= 2
		}
	}
	span := time.Duration(p.Jitter * float64(bound))
	if span <= 0 {
		return max(bound, 0)
	}
	draw := rand.Int64N
	if r != nil {
		draw = r.Int64N
	}
	return max(bound-span+time.Duration(draw(int64(span)+1)), min(bound, least))
}

// A Backoff counts failures in a row and waits after each of them as its Policy
// says. One goroutine uses it. The zero value of the fields that a caller does not
// set is right: no failure yet, the process's source of randomness.
type Backoff struct {
	Policy
	// Rand is where jitter comes from; nil means the process's own source.
	Rand *rand.Rand

	failures int
}

// Next counts a failure and returns how long to wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	d := b.Delay(b.failures, b.Rand)
	b.failures++
	return d
}

// Failures returns how many failures were counted since the last Reset.
func (b *Backoff) Failures() int { return b.failures }

// Reset forgets the failures, as after a success.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait counts a failure and sleeps. It returns the cause of ctx where that ends
// first, and nil otherwise.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// WaitOr is like Wait, and also returns nil as soon as early delivers a value or is
// closed. A nil early never does.
func (b *Backoff) WaitOr(ctx context.Context, early <-chan struct{}) error {
	_, err := SleepOr(ctx, b.Next(), early)
	return err
}

// Sleep waits for d. It returns the cause of ctx where ctx has ended or ends first,
// and nil otherwise; a d of 0 or less does not wait.
func Sleep(ctx context.Context, d time.Duration) error {
	_, err := SleepOr(ctx, d, nil)
	return err
}

// SleepOr is like Sleep, and also ends as soon as early delivers a value or is closed:
// woken says that it did. A nil early never does.
func SleepOr(ctx context.Context, d time.Duration, early <-chan struct{}) (woken bool, err error) {
	if d <= 0 || ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false, nil
	case <-early:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
