// Package inprocess lets a client of HTTP reach a server of the same process without the network: it needs no certificate of the
// server's and no token of its gate.
package inprocess

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A Listener has connections of this process. Its methods may be called concurrently.
type Listener struct {
	address string
	conns   chan net.Conn
	closed  chan struct{}
	close   func()
}

// Listen returns a listener that stands for an address host:port.
func Listen(address string) *Listener {
	l := &Listener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Accept returns the next connection, or net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept; connections that were accepted go on.
func (l *Listener) Close() error { l.close(); return nil }

// Addr is the address that it stands for.
func (l *Listener) Addr() net.Addr { return address(l.address) }

// dial connects to the listener.
func (l *Listener) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Transport returns a transport that reaches the listener at its address, in clear, and everything else by the network.
func (l *Listener) Transport() *http.Transport {
	network := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Host == l.address {
				return nil, nil
			}
			return http.ProxyFromEnvironment(r)
		},
		DialContext: func(ctx context.Context, kind, at string) (net.Conn, error) {
			if at == l.address {
				return l.dial(ctx)
			}
			return network.DialContext(ctx, kind, at)
		},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 4,
	}
}

type address string

func (address) Network() string  { return "process" }
func (a address) String() string { return string(a) }
