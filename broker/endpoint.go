package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
	"golang.org/x/time/rate"
)

// An endpoint is one listener, in the form that mochi serves.
type endpoint struct {
	b      *Broker
	l      Listener
	accept net.Listener
	stop   func() // closes accept, and what feeds it
}

// open listens on l's address.
func (b *Broker) open(ctx context.Context, l Listener) (*endpoint, error) {
	network := "tcp"
	if l.Network == Unix {
		network = "unix"
		clearSocket(l.Address)
	}
	raw, err := (&net.ListenConfig{}).Listen(ctx, network, l.Address)
	if err != nil {
		return nil, err
	}
	var ln net.Listener = newPatient(b.ctx, raw, b.o.Limits.ConnectRate, b.metrics, b.log.With("listener", l.Name))
	if l.TLS != nil && l.Network != Unix {
		ln = tls.NewListener(ln, l.TLS)
	}
	if l.Network == WS {
		ln = listenWebSocket(ln, b.o.Limits)
	}
	return &endpoint{b: b, l: l, accept: ln, stop: sync.OnceFunc(func() { _ = ln.Close() })}, nil
}

// Init implements listeners.Listener.
func (e *endpoint) Init(*slog.Logger) error { return nil }

// ID implements listeners.Listener.
func (e *endpoint) ID() string { return e.l.Name }

// Address implements listeners.Listener.
func (e *endpoint) Address() string { return e.accept.Addr().String() }

// Protocol implements listeners.Listener.
func (e *endpoint) Protocol() string { return string(e.l.Network) }

// Close implements listeners.Listener. The broker has closed the clients before.
func (e *endpoint) Close(listeners.CloseFn) { e.close() }

func (e *endpoint) close() { e.stop() }

// Serve implements listeners.Listener: it accepts until the endpoint is closed.
func (e *endpoint) Serve(establish listeners.EstablishFn) {
	for {
		raw, err := e.accept.Accept()
		if err != nil {
			return
		}
		c := &conn{Conn: raw, b: e.b, listener: e.l, gone: make(chan struct{})}
		if !e.b.track(c) {
			e.b.metrics.refused("connect", "connections")
			_ = raw.Close() // never used
			continue
		}
		go func() { // counted by track
			defer e.b.untrack(c)
			_ = raw.SetDeadline(time.Now().Add(e.b.o.Limits.ConnectTimeout)) // a dead transport shows at the first read
			err := establish(e.l.Name, c)
			_ = c.Close() // never fails
			e.b.ended(c, err)
		}()
	}
}

// patient is a net.Listener that outlives a lack of file descriptors: it waits
// and tries again, where mochi's listeners would stop for good. It also holds
// connections back above a rate; they wait in the system's queue.
type patient struct {
	net.Listener
	ctx     context.Context // ends with the broker
	limit   *rate.Limiter
	metrics *metrics
	log     *slog.Logger
}

func newPatient(ctx context.Context, l net.Listener, perSecond float64, m *metrics, log *slog.Logger) *patient {
	p := &patient{Listener: l, ctx: ctx, metrics: m, log: log}
	if perSecond > 0 {
		p.limit = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
	}
	return p
}

// Accept returns the next connection; it fails only when the listener is closed
// or the broker stops.
func (p *patient) Accept() (net.Conn, error) {
	if p.limit != nil {
		if err := p.limit.Wait(p.ctx); err != nil {
			return nil, net.ErrClosed
		}
	}
	wait := 5 * time.Millisecond
	for {
		c, err := p.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || p.ctx.Err() != nil {
			return c, err
		}
		p.metrics.acceptErrors.Inc()
		p.log.WarnContext(p.ctx, "accept failed", "retry_in", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
			return nil, net.ErrClosed
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}
