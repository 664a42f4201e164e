// Package layers finds what a connection stands on: TLS under a WebSocket, the socket under both. A connection over
// another one has a method NetConn that returns that.
package layers

import (
	"crypto/tls"
	"net"
)

// Find returns the first connection of type T among conn and those it stands on.
func Find[T net.Conn](conn net.Conn) (T, bool) {
	for {
		if found, ok := conn.(T); ok {
			return found, true
		}
		under := below(conn)
		if under == nil {
			var none T
			return none, false
		}
		conn = under
	}
}

// Socket is what stands on nothing further.
func Socket(conn net.Conn) net.Conn {
	for under := below(conn); under != nil; under = below(conn) {
		conn = under
	}
	return conn
}

// below is what conn stands on; nil: nothing.
func below(conn net.Conn) net.Conn {
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return nil
}

// TLS is the state of the TLS connection that conn is, or that it runs over as a WebSocket does; nil where
// there is none.
func TLS(conn net.Conn) *tls.ConnectionState {
	t, ok := Find[*tls.Conn](conn)
	if !ok {
		return nil
	}
	s := t.ConnectionState()
	return &s
}
