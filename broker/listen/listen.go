// Package listen opens the sockets of a broker, so that neither what a killed process
// left behind nor a lack of file descriptors keeps clients out.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/retry/relisten"
)

// Options configure a Listener.
type Options struct {
	// PerSecond is how many connections are accepted per second; those above it wait
	// in the system's queue. 0: no limit.
	PerSecond float64
	// Failed is required. It is called after an accept that failed, such as for want of file
	// descriptors, and when it is tried again.
	Failed func(err error, retry time.Duration)
	// Refused is required. It is called after a connection was closed, because the
	// listener does not take its address.
	Refused func(peer net.Addr)
	// Listen opens the socket. Nil: that of the system.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)

	// For Serve alone. Upgrade is how long a WebSocket may take to begin. Logger gets at debug why
	// one ended before that. Unread is called when the files of a certificate cannot be read.
	Upgrade  time.Duration
	MaxBytes int64 // of a message of a WebSocket
	Logger   *slog.Logger
	Unread   func(err error)
	// TLSFailed is called with the address, host:port, of each WebSocket connection that failed in TLS, and why. It is
	// called concurrently.
	TLSFailed func(remote, why string)
	// OriginRefused, if set, is called with the address, host:port, of each page that may not connect over WebSocket, and its
	// origin. It is called concurrently.
	OriginRefused func(remote, origin string)
	// TimedOut, if set, is called for each WebSocket that has ended without its beginning after Upgrade or more. It is called
	// concurrently.
	TimedOut func()
	// Enter is required for TLS and for a WebSocket. It counts a connection before its beginning, and says whether
	// there is room for it; if not, it is closed. The entry is left when the connection has ended before
	// Accept has returned it, see Entered.
	Enter func(socket net.Conn) (*peers.Entry, bool)
}

// A Listener is a net.Listener that outlives a lack of file descriptors: it waits
// and tries again.
type Listener struct {
	net.Listener
	ctx   context.Context
	limit *rate.Limiter  // nil: none
	from  []netip.Prefix // empty: all
	o     Options
}

// Open listens on the address of a valid Spec, for TCP or a Unix socket; the caller adds the layers
// above. ctx ends Accept, not only Open. A Unix socket without a server is replaced.
func Open(ctx context.Context, s *Spec, o Options) (*Listener, error) {
	from, err := s.prefixes()
	if err != nil {
		return nil, err
	}
	if o.Listen == nil {
		o.Listen = system
	}
	network := "tcp"
	if s.Network == Unix {
		network = "unix"
	}
	raw, err := o.Listen(ctx, network, s.Address)
	if err != nil {
		return nil, err
	}
	if s.Network == Unix {
		mode, err := s.mode()
		if err == nil {
			err = os.Chmod(s.Address, mode)
		}
		if err != nil {
			_ = raw.Close() // never used
			return nil, fmt.Errorf("set the mode of the socket: %w", err)
		}
	}
	l := patient(ctx, raw, o)
	l.from = from
	return l, nil
}

// system opens a socket of the system.
func system(ctx context.Context, network, address string) (net.Listener, error) {
	if network == "unix" {
		clearSocket(ctx, address)
	}
	// Without TCP's own keep-alive, every 15 s by default: MQTT's finds what is dead,
	// and an idle site may have asked for one of many minutes. A client that asks for none
	// gets TCP's when it has connected.
	return relisten.Listen(ctx, &net.ListenConfig{KeepAlive: -1}, network, address)
}

func patient(ctx context.Context, raw net.Listener, o Options) *Listener {
	l := &Listener{Listener: raw, ctx: ctx, o: o}
	if o.PerSecond > 0 {
		l.limit = rate.NewLimiter(rate.Limit(o.PerSecond), max(1, int(o.PerSecond)))
	}
	return l
}

// Accept returns the next connection; it fails only when the listener is closed
// or the context of Open has ended.
func (l *Listener) Accept() (net.Conn, error) {
	if l.limit != nil {
		if err := l.limit.Wait(l.ctx); err != nil {
			return nil, net.ErrClosed
		}
	}
	tries := retry.Backoff{Policy: retry.Policy{Min: 5 * time.Millisecond, Max: 500 * time.Millisecond}}
	for {
		c, err := l.Listener.Accept()
		if err == nil && !allowed(l.from, c.RemoteAddr()) {
			l.o.Refused(c.RemoteAddr())
			_ = c.Close() // never used
			continue
		}
		if err == nil || errors.Is(err, net.ErrClosed) || l.ctx.Err() != nil {
			return c, err
		}
		wait := tries.Next()
		l.o.Failed(err, wait)
		if retry.Sleep(l.ctx, wait) != nil {
			return nil, net.ErrClosed
		}
	}
}

// clearSocket removes a Unix socket that a killed process left behind.
func clearSocket(ctx context.Context, path string) {
	if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = c.Close() // a server answers there: Listen will fail with that
		return
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path) // Listen says what is wrong if this failed
	}
}
