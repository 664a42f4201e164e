// Package nameserver is a small DNS server for containers: it answers for the names
// that it was given, and passes every other question on to the machine's name servers.
//
// Each asker, as a rule one container, has two sockets of its own and a zone of its
// own. The server owns the sockets from Serve on. It keeps no cache: what it knows is
// in memory, and the rest is the business of the name servers that it asks.
package nameserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Sockets are where the questions of one asker arrive.
type Sockets struct {
	UDP net.PacketConn
	TCP net.Listener
}

// close closes what is open.
func (s Sockets) close() error {
	return errors.Join(s.UDP.Close(), s.TCP.Close())
}

// A Zone is what one asker gets to know. It must not change once it was handed over.
type Zone struct {
	// Names has the addresses of each name: lower case, without a dot at the end. A
	// name without addresses exists, and has none.
	Names map[string][]netip.Addr
	// Pointers has the name of each address, for questions about addresses.
	Pointers map[netip.Addr]string
	// Upstreams are asked about other names. Nil: those of SetUpstreams.
	Upstreams []netip.AddrPort
}

// Options bound what a server does. The zero value has the defaults.
type Options struct {
	// Timeout is how long one name server may take to answer, before the next one is
	// asked. Default 2 s: two of them fit into the 5 s that a resolver library waits.
	Timeout time.Duration
	// Concurrent is how many questions of one asker are passed on at a time. A further
	// one by UDP is dropped, for the asker to repeat it; one by TCP waits. Default 64.
	Concurrent int
	Logger     *slog.Logger // nil: none
}

const (
	defaultTimeout    = 2 * time.Second
	defaultConcurrent = 64
	// idleTimeout is how long a TCP connection may be without a question.
	idleTimeout = 10 * time.Second
	// maxConnections bounds the TCP connections of one asker.
	maxConnections = 16
	// maxQuestion is the longest question that is read, in bytes.
	maxQuestion = 4096
)

// Server is the name server of all askers. Its methods may be called concurrently.
type Server struct {
	o     Options
	nodes upstreams

	mu     sync.Mutex // protects askers and closed
	askers map[string]*asker
	closed bool
}

// An asker has a loop for each socket and a goroutine for each question that is passed on.
type asker struct {
	server  *Server
	sockets Sockets
	zone    atomic.Pointer[Zone]
	slots   chan struct{} // holds a token for each question that is passed on
	conns   chan struct{} // holds a token for each TCP connection
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// New returns a server without askers.
func New(o Options) *Server {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Concurrent <= 0 {
		o.Concurrent = defaultConcurrent
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, askers: map[string]*asker{}, nodes: newUpstreams(o.Timeout)}
}

// SetUpstreams says which name servers are asked from now on, in order of preference.
func (s *Server) SetUpstreams(list []netip.AddrPort) { s.nodes.set(list) }

// Serve answers the questions that arrive at sockets, until Stop or Close; it closes
// them then. An earlier asker of this key is stopped first.
func (s *Server) Serve(key string, sockets Sockets, zone *Zone) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &asker{
		server: s, sockets: sockets, ctx: ctx, cancel: cancel,
		slots: make(chan struct{}, s.o.Concurrent), conns: make(chan struct{}, maxConnections),
	}
	a.zone.Store(zone)
	s.mu.Lock()
	before, closed := s.askers[key], s.closed
	if !closed {
		s.askers[key] = a
		a.wg.Go(a.serveUDP)
		a.wg.Go(a.serveTCP)
	}
	s.mu.Unlock()
	if before != nil {
		before.stop()
	}
	if closed {
		a.stop()
	}
}

// SetZone gives an asker another zone. It reports whether there is such an asker.
func (s *Server) SetZone(key string, zone *Zone) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.askers[key]
	if a != nil {
		a.zone.Store(zone)
	}
	return a != nil
}

// Stop ends what Serve began, and returns when it has ended.
func (s *Server) Stop(key string) {
	s.mu.Lock()
	a := s.askers[key]
	delete(s.askers, key)
	s.mu.Unlock()
	if a != nil {
		a.stop()
	}
}

// Close stops all askers. A later Serve closes its sockets at once.
func (s *Server) Close() {
	s.mu.Lock()
	all := s.askers
	s.askers, s.closed = map[string]*asker{}, true
	s.mu.Unlock()
	for _, a := range all {
		a.stop()
	}
}

func (a *asker) stop() {
	a.cancel()
	if err := a.sockets.close(); err != nil {
		a.server.o.Logger.Warn("sockets of a name server not closed", "err", err)
	}
	a.wg.Wait()
}

// serveUDP reads questions until the socket is closed.
func (a *asker) serveUDP() {
	buf := make([]byte, maxQuestion)
	for {
		n, from, err := a.sockets.UDP.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || a.ctx.Err() != nil {
				return
			}
			continue // an answer to an asker that has left: the next read returns that error
		}
		zone := a.zone.Load()
		answer, forward := reply(buf[:n], zone)
		if !forward {
			a.sendUDP(answer, from)
			continue
		}
		select {
		case a.slots <- struct{}{}:
		default:
			continue
		}
		question := append([]byte(nil), buf[:n]...)
		a.wg.Go(func() {
			defer func() { <-a.slots }()
			a.sendUDP(a.ask(zone, "udp", question), from)
		})
	}
}

// sendUDP sends an answer. An asker that has left needs none.
func (a *asker) sendUDP(answer []byte, to net.Addr) {
	if answer != nil {
		_, _ = a.sockets.UDP.WriteTo(answer, to)
	}
}

// serveTCP accepts connections until the socket is closed.
func (a *asker) serveTCP() {
	for {
		select {
		case a.conns <- struct{}{}:
		case <-a.ctx.Done():
			return
		}
		conn, err := a.sockets.TCP.Accept()
		if err != nil {
			<-a.conns
			if errors.Is(err, net.ErrClosed) || a.ctx.Err() != nil {
				return
			}
			continue
		}
		a.wg.Go(func() {
			defer func() { <-a.conns }()
			a.serveConn(conn)
		})
	}
}

// serveConn answers the questions of one connection, one after another.
func (a *asker) serveConn(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	for {
		if conn.SetDeadline(time.Now().Add(idleTimeout)) != nil || a.ctx.Err() != nil {
			return
		}
		question, err := readTCP(conn, maxQuestion)
		if err != nil {
			return
		}
		zone := a.zone.Load()
		answer, forward := reply(question, zone)
		if forward {
			select {
			case a.slots <- struct{}{}:
			case <-a.ctx.Done():
				return
			}
			answer = a.ask(zone, "tcp", question)
			<-a.slots
		}
		if answer == nil || writeTCP(conn, answer) != nil {
			return
		}
	}
}

// ask forwards a question, and answers that the server failed where no upstream answers.
func (a *asker) ask(zone *Zone, network string, question []byte) []byte {
	answer, err := a.server.nodes.ask(a.ctx, network, question, zone.Upstreams)
	if err != nil {
		a.server.o.Logger.Debug("question not answered by a name server", "err", err)
		return serverFailure(question)
	}
	return answer
}

// readTCP reads a message behind its length, RFC 1035 section 4.2.2.
func readTCP(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errors.New("message too long")
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// writeTCP writes a message behind its length.
func writeTCP(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}
