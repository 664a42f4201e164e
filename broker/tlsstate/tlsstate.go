// Package tlsstate finds the TLS connection under a connection.
package tlsstate

import (
	"crypto/tls"
	"net"
)

// Of is the state of the TLS connection that conn is, or that it runs over as a WebSocket does; nil where
// there is none.
func Of(conn net.Conn) *tls.ConnectionState {
	for {
		if t, ok := conn.(*tls.Conn); ok {
			s := t.ConnectionState()
			return &s
		}
		over, wraps := conn.(interface{ NetConn() net.Conn })
		if !wraps {
			return nil
		}
		conn = over.NetConn()
	}
}
