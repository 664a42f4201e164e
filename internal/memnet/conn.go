package memnet

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Window is how many bytes a connection holds for a reader that does not read.
const Window = 64 << 10

// A segment is a part of what was written, or the end of it.
type segment struct {
	data []byte
	at   time.Time // when it arrives
	fin  bool
}

// A pipe is one direction of a connection. All of it is protected by path.n.mu.
type pipe struct {
	path      *Path
	direction int // the index of Path.free
	rng       *rand.Rand
	cond      *sync.Cond  // of path.n.mu; any change
	timer     *time.Timer // broadcasts when the first segment arrives

	segments []segment
	held     int  // bytes in segments
	ended    bool // the writer has closed: the last segment is a fin
	unread   bool // the reader has closed: what arrives is not read
	broken   bool // by Reset
}

func newPipe(p *Path, up bool, rng *rand.Rand) *pipe {
	q := &pipe{path: p, rng: rng, cond: sync.NewCond(&p.n.mu)}
	if !up {
		q.direction = 1
	}
	return q
}

// wake broadcasts with the lock, so that no goroutine that looked at the clock just before begins
// to wait after it.
func (q *pipe) wake() {
	q.path.n.mu.Lock()
	defer q.path.n.mu.Unlock()
	q.cond.Broadcast()
}

// push sends a segment on its way. The caller holds n.mu.
func (q *pipe) push(data []byte, fin bool) {
	at := q.path.send(q.direction, len(data), q.rng)
	if n := len(q.segments); n > 0 && at.Before(q.segments[n-1].at) {
		at = q.segments[n-1].at
	}
	q.segments = append(q.segments, segment{data, at, fin})
	q.held += len(data)
	q.cond.Broadcast()
}

// postpone lets what had not arrived by a time arrive no earlier than another. The
// caller holds n.mu.
func (q *pipe) postpone(after, earliest time.Time) {
	for i := range q.segments {
		if s := &q.segments[i]; s.at.After(after) && s.at.Before(earliest) {
			s.at = earliest
		}
	}
	q.cond.Broadcast()
}

// first returns the first segment if it has arrived; otherwise cond is broadcast when it does. The
// caller holds n.mu.
func (q *pipe) first() *segment {
	if len(q.segments) == 0 {
		return nil
	}
	s := &q.segments[0]
	if q.path.cut && s.at.After(q.path.cutAt) {
		return nil
	}
	wait := time.Until(s.at)
	if wait <= 0 {
		return s
	}
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.wake)
	} else {
		q.timer.Reset(wait)
	}
	return nil
}

// reset breaks the pipe for both ends. The caller holds n.mu.
func (q *pipe) reset() {
	q.broken, q.segments, q.held = true, nil, 0
	if q.timer != nil {
		q.timer.Stop()
	}
	q.cond.Broadcast()
}

// A deadline is that of the reads or the writes of one end.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

// set changes the deadline and wakes the waiting goroutines. The caller holds n.mu.
func (d *deadline) set(at time.Time, q *pipe) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = at
	if wait := time.Until(at); !at.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, q.wake)
	}
	q.cond.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// A conn is one end of a connection.
type conn struct {
	path          *Path
	local, remote Addr
	in, out       *pipe

	// What follows is protected by path.n.mu.
	closed      bool
	read, write deadline
}

// Read returns what has arrived.
func (c *conn) Read(p []byte) (int, error) {
	mu, q := &c.path.n.mu, c.in
	mu.Lock()
	defer mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.fault("read", net.ErrClosed)
		case q.broken:
			return 0, c.fault("read", syscall.ECONNRESET)
		case c.read.passed():
			return 0, c.fault("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		}
		s := q.first()
		switch {
		case s == nil:
			q.cond.Wait()
			continue
		case s.fin:
			return 0, io.EOF
		}
		n := 0
		for s != nil && !s.fin && n < len(p) {
			m := copy(p[n:], s.data)
			n += m
			if s.data = s.data[m:]; len(s.data) == 0 {
				q.segments = q.segments[1:]
				s = q.first()
			}
		}
		q.held -= n
		q.cond.Broadcast()
		return n, nil
	}
}

// Write returns when all of p is on its way.
func (c *conn) Write(p []byte) (n int, err error) {
	mu, q := &c.path.n.mu, c.out
	mu.Lock()
	defer mu.Unlock()
	for {
		switch {
		case c.closed:
			return n, c.fault("write", net.ErrClosed)
		case q.broken:
			return n, c.fault("write", syscall.ECONNRESET)
		case q.ended, q.unread && !q.path.cut: // over a cut path it is unknown that the other end has closed
			return n, c.fault("write", syscall.EPIPE)
		case c.write.passed():
			return n, c.fault("write", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return n, nil
		case q.held >= Window:
			q.cond.Wait()
			continue
		}
		size := min(len(p), mss, Window-q.held)
		q.push(append([]byte(nil), p[:size]...), false)
		p = p[size:]
		n += size
	}
}

// CloseWrite ends what this end writes; the other end reads io.EOF after it.
func (c *conn) CloseWrite() error {
	c.path.n.mu.Lock()
	defer c.path.n.mu.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	c.end()
	return nil
}

// end sends the fin, once. The caller holds n.mu.
func (c *conn) end() {
	if !c.out.ended && !c.out.broken {
		c.out.ended = true
		c.out.push(nil, true)
	}
}

// Close ends both directions. What was written arrives all the same.
func (c *conn) Close() error {
	c.path.n.mu.Lock()
	defer c.path.n.mu.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	c.closed = true
	c.end()
	c.read.set(time.Time{}, c.in)
	c.write.set(time.Time{}, c.out)
	c.in.unread, c.in.segments, c.in.held = true, nil, 0
	c.in.cond.Broadcast()
	if c.out.unread { // the other end has closed as well
		c.path.forget(c.in, c.out)
	}
	return nil
}

func (c *conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}

// LocalAddr returns this end's address.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the other end's address.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadlines of reads and of writes.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.read, &c.write) }

// SetReadDeadline sets the deadline of reads, those that wait now included.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.read) }

// SetWriteDeadline sets the deadline of writes, those that wait now included.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.write) }

func (c *conn) setDeadlines(t time.Time, which ...*deadline) error {
	c.path.n.mu.Lock()
	defer c.path.n.mu.Unlock()
	if c.closed {
		return c.fault("set", net.ErrClosed)
	}
	for _, d := range which {
		q := c.in
		if d == &c.write {
			q = c.out
		}
		d.set(t, q)
	}
	return nil
}
