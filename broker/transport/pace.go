package transport

import (
	"sync"
	"time"
)

const (
	// A publisher waits for others than the fastest of its subscribers for one part in
	// waitShare of its time, after a start of waitAtFirst.
	waitShare   = 20
	waitAtFirst = 50 * time.Millisecond
	// waitAtLeast is what a wait must last to be worth it: to begin and end one takes as long
	// as to serve a message.
	waitAtLeast = 5 * time.Millisecond
)

// A Pace bounds how long one publisher waits for subscribers that lag behind the fastest
// one of a message. So a subscriber that keeps up gets nearly the whole rate
// that it would have alone, however sick the others are. The zero Pace is ready for use,
// also concurrently.
type Pace struct {
	mu     sync.Mutex
	credit time.Duration // that the publisher may wait
	at     time.Time     // when credit was counted; zero: never
}

// Left is how long the publisher may wait now; 0 where that is too short to be worth it.
func (p *Pace) Left(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		p.credit = waitAtFirst
	} else {
		p.credit = min(waitAtFirst, p.credit+now.Sub(p.at)/waitShare)
	}
	p.at = now
	if p.credit < waitAtLeast {
		return 0
	}
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
func (p *Pace) Waiting(most time.Duration) *Waiting { return &Waiting{Pace: p, Left: most} }
