package broker

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/inflight"
	"github.com/colonyfleet/colony/protocol"
)

const (
	writeChunk = 16 << 10    // bytes that one write deadline covers
	linger     = time.Second // how long a closed connection may take to read our last words

	// How long a publisher waits for one subscriber that lags behind: until that one
	// makes no progress for the time of stall, and never longer than patience.
	stall    = time.Second
	patience = 2 * time.Second
	// listPatience is how long a list of messages waits for subscribers, in all.
	listPatience = 500 * time.Millisecond
)

var (
	errSlow           = errors.New("client reads too slowly: write buffer full")
	errUnacknowledged = errors.New("client does not acknowledge")
)

// A conn stands before a client's transport. It gives
//
//   - a deadline and a size limit for the CONNECT packet, before memory is taken
//     for it;
//   - writes that never block. They wait in a bounded buffer for a goroutine that
//     exists only while there is something to write, so a client that does not
//     read stops neither publishers nor other subscribers;
//   - the client's Receive Maximum, and its packet ids, see package inflight;
//   - a close that lets the last packet, which says why, reach the client.
type conn struct {
	net.Conn // the transport: TCP, TLS, WebSocket or Unix socket
	b        *Broker
	listener *Listener
	r        *bufio.Reader // reads c

	done chan struct{} // closed by Close

	session atomic.Pointer[session] // nil before CONNECT is accepted

	rmu   sync.Mutex // held while reading the transport
	hello hello      // protected by rmu

	mu       sync.Mutex // protects what follows
	out      inflight.Window
	ids      inflight.IDs
	writing  int           // bytes that flush has taken and not yet written
	flushing bool          // flush runs
	closed   bool          // no more reads and writes
	broken   bool          // the transport is of no more use
	roomy    chan struct{} // closed when there is room again; nil if nobody waits
	progress uint64        // grows when the client takes something
	stalled  bool          // somebody waited for progress in vain, and there is none yet
	reason   packets.Code  // why the broker ends the connection
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
	if err := c.writeLocked(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *conn) writeLocked(p []byte) error {
	if c.closed || c.broken {
		return net.ErrClosed
	}
	waiting := c.writing + c.out.Size()
	total := c.b.buffered.Load() + int64(len(p))
	if waiting > 0 && (waiting+len(p) > c.b.o.Limits.WriteBuffer || total > c.b.o.Limits.TotalWriteBuffer) {
		c.b.metrics.dropped("slow_client")
		c.breakLocked()
		return errSlow
	}
	before := c.out.Size()
	c.out.Add(p)
	c.b.buffered.Add(int64(c.out.Size() - before))
	c.startFlush()
	return nil
}

// publish queues a PUBLISH packet. If it is of QoS 1 or 2 its packet id is put in
// at idAt. It holds the caller while the client lags behind and makes progress, but
// not for long: at most what is left of w, and patience.
func (c *conn) publish(frame []byte, idAt int, qos byte, w *waiting) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.expiresIn > 0 && !c.stalled && !c.hasRoom() {
		begun := time.Now()
		c.awaitRoom(min(w.expiresIn, patience))
		w.expiresIn -= time.Since(begun)
	}
	if qos > 0 && !c.closed && !c.broken {
		if c.ids.Len() >= c.b.o.Limits.Unacknowledged {
			return errUnacknowledged
		}
		id := c.ids.Acquire(qos)
		c.b.metrics.inflight.Add(1)
		frame[idAt], frame[idAt+1] = byte(id>>8), byte(id)
	}
	return c.writeLocked(frame)
}

// A waiting is how long a publisher may still wait for subscribers that lag behind.
type waiting struct{ expiresIn time.Duration }

// awaitRoom waits until the client is no longer behind, or for so long. It gives up
// when the client has made no progress for a while, and from then on nobody waits
// for it until it does. c.mu is held, but not meanwhile.
func (c *conn) awaitRoom(most time.Duration) {
	look, late := time.NewTicker(stall), time.NewTimer(most)
	defer look.Stop()
	defer late.Stop()
	for seen := c.progress; !c.hasRoom() && !c.stalled; {
		roomy := c.untilRoomy()
		c.mu.Unlock()
		looked, over := false, false
		select {
		case <-roomy:
		case <-c.done:
		case <-look.C:
			looked = true
		case <-late.C:
			over = true
		}
		c.mu.Lock()
		if looked {
			c.stalled = c.progress == seen
			seen = c.progress
		}
		if over || looked && c.stalled {
			c.b.metrics.waits.Inc()
			return
		}
	}
}

// room waits until the client is no longer behind, as long as the connection lives.
func (c *conn) room() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.hasRoom() {
		roomy := c.untilRoomy()
		c.mu.Unlock()
		select {
		case <-roomy:
		case <-c.done:
		}
		c.mu.Lock()
	}
}

// untilRoomy returns a channel that is closed when there is room. c.mu is held.
func (c *conn) untilRoomy() <-chan struct{} {
	if c.roomy == nil {
		c.roomy = make(chan struct{})
	}
	return c.roomy
}

// hasRoom reports whether less than half of what may wait for the client does
// wait. c.mu is held.
func (c *conn) hasRoom() bool {
	l := &c.b.o.Limits
	return c.closed || c.broken || c.writing+c.out.Size() <= l.WriteBuffer/2 && c.ids.Len() <= l.Unacknowledged/2
}

// progressed notes that the client has taken something, and wakes those who wait for
// room, if there is. c.mu is held.
func (c *conn) progressed() {
	c.progress++
	c.stalled = false
	if c.roomy != nil && c.hasRoom() {
		close(c.roomy)
		c.roomy = nil
	}
}

// startFlush makes flush run if there is something to write. c.mu is held, and
// the connection's own goroutine runs, so that b.wg does not rest at zero.
func (c *conn) startFlush() {
	if !c.flushing && (c.out.Ready() || c.closed) {
		c.flushing = true
		c.b.wg.Go(c.flush)
	}
}

// flush writes what is ready until nothing is, and ends the transport if the
// connection has been closed.
func (c *conn) flush() {
	for {
		c.mu.Lock()
		batch := c.out.Acquire()
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
		c.progressed()
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

// breakLocked gives the transport up. Its reader notices.
func (c *conn) breakLocked() {
	c.broken = true
	c.b.buffered.Add(-int64(c.out.Drop()))
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

// Close ends reads and writes at once. What is queued, within a second
// and without what waits for the client's acknowledgements, is still sent.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.done)
	c.b.buffered.Add(-int64(c.out.DropHeld()))
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
	c.rmu.Lock() // the last read has ended
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

// SetDeadline sets the read deadline, by which the keep-alive is watched. The
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
	c.out.Limit(receiveMaximum, !v5)
}

// acknowledged notes the acknowledgement that ends a message of QoS 1 or 2.
func (c *conn) acknowledged(id uint16, by inflight.Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ids.End(id, by) {
		return
	}
	c.b.metrics.inflight.Add(-1)
	c.out.Release()
	if !c.closed && !c.broken {
		c.startFlush()
	}
	c.progressed()
}

// recorded notes a PUBREC; false if its id is unknown.
func (c *conn) recorded(id uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids.Recorded(id)
}

// abandon forgets the messages under way, and returns their number.
func (c *conn) abandon() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids.Clear()
}

// end notes why the broker ends the connection; false if it ends already.
func (c *conn) end(code packets.Code) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.reason != (packets.Code{}) {
		return false
	}
	c.reason = code
	return true
}

// ending is what end has noted.
func (c *conn) ending() packets.Code {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// hello checks the first bytes of a connection.
type hello struct {
	head []byte
	done bool
}

// check looks at the next bytes, before memory is taken for a packet as large as
// its header announces.
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
