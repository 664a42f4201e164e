// Package transport stands between a broker and the network connection of one client.
package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/broker/inflight"
	"github.com/colonyfleet/colony/broker/packet"
)

const (
	chunk  = 16 << 10    // bytes that one write deadline covers
	linger = time.Second // how long a closed connection may take to read our last words
)

// ErrSlow says that there is no room for a message: the client lags behind by more than
// it may.
var ErrSlow = errors.New("client reads too slowly: write buffer full")

// Options are shared by all connections of a broker.
type Options struct {
	WriteBuffer  int           // bytes that may wait for a client
	WriteTimeout time.Duration // that a client may take to accept the next 16 KiB
	Pending      *atomic.Int64 // sum of Pending of all connections
	Go           func(func())  // runs a goroutine that ends with the connection
	Events       Events
}

// Events are called when something happens to messages. The functions are called with locks held:
// they return at once and call nothing of this package.
type Events struct {
	Dropped        func(reason string) // a client was cut off
	Expired        func(n int)         // messages whose time was up before they were sent
	Unacknowledged func(n int)         // messages sent that wait for an acknowledgement, more or less
}

// A Conn gives a broker what a net.Conn does not:
//
//   - writes that never block. They wait in a bounded queue for a goroutine that
//     exists only while there is something to write, so a client that does not
//     read stops neither publishers nor other subscribers;
//   - the client's Receive Maximum, and its packet ids, see package inflight;
//   - a close that lets the last packet, which says why, reach the client.
//
// One goroutine reads; all other methods may be called concurrently.
type Conn struct {
	raw net.Conn // TCP, TLS, WebSocket or Unix socket
	o   *Options
	in  incoming

	ended   chan struct{} // closed by Close
	pending atomic.Int64

	rmu sync.Mutex // held while reading the transport

	mu       sync.Mutex // protects what follows
	out      inflight.Queue
	writing  int  // bytes that flush has taken and not yet written
	flushing bool // flush runs
	draining bool // only what has arrived is read
	slow     bool // it is ended because it has not taken what waits
	reason   byte // the reason code with which the broker ends the connection
	closing
	source Source // of further packets; nil: none
	due    bool   // the source may have some
	answers
	lag
	alarm alarm
}

// A Source has packets that wait elsewhere than in the memory of a Conn, and that are made
// when they can be written.
type Source interface {
	// Pull appends some packets to buf, about as many as one write should have: the end of the
	// last may be returned as payload. It returns nothing while there is none, until the next Wake.
	// It is called by one goroutine at a time, without locks of the Conn.
	Pull(buf []byte, now time.Time) (head, payload []byte)
}

// SetSource sets the source, before the first Wake.
func (c *Conn) SetSource(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = s
}

// Wake says that the source may have something. It returns at once.
func (c *Conn) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.broken || c.left || c.source == nil {
		return
	}
	c.due = true
	c.startFlush()
}

// New returns a Conn over a network connection, which it owns from then on.
func New(raw net.Conn, o *Options) *Conn {
	c := &Conn{raw: raw, o: o, ended: make(chan struct{})}
	c.prepare()
	return c
}

// Raw is the network connection, to look at.
func (c *Conn) Raw() net.Conn { return c.raw }

// Pending is how many bytes of memory wait for this client: to be written, or of a packet
// that has not arrived whole.
func (c *Conn) Pending() int64 { return c.pending.Load() }

// Write queues p, which is one packet other than PUBLISH, and returns at once.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(p)
}

func (c *Conn) write(p []byte) (int, error) {
	if c.closed || c.broken {
		return 0, net.ErrClosed
	}
	if !c.fits(len(p)) { // it asks and does not read the answers
		c.o.Events.Dropped("slow_client")
		c.resetLocked()
		return 0, ErrSlow
	}
	before := c.out.Size()
	c.out.AddPacket(p)
	c.Hold(c.out.Size() - before)
	c.startFlush()
	return len(p), nil
}

// Publish queues a PUBLISH. ErrSlow says that there is no room for it.
func (c *Conn) Publish(f *packet.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.broken || c.left {
		return net.ErrClosed
	}
	if !c.fits(f.Size()) {
		return ErrSlow
	}
	before := c.out.Size()
	c.out.AddMessage(f)
	c.Hold(c.out.Size() - before)
	c.startFlush()
	return nil
}

// fits reports whether a packet of n bytes may wait. One alone always may. c.mu is held.
func (c *Conn) fits(n int) bool {
	waiting := c.writing + c.out.Size()
	return waiting == 0 || waiting+n <= c.o.WriteBuffer
}

// Hold counts n bytes more, or less, that wait for this client.
func (c *Conn) Hold(n int) {
	c.pending.Add(int64(n))
	c.o.Pending.Add(int64(n))
}

// Slowness is the reason for which a client that is too far behind is disconnected.
func (c *Conn) Slowness() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.Held() {
		return "unacknowledged"
	}
	return "slow_client"
}

// startFlush makes flush run if there is something to write. c.mu is held.
func (c *Conn) startFlush() {
	if !c.flushing && (c.out.Ready() || c.closed || c.due) {
		c.flushing = true
		c.o.Go(c.flush)
	}
}

// buffers are those that flush collects packets in.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2*chunk); return &b }}

// flush writes what is ready until nothing is, and ends the transport if the
// connection has been closed.
func (c *Conn) flush() {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		if c.gathers() {
			runtime.Gosched() // other goroutines that are ready may have more to write: one write for all of it
		}
		batch, source, end := c.take((*buf)[:0])
		if end == ends {
			c.finish()
		}
		if end != goesOn {
			return
		}
		if source != nil {
			c.pull(source, &batch)
		}
		if batch.Size == 0 { // all that was there waits for acknowledgements
			continue
		}
		err := c.writeOut(batch.Head)
		if err == nil {
			err = c.writeOut(batch.Payload)
		}
		if cap(batch.Head) > cap(*buf) && cap(batch.Head) <= 8*chunk {
			*buf = batch.Head
		}
		c.mu.Lock()
		c.written(c.writing)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && !c.closed {
				c.o.Events.Dropped("write_timeout")
			}
			c.resetLocked()
		}
		c.mu.Unlock()
	}
}

// What flush does after take.
const (
	goesOn = iota
	pauses // there is nothing to write
	ends   // there never will be
)

// take takes packets out that may be written now, and says whether the source is to be asked for
// more.
func (c *Conn) take(buf []byte) (batch inflight.Taken, source Source, end int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = c.due && !c.closed && !c.left
	if c.broken || !c.out.Ready() && !c.due {
		c.flushing = false
		if c.closed {
			return batch, nil, ends
		}
		return batch, nil, pauses
	}
	before := c.out.Unacknowledged()
	batch = c.out.Take(buf, time.Now())
	if n := c.out.Unacknowledged() - before; n != 0 {
		c.o.Events.Unacknowledged(n)
	}
	if batch.Expired > 0 {
		c.o.Events.Expired(batch.Expired)
	}
	c.writing = batch.Size
	if c.due && batch.Payload == nil {
		source, c.due = c.source, false
	}
	return batch, source, goesOn
}

// pull appends to a batch what the source has.
func (c *Conn) pull(source Source, batch *inflight.Taken) {
	before := len(batch.Head)
	batch.Head, batch.Payload = source.Pull(batch.Head, time.Now())
	n := len(batch.Head) - before + len(batch.Payload)
	if n == 0 {
		return
	}
	batch.Size += n
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = true
	c.writing += n
	c.Hold(n)
}

// writeOut writes a part of what flush has taken.
func (c *Conn) writeOut(part []byte) error {
	for len(part) > 0 {
		n, err := c.writeChunk(part[:min(len(part), chunk)])
		if err != nil {
			return err
		}
		if part = part[n:]; len(part) > 0 {
			c.mu.Lock()
			c.written(n)
			c.mu.Unlock()
		}
	}
	return nil
}

// writeChunk writes a part, or the beginning of it. What the network takes at once needs no deadline.
func (c *Conn) writeChunk(part []byte) (int, error) {
	if c.in.raw != nil {
		if n := c.tryWrite(part); n > 0 {
			return n, nil
		}
	}
	c.mu.Lock()
	if !c.closed { // Close has set the last deadline
		_ = c.raw.SetWriteDeadline(time.Now().Add(c.o.WriteTimeout)) // Write reports a dead transport
	}
	c.mu.Unlock()
	return c.raw.Write(part)
}

// written notes that the client took n bytes. c.mu is held.
func (c *Conn) written(n int) {
	c.writing -= n
	c.Hold(-n)
	c.moved()
}

// breakLocked closes the transport. Reader and writer notice. c.mu is held.
func (c *Conn) breakLocked() {
	c.broken = true
	c.Hold(-c.out.Drop())
	_ = c.raw.Close() // nothing more is expected of it
	c.overLocked()
	c.moved()
}

// Abort cuts the connection without last words.
func (c *Conn) Abort(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.broken {
		c.o.Events.Dropped(reason)
	}
	c.resetLocked()
}

// Close ends reads and writes at once. What is queued is still sent within a second, but for
// messages: they are dropped.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.Hold(-c.out.DropMessages())
	close(c.ended)
	c.moved() // wakes the waiting goroutines
	if c.left && !c.flushing && c.out.Size() == 0 {
		c.breakLocked() // nothing is owed to a peer that has left
	}
	if c.broken {
		return nil
	}
	now := time.Now()
	c.wakeAt(now)
	_ = c.raw.SetWriteDeadline(now.Add(linger))
	c.startFlush()
	return nil
}

// DropMessages forgets the messages that wait: the client is about to be disconnected because it
// misses some.
func (c *Conn) DropMessages() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = true
	c.Hold(-c.out.DropMessages())
}

// Drop forgets all that waits, answers that are owed among it: the client is about to be disconnected because of the
// memory that it takes.
func (c *Conn) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = true
	c.Hold(-c.out.Drop())
}

// finish closes the transport after the client has had its time to read: a TCP
// connection closed with unread data is reset, and the client would never learn why.
func (c *Conn) finish() {
	defer func() {
		_ = c.raw.Close() // nothing more is expected of it
		c.mu.Lock()
		defer c.mu.Unlock()
		c.overLocked()
	}()
	c.mu.Lock()
	broken := c.broken
	if c.slow && !broken {
		defer func() { reset(c.raw) }()
	}
	c.Hold(-c.out.Drop()) // messages for which the client has no room
	c.mu.Unlock()
	half, ok := c.raw.(interface{ CloseWrite() error })
	if broken || !ok || half.CloseWrite() != nil {
		return
	}
	c.rmu.Lock() // the last read has ended
	defer c.rmu.Unlock()
	if err := c.raw.SetReadDeadline(time.Now().Add(linger)); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c.raw, 1<<20)) // ends with the peer's close, or in time
	}
}

// Closed reports whether Close was called. It takes no lock: the reader asks before and after each read.
func (c *Conn) Closed() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// SetWindow bounds how many messages of QoS 1 and 2 are under way to the client.
func (c *Conn) SetWindow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Limit(n)
}

// Acknowledged notes the acknowledgement that ends a message of QoS 1 or 2.
func (c *Conn) Acknowledged(id uint16, by inflight.Ack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out.Acknowledged(id, by) {
		return
	}
	c.o.Events.Unacknowledged(-1)
	if !c.closed && !c.broken {
		c.startFlush()
	}
	c.moved()
}

// Odd reports whether the message with an id waits for another packet than this one.
func (c *Conn) Odd(id uint16, by inflight.Ack) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Odd(id, by)
}

// Recorded notes a PUBREC; false if its id is unknown.
func (c *Conn) Recorded(id uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Recorded(id)
}

// Forget forgets the messages under way, and returns their number.
func (c *Conn) Forget() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Forget()
}

// End notes with which reason code the broker ends the connection; false if it ends already.
func (c *Conn) End(code byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.reason != 0 {
		return false
	}
	c.reason = code
	return true
}

// Ending is what End has noted; 0 if nothing.
func (c *Conn) Ending() byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}
