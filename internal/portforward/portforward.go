// Package portforward hands on to containers what arrives at published ports on IPv6 addresses
// of the node. The containers have IPv4 addresses alone, between which and IPv6 the kernel does
// not translate, so that each connection is two: a container sees the node as its client.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// maxConnections bounds the connections, or the clients of UDP, of one port: each takes two
	// descriptors of the process.
	maxConnections = 1024
	// maxInAll bounds those of all ports of a Forwarder.
	maxInAll = 4096
	// dialTimeout bounds the connection to a container, in which nothing is lost on the way.
	dialTimeout = 10 * time.Second
	// idleTimeout is how long the replies to a client of UDP find their way back after its last
	// packet.
	idleTimeout = 90 * time.Second
)

// Options say from where nothing is handed on.
type Options struct {
	// Refuse reports whether what arrives by a link-local address on an interface is refused.
	// Nil: none is.
	Refuse func(link string) bool
	Logger *slog.Logger
}

// A Forwarder serves the ports of several containers. Its methods may be called concurrently.
type Forwarder struct {
	opts Options
	all  chan struct{} // one for each connection

	mu     sync.Mutex // protects what follows
	served map[string]*service
}

// A service is what one container publishes.
type service struct {
	ip    string // of the container
	ports []protocol.Port
	open  []*port // one for each of ports; nil: it could not be opened yet
	err   error   // why
}

// New returns a Forwarder that serves nothing.
func New(opts Options) *Forwarder {
	return &Forwarder{opts: opts, all: make(chan struct{}, maxInAll), served: map[string]*service{}}
}

// Set serves, for the container of a key, those of its ports that are published on IPv6
// addresses: on one that is named, or on all where none is. It takes the place of what was set
// before. An error says which port cannot be opened; Retry tries it again.
func (f *Forwarder) Set(key, ip string, ports []protocol.Port) error {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p protocol.Port) bool { return !onIPv6(p) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.served[key]; s != nil && s.ip == ip && slices.Equal(s.ports, ports) {
		return f.open(s)
	}
	f.remove(key)
	if len(ports) == 0 {
		return nil
	}
	s := &service{ip: ip, ports: ports, open: make([]*port, len(ports))}
	f.served[key] = s
	return f.open(s)
}

// onIPv6 reports whether a port is published on an IPv6 address.
func onIPv6(p protocol.Port) bool {
	ip, err := netip.ParseAddr(p.HostIP)
	return p.HostIP == "" || err == nil && ip.Is6()
}

// open opens the ports of a service that are not open yet. The caller holds the lock.
func (f *Forwarder) open(s *service) error {
	var errs []error
	for i, p := range s.ports {
		if s.open[i] != nil {
			continue
		}
		o, err := f.listen(p, s.ip)
		if err != nil {
			errs = append(errs, fmt.Errorf("port %d/%s on IPv6: %w", p.Host, network(p), err))
			continue
		}
		s.open[i] = o
	}
	s.err = errors.Join(errs...)
	return s.err
}

// Remove ends what is served for a container, with its connections.
func (f *Forwarder) Remove(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(key)
}

func (f *Forwarder) remove(key string) {
	if s := f.served[key]; s != nil {
		for _, o := range s.open {
			o.close()
		}
		delete(f.served, key)
	}
}

// Retry opens the ports that could not be opened.
func (f *Forwarder) Retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, s := range f.served {
		if s.err != nil && f.open(s) == nil {
			f.opts.Logger.Info("ports on IPv6 are open now", "container", key)
		}
	}
}

// Close ends all.
func (f *Forwarder) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.served {
		f.remove(key)
	}
}

// enter takes room for one connection, and reports whether there was some; leave gives it back.
func (f *Forwarder) enter() bool {
	select {
	case f.all <- struct{}{}:
		return true
	default:
		return false
	}
}

func (f *Forwarder) leave() { <-f.all }

// refused reports whether what arrives from an address is refused.
func (f *Forwarder) refused(from netip.AddrPort) bool {
	return f.opts.Refuse != nil && from.Addr().Zone() != "" && f.opts.Refuse(from.Addr().Zone())
}

func network(p protocol.Port) string {
	if p.Protocol == "udp" {
		return "udp"
	}
	return "tcp"
}

// Check returns an error where no program could listen on a port of the node on IPv6. A node
// without IPv6 is none where the port names no address: there is nothing to serve.
func Check(p protocol.Port) error {
	if !onIPv6(p) {
		return nil
	}
	var closer interface{ Close() error }
	var err error
	if network(p) == "udp" {
		closer, err = net.ListenPacket("udp6", address(p))
	} else {
		closer, err = net.Listen("tcp6", address(p))
	}
	if err != nil {
		return withoutIPv6(p, err)
	}
	return closer.Close()
}

// address is where a port listens.
func address(p protocol.Port) string {
	ip := p.HostIP
	if ip == "" {
		ip = "::"
	}
	return net.JoinHostPort(ip, fmt.Sprint(p.Host))
}

// withoutIPv6 returns nil for the error of a node that has no IPv6, where a port is published on
// all addresses.
func withoutIPv6(p protocol.Port, err error) error {
	if p.HostIP == "" && (errors.Is(err, syscall.EAFNOSUPPORT) || strings.Contains(err.Error(), "no suitable address")) {
		return nil
	}
	return err
}

// listen opens a port and serves it until it is closed.
func (f *Forwarder) listen(p protocol.Port, ip string) (*port, error) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &port{forwarder: f, to: net.JoinHostPort(ip, fmt.Sprint(p.Container)), ctx: ctx, cancel: cancel, open: map[interface{ Close() error }]bool{}}
	var err error
	if network(p) == "udp" {
		err = o.serveUDP(address(p))
	} else {
		err = o.serveTCP(address(p))
	}
	if err != nil {
		cancel()
		return o, withoutIPv6(p, err)
	}
	return o, nil
}

// A port is one that is open.
type port struct {
	forwarder *Forwarder
	to        string // address and port of the container
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu     sync.Mutex // protects what follows
	closed bool
	open   map[interface{ Close() error }]bool
}

// hold closes c with the port, and reports whether that is not closed yet.
func (o *port) hold(c interface{ Close() error }) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		_ = c.Close() // it is not used
		return false
	}
	o.open[c] = true
	return true
}

// drop closes what is held.
func (o *port) drop(c interface{ Close() error }) {
	o.mu.Lock()
	delete(o.open, c)
	o.mu.Unlock()
	_ = c.Close() // what was on the way is lost, as on any network
}

// close ends the port and all of its connections; nil is none.
func (o *port) close() {
	if o == nil {
		return
	}
	o.cancel()
	o.mu.Lock()
	o.closed = true
	for c := range o.open {
		_ = c.Close() // see drop
	}
	o.mu.Unlock()
	o.running.Wait()
}
