// Package impair is a TCP proxy that makes a good network bad: a narrow link
// with delay, jitter, loss, outages and half-open connections, in one process,
// for machines and tests that have no netem.
//
// # What is modelled, and what is not
//
// The proxy ends TCP on both sides, so it can't lose packets: it holds bytes
// for as long as a network that loses packets would.
//
//   - Each direction is one serialising link that all connections share. What
//     is sent is cut into segments of at most MSS bytes; each needs (bytes +
//     HeaderBytes) / Rate of the link's time, one after the other.
//   - In front of the link is a queue of Queue bytes, first in, first out. A
//     full queue drops nothing: it stops reading from the sender, whose TCP
//     pushes back.
//   - A segment arrives Delay and a uniform part of Jitter after its last byte
//     is on the link. TCP delivers in order, so jitter never reorders.
//   - A lost segment is sent again, which needs link time again, and all behind
//     it on its connection wait for it. In a stream (the queue isn't empty)
//     that costs one round trip, as a fast retransmit does; else two, and at
//     least 200 ms, as the tail loss probe of Linux does. Each further loss of
//     the same segment costs twice the retransmission time-out before.
//   - A new connection waits one round trip for its handshake. The connect call
//     itself succeeds at once, for the proxy's kernel answers it.
//   - Congestion control is not modelled: the sender is let fill the link. That
//     is near the truth where the window that the loss allows, about 1.2
//     segments / √loss, is more than the link holds. Segments that carry only
//     an acknowledgement are free, and headers of the link layer are not there.
//
// A changed Profile holds for what is sent from then on: what waits in the queue
// leaves it as it would have. Only a Mode takes effect at once.
package impair

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// MSS is the most bytes of a segment, as TCP has on an Ethernet with time stamps.
	MSS = 1448
	// HeaderBytes is what IPv4 and TCP with time stamps add to a segment.
	HeaderBytes = 52
	// DefaultQueue is the Queue of a Profile that names none, in bytes.
	DefaultQueue = 16 << 10
)

// Mode is what the link does with what is sent.
type Mode int

// The modes of a link.
const (
	// Forward delivers.
	Forward Mode = iota
	// Refuse resets each connection that there is, and each new one.
	Refuse
	// Stall delivers nothing and says nothing. The sender's bytes are accepted until
	// the queue is full. With the next mode the connections go on where they were.
	Stall
	// Swallow delivers nothing, says nothing and accepts all. A connection that sent
	// a byte meanwhile never comes back: it stays silent for as long as it is open,
	// as behind a router that has forgotten it.
	Swallow
)

// A Profile says how bad the link is. The zero value passes all on at once.
type Profile struct {
	Rate   int           // bytes per second each way, headers included; 0: no limit
	Queue  int           // bytes before the link; 0: DefaultQueue
	Delay  time.Duration // one way
	Jitter time.Duration // the most that is added to Delay
	Loss   float64       // the part of the segments that is lost, 0 to below 1
	Mode   Mode
}

func (p Profile) validate() error {
	if p.Rate < 0 || p.Queue < 0 || p.Delay < 0 || p.Jitter < 0 {
		return errors.New("rate, queue, delay and jitter of a link must not be negative")
	}
	if p.Loss < 0 || p.Loss > 0.9 {
		return fmt.Errorf("loss of a link must be from 0 to 0.9, not %v", p.Loss)
	}
	return nil
}

func (p Profile) queue() int {
	if p.Queue == 0 {
		return DefaultQueue
	}
	return p.Queue
}

// rtt is the round trip of a segment that meets no queue.
func (p Profile) rtt() time.Duration { return 2*p.Delay + p.Jitter }

// Stats is what went over the link.
type Stats struct {
	Up, Down Counters // up: from the clients of the proxy
	Accepted uint64   // connections, ever
	Open     int      // connections now, silent ones included
}

// Counters is what one direction carried, ever.
type Counters struct {
	Wire      uint64 // bytes that were on the link: headers and repeats included
	Delivered uint64 // bytes handed to the receiver
	Swallowed uint64 // bytes that were accepted and thrown away
	Segments  uint64 // first transmissions
	Lost      uint64 // transmissions that were lost
}

// A Proxy is one impaired link to one address. Its methods may be called
// concurrently.
type Proxy struct {
	target string
	ln     net.Listener
	up     *direction
	down   *direction
	ctx    context.Context //nolint:containedctx // the life of the proxy's goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	profile Profile
	changed notify.Broadcast // profile is another one
	conns   map[*conn]struct{}
	count   uint64
}

// Listen starts a proxy on a free port of 127.0.0.1 that carries connections to
// target (host:port). Equal seeds lose and delay alike. The caller closes it.
func Listen(target string, p Profile, seed uint64) (*Proxy, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	lc := net.ListenConfig{Control: control}
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, fmt.Errorf("listen for the impaired link: %w", err)
	}
	x := &Proxy{
		target: target, ln: ln, ctx: ctx, cancel: cancel, profile: p,
		conns: map[*conn]struct{}{},
		up:    &direction{rng: newRand(seed)},
		down:  &direction{rng: newRand(seed + 1)},
	}
	x.wg.Go(x.accept)
	return x, nil
}

// Addr returns the address to connect to, host:port.
func (x *Proxy) Addr() string { return x.ln.Addr().String() }

// Set changes the link. It panics where the profile makes no sense.
func (x *Proxy) Set(p Profile) {
	if err := p.validate(); err != nil {
		panic(err)
	}
	x.mu.Lock()
	x.profile = p
	x.changed.Notify()
	x.mu.Unlock()
	if p.Mode == Refuse {
		x.Reset()
	}
}

// Reset ends each connection that there is with a TCP reset on both sides.
func (x *Proxy) Reset() {
	for _, c := range x.all() {
		c.reset()
	}
}

// Strand makes each connection that there is silent permanently: what it sends is
// accepted and thrown away, and its end on one side is not forwarded to the other. New
// connections pass.
func (x *Proxy) Strand() {
	for _, c := range x.all() {
		c.strand()
	}
}

// Stats returns what went over the link until now.
func (x *Proxy) Stats() Stats {
	x.mu.Lock()
	s := Stats{Accepted: x.count, Open: len(x.conns)}
	x.mu.Unlock()
	now := time.Now()
	s.Up, s.Down = x.up.stats(now), x.down.stats(now)
	return s
}

// Close ends the link and its connections, with a reset, and waits for its goroutines.
func (x *Proxy) Close() error {
	x.cancel()
	err := x.ln.Close()
	x.Reset()
	x.wg.Wait()
	return err
}

func (x *Proxy) all() []*conn {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]*conn, 0, len(x.conns))
	for c := range x.conns {
		all = append(all, c)
	}
	return all
}

// state returns the profile and what is closed when it changes.
func (x *Proxy) state() (Profile, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.profile, x.changed.C()
}

func (x *Proxy) accept() {
	for {
		c, err := x.ln.Accept()
		if x.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			// The machine is out of descriptors, or the peer has closed it again.
			_ = retry.Sleep(x.ctx, 10*time.Millisecond) // its end ends the loop, too
			continue
		}
		k := newConn(x, c.(*net.TCPConn))
		x.mu.Lock()
		x.conns[k] = struct{}{}
		x.count++
		x.mu.Unlock()
		x.wg.Go(func() {
			k.serve()
			x.mu.Lock()
			defer x.mu.Unlock()
			delete(x.conns, k)
		})
		if x.ctx.Err() != nil {
			k.reset() // Close has not seen it
		}
	}
}
