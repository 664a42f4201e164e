package transport

import (
	"sync"
)

// A write is one that does not wait.
type write struct {
	p    []byte
	n    int
	once func(fd uintptr) // writes p
}

// writes are for connections that are written to at once. A function that is made for each would be allocated.
var writes = sync.Pool{New: func() any {
	w := &write{}
	w.once = func(fd uintptr) { w.n, _ = writeNow(fd, w.p) } // what is not written flush writes, and sees why
	return w
}}

// Answer is Write for the goroutine that reads c. If no further packet has arrived that needs an answer, and the
// transport knows how much it can take, p is written at once: then an answer to an idle client needs no other
// goroutine.
func (c *Conn) Answer(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := 0
	if c.in.raw != nil && c.Buffered() == 0 && !c.closed && !c.broken && !c.flushing && !c.due && !c.out.Ready() {
		sent = c.tryWrite(p)
	}
	if sent == len(p) {
		return sent, nil
	}
	rest, err := c.write(p[sent:])
	return sent + rest, err
}

// tryWrite writes what of p the network takes at once. Either c.mu is held and flush does not run, or flush calls it.
func (c *Conn) tryWrite(p []byte) int {
	w := writes.Get().(*write)
	defer writes.Put(w)
	w.p, w.n = p, 0
	if err := c.in.raw.Control(w.once); err != nil {
		w.n = 0 // flush sees why
	}
	w.p = nil
	return max(w.n, 0)
}

// gatherFrom is from how many bytes on more than a few answers wait: a message.
const gatherFrom = 64

// gathers reports whether a message waits, which others may join: a write costs more than to let them go first.
func (c *Conn) gathers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Size() >= gatherFrom
}
