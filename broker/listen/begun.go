package listen

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/peers"
)

// counting is the socket of a listener with something above it: its connections count from here on, and not only when
// Accept of the listener above returns them, which that of WebSocket does after their beginning.
type counting struct {
	net.Listener
	enter func(socket net.Conn) (*peers.Entry, bool)
}

// Accept returns the next connection that there is room for. Others it closes.
func (l *counting) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if entry, ok := l.enter(c); ok {
			return &begun{Conn: c, entry: entry}, nil
		}
		_ = c.Close() // never used
	}
}

// A begun connection is counted already. Until its owner calls Entered, Close ends the count.
type begun struct {
	net.Conn
	entry   *peers.Entry
	settled atomic.Bool // it is taken over, or counts no more
}

// noting returns a configuration of TLS which notes at each connection over counting when its ClientHello has arrived.
func noting(c *tls.Config) *tls.Config {
	c = c.Clone()
	next := c.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if b, ok := layers.Find[*begun](hello.Conn); ok {
			b.entry.Progress(peers.Spoke)
		}
		if next != nil {
			return next(hello)
		}
		return nil, nil //nolint:nilnil // package tls: the configuration stays
	}
	return c
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

// Close closes the socket. A connection without an owner is not counted any more.
func (c *begun) Close() error {
	err := c.Conn.Close()
	if c.settled.CompareAndSwap(false, true) {
		c.entry.Leave(time.Now())
	}
	return err
}

// Entered takes over the count of an accepted connection: from then on the caller ends it. False says that it does
// not count yet.
func Entered(conn net.Conn) (*peers.Entry, bool) {
	c, ok := layers.Find[*begun](conn)
	if !ok {
		return nil, false
	}
	return c.entry, c.settled.CompareAndSwap(false, true)
}
