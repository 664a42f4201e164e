package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/broker/door"
	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/broker/transport"
)

// A conn is the connection of one client.
type conn struct {
	*transport.Conn
	listener *Listener
	session  atomic.Pointer[session] // nil before CONNECT is accepted
	entry    *peers.Entry            // among all connections
	greeting sync.Mutex              // held while CONNACK is queued
	greeted  bool                    // CONNACK is queued, protected by greeting
	why      atomic.Pointer[string]  // why the broker ends it, for people; nil: it does not
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

// acceptAll serves the connections of a listener until it is closed.
func (b *Broker) acceptAll(l *door.Listener) {
	for {
		raw, entry, err := l.Accept()
		if err != nil {
			return
		}
		c := &conn{Conn: transport.New(raw, &b.transport), listener: l.Spec, entry: entry}
		if !b.track(c) {
			c.entry.Leave(time.Now())
			_ = raw.Close() // never used
			continue
		}
		go b.greet(c) // counted by track
	}
}
