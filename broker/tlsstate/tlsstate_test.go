package tlsstate

import (
	"crypto/tls"
	"net"
	"testing"
)

// A wrapped is a connection over another one.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestOf(t *testing.T) {
	t.Parallel()
	plain, peer := net.Pipe()
	t.Cleanup(func() { _, _ = plain.Close(), peer.Close() })
	secure := tls.Client(plain, &tls.Config{ServerName: "broker"})
	for name, c := range map[string]struct {
		conn net.Conn
		want bool
	}{
		"plain":                     {plain, false},
		"over plain":                {wrapped{plain}, false},
		"TLS":                       {secure, true},
		"WebSocket over TLS":        {wrapped{secure}, true},
		"over a WebSocket over TLS": {wrapped{wrapped{secure}}, true},
	} {
		if got := Of(c.conn) != nil; got != c.want {
			t.Errorf("%s: a state of TLS %v, want %v", name, got, c.want)
		}
	}
}
