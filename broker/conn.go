package broker

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/colonyfleet/colony/protocol"
)

const (
	writeChunk = 16 << 10    // bytes that one write deadline covers
	linger     = time.Second // how long a closed connection may take to read our last words
)

var errSlow = errors.New("client reads too slowly: write buffer full")

// A conn stands between mochi and a client's transport. It gives what mochi does
// not have:
//
//   - a deadline and a size limit for the CONNECT packet, read before memory is
//     taken for it;
//   - writes that never block. They wait in a bounded buffer for a goroutine that
//     exists only while there is something to write, so a client that does not
//     read stops neither publishers nor other subscribers;
//   - the client's Receive Maximum, see window;
//   - a close that lets the last packet, which says why, reach the client.
type conn struct {
	net.Conn // the transport: TCP, TLS, WebSocket or Unix socket
	b        *Broker
	listener Listener

	gone chan struct{} // closed by Close

	client  atomic.Pointer[mqtt.Client] // nil before CONNECT
	session atomic.Pointer[session]     // nil before CONNECT is accepted

	rmu   sync.Mutex // held while reading the transport
	hello hello      // protected by rmu
	will  *Message   // what CONNECT said; used on the connection's own goroutine

	mu       sync.Mutex // protects what follows
	out      window
	writing  int  // bytes that flush has taken and not yet written
	flushing bool // flush runs
	closed   bool // no more reads and writes by mochi
	broken   bool // the transport is of no more use
}

// Read reads the transport. Until CONNECT is accepted it refuses what does not
// begin with a CONNECT packet of the allowed size.
func (c *conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.isClosed() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	if c.isClosed() {
		return 0, net.ErrClosed
	}
	early := c.session.Load() == nil
	if err != nil {
		if early && errors.Is(err, os.ErrDeadlineExceeded) {
			c.b.metrics.refused("connect", "timeout")
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			c.mu.Lock()
			c.broken = true
			c.mu.Unlock()
		}
		return n, err
	}
	if early {
		if err := c.hello.check(p[:n], c.b.o.Limits.ConnectBytes); err != nil {
			c.b.metrics.refused("connect", "malformed")
			return 0, err
		}
	}
	return n, nil
}

// Write queues p, which holds whole packets, and returns at once.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.broken {
		return 0, net.ErrClosed
	}
	waiting := c.writing + c.out.size
	total := c.b.buffered.Load() + int64(len(p))
	if waiting > 0 && (waiting+len(p) > c.b.o.Limits.WriteBuffer || total > c.b.o.Limits.TotalWriteBuffer) {
		c.b.metrics.dropped("slow_client")
		c.breakLocked()
		return 0, errSlow
	}
	before := c.out.size
	c.out.add(p)
	c.b.buffered.Add(int64(c.out.size - before))
	c.startFlush()
	return len(p), nil
}

// startFlush makes flush run if there is something to write. c.mu is held, and
// the connection's own goroutine runs, so that b.wg does not rest at zero.
func (c *conn) startFlush() {
	if !c.flushing && (len(c.out.ready) > 0 || c.closed) {
		c.flushing = true
		c.b.wg.Go(c.flush)
	}
}

// flush writes what is ready until nothing is, and ends the transport if the
// connection has been closed.
func (c *conn) flush() {
	for {
		c.mu.Lock()
		batch := c.out.take()
		if len(batch) == 0 || c.broken {
			c.b.buffered.Add(-int64(len(batch)))
			c.flushing = false
			closed := c.closed
			c.mu.Unlock()
			if closed {
				c.finish()
			}
			return
		}
		c.writing = len(batch)
		c.mu.Unlock()
		err := c.writeOut(batch)
		c.b.buffered.Add(-int64(len(batch)))
		c.mu.Lock()
		c.writing = 0
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && !c.closed {
				c.b.metrics.dropped("write_timeout")
			}
			c.breakLocked()
		}
		c.mu.Unlock()
	}
}

func (c *conn) writeOut(batch []byte) error {
	for len(batch) > 0 {
		c.mu.Lock()
		if !c.closed { // Close has set the last deadline
			_ = c.Conn.SetWriteDeadline(time.Now().Add(c.b.o.Limits.WriteTimeout)) // Write reports a dead transport
		}
		c.mu.Unlock()
		n, err := c.Conn.Write(batch[:min(len(batch), writeChunk)])
		if err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// breakLocked gives the transport up. mochi notices because its read ends.
func (c *conn) breakLocked() {
	c.broken = true
	c.b.buffered.Add(-int64(c.out.drop()))
	_ = c.Conn.Close() // nothing more is expected of it
}

// abort cuts the connection without last words.
func (c *conn) abort(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.broken {
		c.b.metrics.dropped(reason)
	}
	c.breakLocked()
}

// Close ends reads and writes by mochi at once. What is queued, within a second
// and without what waits for the client's acknowledgements, is still sent.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.gone)
	c.b.buffered.Add(-int64(c.out.dropHeld()))
	if c.broken {
		return nil
	}
	now := time.Now()
	_ = c.Conn.SetReadDeadline(now) // a transport that refuses deadlines is as good as closed
	_ = c.Conn.SetWriteDeadline(now.Add(linger))
	c.startFlush()
	return nil
}

// finish closes the transport after the client has had its time to read: a TCP
// connection closed with unread data is reset, and the client would never learn why.
func (c *conn) finish() {
	defer func() { _ = c.Conn.Close() }() // nothing more is expected of it
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if broken || !ok || half.CloseWrite() != nil {
		return
	}
	c.rmu.Lock() // the read of mochi has ended
	defer c.rmu.Unlock()
	if err := c.Conn.SetReadDeadline(time.Now().Add(linger)); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, 1<<20)) // ends with the peer's close, or in time
	}
}

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// SetDeadline sets the read deadline, by which mochi watches the keep-alive. The
// write deadline is the connection's own business, and so is the deadline for CONNECT.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.session.Load() == nil {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// setWindow applies what CONNECT says about the packets that the client takes.
func (c *conn) setWindow(receiveMaximum uint16, v5 bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.limit, c.out.v3 = int(receiveMaximum), !v5
}

// acknowledged notes that the client has finished with a message of QoS 1 or 2.
func (c *conn) acknowledged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.release()
	if !c.closed && !c.broken {
		c.startFlush()
	}
}

// hello checks the first bytes of a connection.
type hello struct {
	head []byte
	done bool
}

// check looks at the next bytes, before mochi does: mochi takes memory for a
// packet as large as its header announces.
func (h *hello) check(p []byte, limit int) error {
	if h.done {
		return nil
	}
	h.head = append(h.head, p[:min(len(p), 5-len(h.head))]...)
	if len(h.head) > 0 && h.head[0] != 0x10 {
		return protocol.Errorf(protocol.Invalid, "the first packet is not CONNECT")
	}
	size := 0
	for i, b := range h.head[min(1, len(h.head)):] {
		size |= int(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			h.done, h.head = true, nil
			break
		}
	}
	if size > limit || !h.done && len(h.head) == 5 {
		return protocol.Errorf(protocol.Invalid, "CONNECT of %d bytes or more: the limit is %d", size, limit)
	}
	return nil
}
