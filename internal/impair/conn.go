package impair

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// bulk is how much is read at once where the link has no rate and no loss.
	bulk = 32 << 10
	// flightLimit bounds what is on its way on a link without a rate, in bytes.
	flightLimit = 4 << 20
	dialTimeout = 10 * time.Second
)

// conn is one connection through the proxy.
type conn struct {
	x        *Proxy
	client   *net.TCPConn
	silent   chan struct{} // closed when the connection is stranded
	once     sync.Once
	deadDone context.CancelFunc
	ctx      context.Context //nolint:containedctx // the life of the connection's goroutines

	mu     sync.Mutex
	server *net.TCPConn // nil until it is dialled
	dead   bool
}

// flow is one direction of a connection.
type flow struct {
	d        *direction
	src, dst *net.TCPConn
	segments chan segment
	held     atomic.Int64  // bytes between the read and the write
	room     notify.Signal // held has sunk
}

// segment is what travels: bytes, or the end of the stream.
type segment struct {
	data []byte
	at   time.Time
	fin  bool
}

func newConn(x *Proxy, client *net.TCPConn) *conn {
	ctx, cancel := context.WithCancel(x.ctx)
	return &conn{x: x, client: client, silent: make(chan struct{}), ctx: ctx, deadDone: cancel}
}

func (c *conn) strand() { c.once.Do(func() { close(c.silent) }) }

func (c *conn) stranded() bool {
	select {
	case <-c.silent:
		return true
	default:
		return false
	}
}

// reset ends both sides at once with a TCP reset.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	c.deadDone()
	abort(c.client)
	abort(c.server)
}

func abort(s *net.TCPConn) {
	if s != nil {
		_ = s.SetLinger(0)
		_ = s.Close()
	}
}

// abortive makes each close of a socket a reset, also that of a dial which is cancelled
// when the other end has accepted it already.
func abortive(_, _ string, raw syscall.RawConn) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	}); cerr != nil {
		return cerr
	}
	return err
}

// serve carries the connection until both sides have ended.
func (c *conn) serve() {
	defer c.reset()
	if !c.passing() || !c.handshake() {
		return
	}
	d := net.Dialer{Timeout: dialTimeout, Control: abortive}
	s, err := d.DialContext(c.ctx, "tcp", c.x.target)
	if err != nil {
		return // the deferred reset ends the client
	}
	c.mu.Lock()
	dead := c.dead
	c.server = s.(*net.TCPConn)
	c.mu.Unlock()
	if dead {
		return
	}
	up, down := newFlow(c.x.up, c.client, c.server), newFlow(c.x.down, c.server, c.client)
	var wg sync.WaitGroup
	wg.Go(func() { c.read(up) })
	wg.Go(func() { c.read(down) })
	wg.Go(func() { c.write(up) })
	wg.Go(func() { c.write(down) })
	wg.Wait()
}

// handshake waits for the round trip that opens a connection.
func (c *conn) handshake() bool {
	p, _ := c.x.state()
	return retry.Sleep(c.ctx, p.rtt()) == nil
}

// passing waits until the link carries anything. False means that the
// connection is over.
func (c *conn) passing() bool {
	for {
		p, changed := c.x.state()
		switch p.Mode {
		case Forward:
			return true
		case Refuse:
			return false
		case Swallow:
			c.strand()
		}
		if c.stranded() {
			_, _ = io.Copy(io.Discard, c.client)
			return false
		}
		select {
		case <-changed:
		case <-c.silent:
		case <-c.ctx.Done():
			return false
		}
	}
}

func newFlow(d *direction, src, dst *net.TCPConn) *flow {
	return &flow{d: d, src: src, dst: dst, segments: make(chan segment, flightLimit/MSS), room: notify.New()}
}

// read puts what the sender sends on the link.
func (c *conn) read(f *flow) {
	defer close(f.segments)
	buf := make([]byte, bulk)
	for {
		p, _ := c.x.state()
		size := bulk
		if p.Rate > 0 || p.Loss > 0 {
			size = MSS
		}
		n, err := f.src.Read(buf[:size])
		if n > 0 && !c.queue(f, buf[:n]) {
			return
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			c.broken()
			return
		}
		if !c.stranded() {
			p, _ := c.x.state()
			f.segments <- segment{fin: true, at: f.d.send(time.Now(), 0, p)}
		}
		return
	}
}

// broken ends the other side after a reset of one, unless the mode hides it.
func (c *conn) broken() {
	if !c.stranded() {
		c.reset()
	}
}

// queue waits for room and sends data, or throws it away. False means that the
// connection is over.
func (c *conn) queue(f *flow, data []byte) bool {
	for {
		p, changed := c.x.state()
		if p.Mode == Swallow {
			c.strand()
		}
		if c.stranded() {
			f.d.add(0, len(data))
			return true
		}
		wait, full := f.wait(p, len(data))
		if !full && wait <= 0 && p.Mode != Refuse {
			f.held.Add(int64(len(data)))
			f.segments <- segment{data: append([]byte(nil), data...), at: f.d.send(time.Now(), len(data), p)}
			return true
		}
		if full {
			wait = time.Hour // until there is room
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-f.room.C():
		case <-changed:
		case <-c.silent:
		case <-c.ctx.Done():
			t.Stop()
			return false
		}
		t.Stop()
	}
}

// wait returns how long n bytes wait for the queue before the link, or that too
// much is on its way.
func (f *flow) wait(p Profile, n int) (wait time.Duration, full bool) {
	limit := flightLimit
	if p.Rate > 0 {
		// What a lost segment holds up does not stop the link, also where its repeat
		// is lost again.
		limit = min(limit, p.queue()+waiting(3*p.rtt()+minProbe, p.Rate)+3*MSS)
	}
	if held := f.held.Load(); held > 0 && int(held)+n > limit {
		return 0, true
	}
	if p.Rate == 0 {
		return 0, false
	}
	return f.d.ahead(time.Now()) - air(p.queue(), p.Rate), false
}

// write hands the receiver what has arrived, in order.
func (c *conn) write(f *flow) {
	for s := range f.segments {
		if !c.arrive(s.at) {
			f.lose(s)
			continue
		}
		if s.fin {
			_ = f.dst.CloseWrite()
			continue
		}
		if _, err := f.dst.Write(s.data); err != nil {
			c.broken()
		} else {
			f.d.add(len(s.data), 0)
		}
		f.done(s)
	}
}

func (f *flow) done(s segment) {
	f.held.Add(-int64(len(s.data)))
	f.room.Notify()
}

func (f *flow) lose(s segment) {
	f.d.add(0, len(s.data))
	f.done(s)
}

// arrive waits until a segment is there and the link delivers. False means that
// it never arrives.
func (c *conn) arrive(at time.Time) bool {
	for {
		p, changed := c.x.state()
		if p.Mode == Swallow {
			c.strand()
		}
		if c.stranded() || c.ctx.Err() != nil {
			return false
		}
		wait := time.Until(at)
		if wait <= 0 && p.Mode == Forward {
			return true
		}
		if p.Mode != Forward {
			wait = time.Hour // until the mode changes
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-changed:
		case <-c.silent:
		case <-c.ctx.Done():
		}
		t.Stop()
	}
}
