// Package allowance bounds how many of many alike events are written down, and counts the others.
package allowance

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// An Allowance lets a number of events through at once, and then one in a while. Its methods may be called concurrently.
type Allowance struct {
	limiter *rate.Limiter

	mu      sync.Mutex // protects what follows
	leftOut int        // since the last event that was let through
}

// New returns an allowance of burst events at once, and then of one in every.
func New(every time.Duration, burst int) *Allowance {
	return &Allowance{limiter: rate.NewLimiter(rate.Every(every), burst)}
}

// Allow reports whether an event is to be written down, and if so how many were not since the last one that was.
func (a *Allowance) Allow() (ok bool, leftOut int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.limiter.Allow() {
		a.leftOut++
		return false, 0
	}
	leftOut, a.leftOut = a.leftOut, 0
	return true, leftOut
}
