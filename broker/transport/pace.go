package transport

import (
	"sync"
	"time"
)

const (
	// A publisher waits for others than the fastest of its subscribers for one part in
	// waitShare of its time, after a start of waitAtFirst.
	waitShare   = 10
	waitAtFirst = 250 * time.Millisecond
)

// A Pace bounds how long one publisher waits for subscribers that lag behind the fastest
// one of a message. So a subscriber that keeps up gets at least nine tenths of the rate
// that it would have alone, however sick the others are. The zero Pace is ready for use,
// also concurrently.
type Pace struct {
	mu     sync.Mutex
	credit time.Duration // that the publisher may wait
	at     time.Time     // when credit was counted; zero: never
}

// Left is how long the publisher may wait now.
func (p *Pace) Left(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		p.credit = waitAtFirst
	} else {
		p.credit = min(waitAtFirst, p.credit+now.Sub(p.at)/waitShare)
	}
	p.at = now
	return p.credit
}

// Spend notes how long it waited.
func (p *Pace) Spend(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.credit -= d // below zero it is paid back
}

// A Waiting is how long a message, or a list of them, may wait for subscribers.
type Waiting struct {
	Pace *Pace
	Left time.Duration // in all
}

// Waiting allows a message, or a list of them, to wait for so long in all.
func (p *Pace) Waiting(most time.Duration) *Waiting { return &Waiting{p, most} }
