package listen

import (
	"net"
	"sync/atomic"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/peers"
)

// counting is the socket of a listener that serves the beginning of its connections itself, as that of WebSocket
// does: they count from here on, and not only when Accept of the listener above returns them.
type counting struct {
	net.Listener
	enter func(peer net.Addr) (peers.Verdict, bool)
	leave func(peer net.Addr, v peers.Verdict)
}

// Accept returns the next connection that there is room for. Others it closes.
func (l *counting) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if v, ok := l.enter(c.RemoteAddr()); ok {
			return &begun{Conn: c, verdict: v, leave: l.leave}, nil
		}
		_ = c.Close() // never used
	}
}

// A begun connection counts already. Until somebody takes it over by Entered, its Close ends that.
type begun struct {
	net.Conn
	verdict peers.Verdict
	leave   func(peer net.Addr, v peers.Verdict)
	settled atomic.Bool // it is taken over, or counts no more
}

// NetConn is the socket.
func (c *begun) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the direction to the peer.
func (c *begun) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil // its Close says it
}

// Close closes the socket. A connection that nobody has taken over counts no more.
func (c *begun) Close() error {
	err := c.Conn.Close()
	if c.settled.CompareAndSwap(false, true) {
		c.leave(c.RemoteAddr(), c.verdict)
	}
	return err
}

// Entered takes over the count of an accepted connection: from then on the caller ends it. False says that it does
// not count yet.
func Entered(conn net.Conn) (peers.Verdict, bool) {
	c, ok := layers.Find[*begun](conn)
	if !ok {
		return peers.Welcome, false
	}
	return c.verdict, c.settled.CompareAndSwap(false, true)
}
