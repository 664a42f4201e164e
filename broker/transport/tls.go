package transport

import (
	"crypto/tls"
	"net"
)

// TLSState is the state of the TLS connection under raw, which may be a WebSocket over it; nil
// where there is none.
func TLSState(raw net.Conn) *tls.ConnectionState {
	t, ok := raw.(*tls.Conn)
	if !ok {
		over, wraps := raw.(interface{ NetConn() net.Conn }) // a WebSocket
		if !wraps {
			return nil
		}
		if t, ok = over.NetConn().(*tls.Conn); !ok {
			return nil
		}
	}
	s := t.ConnectionState()
	return &s
}
