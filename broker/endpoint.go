package broker

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/broker/transport"
)

// An endpoint is one open listener.
type endpoint struct {
	b      *Broker
	l      Listener
	accept net.Listener
	stop   func() // closes accept, and what feeds it
}

// open listens on l's address.
func (b *Broker) open(l Listener) (*endpoint, error) {
	log := b.log.With("listener", l.Name)
	ln, err := listen.Serve(b.ctx, &l, listen.Options{
		PerSecond: b.o.Limits.ConnectRate, Listen: b.o.Listen, Upgrade: b.o.Limits.ConnectTimeout, MaxBytes: int64(b.o.Limits.PacketBytes), Logger: log,
		Failed: func(err error, retry time.Duration) {
			b.metrics.AcceptErrors.Inc()
			log.Warn("accept failed", "retry_in", retry, "err", err)
		},
		Refused: func(peer net.Addr) {
			b.metrics.Refused("connect", "address")
			if b.refused.Show("address", peers.Address(peer), l.Name) {
				log.Warn("connect refused: the listener does not take this address", "remote", peer.String())
			}
		},
		Enter:  b.enter,
		Unread: func(err error) { log.Error("certificate not read", "err", err) },
	})
	if err != nil {
		return nil, err
	}
	return &endpoint{b: b, l: l, accept: ln, stop: sync.OnceFunc(func() { _ = ln.Close() })}, nil
}

// address is where the endpoint listens.
func (e *endpoint) address() string { return e.accept.Addr().String() }

func (e *endpoint) close() { e.stop() }

// A conn is the connection of one client.
type conn struct {
	*transport.Conn
	listener *Listener
	session  atomic.Pointer[session] // nil before CONNECT is accepted
	entry    *peers.Entry            // among all connections
}

// remote is the address of the client.
func (c *conn) remote() string { return c.Raw().RemoteAddr().String() }

// address is the network address of the peer without its port; "" where it has none, as on a Unix
// socket.
func (c *conn) address() string { return peers.Address(c.Raw().RemoteAddr()) }

// account is whom the connection counts for.
func (c *conn) account() string {
	if s := c.session.Load(); s != nil {
		return s.account
	}
	return c.address()
}

// serve accepts until the endpoint is closed.
func (e *endpoint) serve() {
	for {
		raw, err := e.accept.Accept()
		if err != nil {
			return
		}
		entry, ok := listen.Entered(raw)
		if !ok {
			entry, ok = e.b.enter(layers.Socket(raw))
		}
		if !ok {
			_ = raw.Close() // never used
			continue
		}
		c := &conn{Conn: transport.New(raw, &e.b.transport), listener: &e.l, entry: entry}
		if !e.b.track(c) {
			c.entry.Leave(time.Now())
			_ = raw.Close() // never used
			continue
		}
		_ = raw.SetDeadline(time.Now().Add(e.b.o.Limits.ConnectTimeout)) // a dead transport shows at the first read
		go e.b.greet(c)                                                  // counted by track
	}
}
