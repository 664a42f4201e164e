// Package door lets clients in: it opens the listeners of a broker, counts each connection from its accept on, and
// says in the log and in the metrics for whom there was no room.
package door

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/internal/refusals"
)

// left is how the reasons end of WebSocket clients that have left in a handshake, as net/http says them, or that gave way, or whose
// time was over, which counts as such.
var left = []string{"i/o timeout", io.EOF.Error(), syscall.ECONNRESET.Error(), syscall.EPIPE.Error(), net.ErrClosed.Error()}

// Options configure a Door. All but Listen are required.
type Options struct {
	Limits  *limits.Limits // with defaults
	Metrics *metrics.Metrics
	Refused *refusals.Log
	Logger  *slog.Logger
	// Listen opens the sockets. Nil: those of the system.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// A Door counts the connections of all listeners of a broker. Its methods may be called concurrently.
type Door struct {
	o     Options
	peers *peers.Table // connections, by the address of the client
}

// New returns a Door without listeners.
func New(o Options) *Door {
	l := o.Limits
	return &Door{o: o, peers: peers.New(peers.Limits{All: l.Connections, Machines: l.MachineConnections, Open: l.ConnectionsPerAddress, PerSecond: l.ConnectRatePerAddress})}
}

// A Listener is one that is open. Its methods may be called concurrently.
type Listener struct {
	// Spec is what it was opened with.
	Spec *listen.Spec
	// Close ends Accept. Further calls do nothing.
	Close func()

	door   *Door
	accept net.Listener
}

// Open listens on the address of a valid Spec. ctx ends Accept, too.
func (d *Door) Open(ctx context.Context, spec listen.Spec) (*Listener, error) {
	log := d.o.Logger.With("listener", spec.Name)
	accept, err := listen.Serve(ctx, &spec, listen.Options{
		PerSecond: d.o.Limits.ConnectRate, Listen: d.o.Listen, Upgrade: d.o.Limits.ConnectTimeout, MaxBytes: int64(d.o.Limits.PacketBytes), Logger: log,
		Failed: func(err error, retry time.Duration) {
			d.o.Metrics.AcceptErrors.Inc()
			log.Warn("accept failed", "retry_in", retry, "err", err)
		},
		Refused: func(peer net.Addr) {
			d.o.Metrics.Refused("connect", "address")
			if d.o.Refused.Show("address", netaddr.Network(peer.String()), spec.Name) {
				log.Warn("connect refused: the listener does not take this address", "remote", peer.String())
			}
		},
		Enter: d.enter,
		OriginRefused: func(remote, origin string) {
			d.o.Metrics.Refused("connect", "origin")
			origin = refusals.Shortened(origin)
			d.o.Refused.Warn("origin", netaddr.Network(remote), origin, "connect refused: pages of this origin may not connect, see origins of the listener", "listener", spec.Name, "remote", remote, "origin", origin)
		},
		TLSFailed: func(remote, why string) {
			if !slices.ContainsFunc(left, func(with string) bool { return strings.HasSuffix(why, with) }) {
				d.tlsFailed(spec.Name, remote, why)
			}
		},
		TimedOut: func() { d.o.Metrics.Refused("connect", "timeout") },
		Unread:   func(err error) { log.Error("certificate not read", "err", err) },
	})
	if err != nil {
		return nil, err
	}
	return &Listener{Spec: &spec, door: d, accept: accept, Close: sync.OnceFunc(func() { _ = accept.Close() })}, nil
}

// Address is where the listener listens, host:port or a path.
func (l *Listener) Address() string { return l.accept.Addr().String() }

// Accept returns the next connection for which there is room, which has begun a deadline of its own. The caller ends
// its entry. The error says that the listener is closed.
func (l *Listener) Accept() (net.Conn, *peers.Entry, error) {
	for {
		raw, err := l.accept.Accept()
		if err != nil {
			return nil, nil, err
		}
		entry, ok := listen.Entered(raw)
		if !ok {
			entry, ok = l.door.enter(layers.Socket(raw))
		}
		if !ok {
			_ = raw.Close() // never used
			continue
		}
		_ = raw.SetDeadline(time.Now().Add(l.door.o.Limits.ConnectTimeout)) // a dead transport shows at the first read
		return raw, entry, nil
	}
}

// Secure has the TLS handshake of a connection of a listener done, within its deadline; without TLS it does nothing. The caller
// closes the connection on an error, which is counted and in the log, but for a deadline that is over, and a client that has left.
func (d *Door) Secure(conn net.Conn, entry *peers.Entry, listener string) error {
	secure, ok := layers.Find[*tls.Conn](conn)
	if !ok {
		return nil
	}
	err := secure.Handshake()
	switch {
	case err == nil:
		entry.Progress(peers.Secured)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
	default:
		d.tlsFailed(listener, conn.RemoteAddr().String(), err.Error())
	}
	return err
}

// tlsFailed counts and logs a client that failed in TLS at a listener.
func (d *Door) tlsFailed(listener, remote, why string) {
	d.o.Metrics.Refused("connect", "tls")
	d.o.Refused.Warn("tls", netaddr.Network(remote), why, "connect refused: the TLS handshake failed", "listener", listener, "remote", remote, "err", refusals.Shortened(why))
}

// enter counts a connection by its socket; false if there is no room for it.
func (d *Door) enter(socket net.Conn) (*peers.Entry, bool) {
	peer := socket.RemoteAddr()
	entry, gaveWay := d.peers.Enter(peers.Address(peer), time.Now(), socket)
	for _, one := range gaveWay {
		v := one.Verdict()
		d.o.Metrics.Refused("connect", v.Refusal())
		d.o.Refused.Warn("gave way", netaddr.Network(one.Address()), v.Key(), "connection closed that had not identified itself: others wait, and there are as many as there may be", "address", one.Address(), "limit", v.Key())
	}
	v := entry.Verdict()
	if v != peers.Full {
		return entry, true
	}
	d.o.Metrics.Refused("connect", v.Refusal())
	d.o.Refused.Warn(v.Refusal(), netaddr.Network(peer.String()), v.Key(), "connection closed: there are as many as there may be", "remote", peer.String(), "limit", v.Key())
	return entry, false
}
