package transport

import (
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

// answers are those that a peer still waits for when it is no longer read. Conn.mu protects them.
type answers struct {
	left     bool          // the peer sends nothing more; it may still read
	begun    int           // by BeginAnswer, and not ended
	expected time.Time     // when the next bytes of the peer are to be there, see Expect; zero: it may take its time
	waiter   notify.Signal // is notified when begun is 0, and of each write; the zero value: no goroutine waits
}

// BeginAnswer says that an answer to the peer comes later, from another goroutine: it calls Write, and then EndAnswer.
func (c *Conn) BeginAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
}

// EndAnswer says that an answer was written, or that there is none. It is called once for each BeginAnswer.
func (c *Conn) EndAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun--; c.begun == 0 {
		c.waiter.Notify()
	}
}

// AwaitAnswers waits until all answers are written to a peer that sends nothing more, and until they are queued for
// one whose connection is drained. For others it returns at once, and it ends with Close and with the transport.
// False says that the time was over in which the peer should have sent something, as set with Expect, or where none
// is set the time most. The goroutine that has read c to its end calls it.
func (c *Conn) AwaitAnswers(most time.Duration) bool {
	c.mu.Lock()
	written := notify.New()
	c.waiter = written
	left := time.Until(c.expected)
	if c.expected.IsZero() {
		left = most
	}
	c.mu.Unlock()
	late := time.NewTimer(left)
	defer late.Stop()
	for !c.answered() {
		select {
		case <-written.C():
		case <-late.C:
			return c.answered()
		}
	}
	return true
}

// answered reports whether the peer waits for no answer, or gets none.
func (c *Conn) answered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.broken:
		return true
	case c.left:
		return c.begun == 0 && c.writing+c.out.Size() == 0
	}
	return !c.draining || c.begun == 0
}
