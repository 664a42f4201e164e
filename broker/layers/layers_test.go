package layers

import (
	"crypto/tls"
	"net"
	"testing"
)

// A wrapped is a connection over another one.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestTLS(t *testing.T) {
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
		if got := TLS(c.conn) != nil; got != c.want {
			t.Errorf("%s: a state of TLS %v, want %v", name, got, c.want)
		}
		if got := Socket(c.conn); got != plain {
			t.Errorf("%s: stands on a %T, want the socket", name, got)
		}
	}
	if _, ok := Find[*net.TCPConn](wrapped{secure}); ok {
		t.Error("a TCP connection is found under a pipe")
	}
}
