// Package memnet is a network in memory: hosts that listen and dial, and paths
// between them with latency, loss, a rate and cuts. It stands in for TCP in tests
// and simulations; what runs on it sees a net.Listener and a net.Conn.
//
// # What is modelled
//
// As with package impair, what a real network loses is late here, for TCP repeats it:
//
//   - What is written is split into segments. Each takes its size, headers included,
//     divided by Rate of the path's time, and arrives Delay and a random part of
//     Jitter later. A connection delivers in order.
//   - A lost segment arrives one retransmission time-out later, and twice as much
//     later for each further loss.
//   - A connection holds Window bytes that its reader has not read; a writer waits
//     for room.
//   - A cut path delivers nothing and says nothing: writers fill the window, readers
//     and dialers wait. What was on its way arrives after the path is restored.
//     Reset ends the connections of a path at both ends.
//
// # Time and randomness
//
// All waiting is by package time, on channels and sync.Cond, so that a Network that
// is made in a synctest bubble works on the bubble's clock. The draws of a connection
// depend on the seed, its two hosts, its address and its number among the connections
// to that address, and on nothing else: two runs that write the same have the same
// losses. Only the rate is shared by the connections of a path, so with a Rate the order
// of their writes matters.
package memnet

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Network is a set of hosts. Its methods, and those of its parts, may be called
// concurrently.
type Network struct {
	seed uint64

	mu        sync.Mutex // protects what follows, and the state of all paths, pipes and listeners
	listeners map[string]*listener
	paths     map[[2]string]*Path
	ports     map[string]int    // the last port that a host was given
	dialled   map[string]uint64 // connections by dialling host and address
}

// New returns a Network without hosts, whose losses and jitter follow from seed.
func New(seed uint64) *Network {
	return &Network{
		seed: seed, listeners: map[string]*listener{}, paths: map[[2]string]*Path{},
		ports: map[string]int{}, dialled: map[string]uint64{},
	}
}

// A Host is one machine on a Network.
type Host struct {
	n    *Network
	name string
}

// Host returns the host of a name, which other hosts dial as name:port.
func (n *Network) Host(name string) *Host { return &Host{n, name} }

// Path returns the path between two hosts, in either order. It begins without delay.
func (n *Network) Path(a, b string) *Path {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.path(a, b)
}

// path is Path for a caller that holds n.mu.
func (n *Network) path(a, b string) *Path {
	key := [2]string{min(a, b), max(a, b)}
	p := n.paths[key]
	if p == nil {
		p = &Path{n: n, first: key[0]}
		n.paths[key] = p
	}
	return p
}

// Listen opens a listener on address, host:port with the host's own name, or none,
// and port 0 for one that is free. The context and the network are not looked at.
func (h *Host) Listen(_ context.Context, _, address string) (net.Listener, error) {
	refuse := func(err error) error { return &net.OpError{Op: "listen", Net: network, Addr: Addr(address), Err: err} }
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, refuse(err)
	}
	if host != "" && host != h.name {
		return nil, refuse(fmt.Errorf("host %s is not %s: %w", h.name, host, syscall.EADDRNOTAVAIL))
	}
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		port = n.port(h.name)
	}
	at := net.JoinHostPort(h.name, port)
	if n.listeners[at] != nil {
		return nil, refuse(syscall.EADDRINUSE)
	}
	l := &listener{n: n, addr: Addr(at), cond: sync.NewCond(&n.mu)}
	n.listeners[at] = l
	return l, nil
}

// port returns a port of a host that was not used before. The caller holds n.mu.
func (n *Network) port(host string) string {
	const first = 49152 // of the dynamic ports (RFC 6335, section 6)
	n.ports[host]++
	return strconv.Itoa(first + n.ports[host] - 1)
}

// DialContext connects to address, host:port. It takes a round trip, waits while the path is cut,
// and fails with ECONNREFUSED where no listener is and with ctx's error when that ends first. The
// network is not looked at.
func (h *Host) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	refuse := func(err error) error { return &net.OpError{Op: "dial", Net: network, Addr: Addr(address), Err: err} }
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, refuse(err)
	}
	n := h.n
	n.mu.Lock()
	p := n.path(h.name, host)
	key := h.name + ">" + address
	n.dialled[key]++
	rng := n.draws(key, n.dialled[key])
	n.mu.Unlock()
	if err := p.handshake(ctx, rng); err != nil {
		return nil, refuse(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[address]
	if l == nil {
		return nil, refuse(syscall.ECONNREFUSED)
	}
	local := Addr(net.JoinHostPort(h.name, n.port(h.name)))
	up, down := newPipe(p, h.name == p.first, rng), newPipe(p, h.name != p.first, n.draws(key+"<", n.dialled[key]))
	near := &conn{path: p, local: local, remote: l.addr, in: down, out: up}
	far := &conn{path: p, local: l.addr, remote: local, in: up, out: down}
	p.conns = append(p.conns, near)
	l.waiting = append(l.waiting, far)
	l.cond.Broadcast()
	return near, nil
}

// draws returns the source of randomness of one direction of one connection.
func (n *Network) draws(key string, number uint64) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte(key), number)) // a hash takes everything
	return rand.New(rand.NewPCG(n.seed, h.Sum64()))                    //nolint:gosec // chosen by the seed
}

// network is what the addresses of a Network call it.
const network = "mem"

// An Addr is host:port.
type Addr string

// Network returns mem.
func (Addr) Network() string { return network }

// String returns host:port.
func (a Addr) String() string { return string(a) }

// A listener holds the connections that were not accepted yet.
type listener struct {
	n    *Network
	addr Addr
	cond *sync.Cond // of n.mu

	waiting []*conn
	closed  bool
}

func (l *listener) Accept() (net.Conn, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for len(l.waiting) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.addr, Err: net.ErrClosed}
	}
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c, nil
}

// Close refuses the connections that wait to be accepted; accepted connections go on.
func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: network, Addr: l.addr, Err: net.ErrClosed}
	}
	l.closed = true
	delete(l.n.listeners, string(l.addr))
	for _, c := range l.waiting {
		c.in.reset()
		c.out.reset()
	}
	l.waiting = nil
	l.cond.Broadcast()
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// rtoMin is the least retransmission time-out, as Linux has it.
const rtoMin = 200 * time.Millisecond
