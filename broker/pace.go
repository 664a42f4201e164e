package broker

import (
	"sync"
	"time"
)

const (
	// patience is how long one message waits for subscribers that all lag behind.
	patience = 2 * time.Second
	// listPatience is how long a list of messages waits for subscribers, in all.
	listPatience = 500 * time.Millisecond
	// forever is no limit but that of each message.
	forever = time.Duration(1<<63 - 1)

	// A publisher waits for others than the fastest of its subscribers for one part in
	// waitShare of its time, after a start of waitAtFirst.
	waitShare   = 10
	waitAtFirst = 250 * time.Millisecond
)

// A pace bounds how long one publisher waits for subscribers that lag behind the fastest
// one of a message. So a subscriber that keeps up gets at least nine tenths of the rate
// that it would have alone, however sick the others are. The zero pace is ready for use,
// also concurrently.
type pace struct {
	mu     sync.Mutex
	credit time.Duration // that the publisher may wait
	at     time.Time     // when credit was counted; zero: never
}

// left is how long the publisher may wait now.
func (p *pace) left(now time.Time) time.Duration {
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

func (p *pace) spend(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.credit -= d // below zero it is paid back
}

// A waiting is how long a message, or a list of them, may wait for subscribers.
type waiting struct {
	pace      *pace
	expiresIn time.Duration
}

func (p *pace) waiting(most time.Duration) *waiting { return &waiting{p, most} }
