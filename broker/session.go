package broker

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/refusals"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/answer"
	"github.com/colonyfleet/colony/broker/inflight"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/sessions/bounds"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/broker/wills"
)

// An identity is what is counted over all sessions of one name of identity.
type identity struct {
	sessions int          // protected by Broker.mu
	unread   atomic.Int64 // bytes of packets that have not arrived whole
}

// terms are what a client asked for in CONNECT, and got. They do not change.
type terms struct {
	v5        bool
	terse     bool   // the client wants no reason strings. [MQTT-3.1.2-29]
	asked     uint32 // the session expiry in CONNECT, in seconds
	keepAlive uint16 // seconds; 0: none
	largest   int    // bytes of a packet that the client takes; 0: any
	window    int    // messages that may be unacknowledged
	limiter   *rate.Limiter
}

// takes is what counts of the client for its answers.
func (t *terms) takes() answer.Client {
	return answer.Client{V5: t.v5, Terse: t.terse, Largest: t.largest}
}

// usage counts what one connection does. It may be read at any time.
type usage struct {
	begun                      time.Time
	received, sent, subscribed atomic.Int64 // messages, and subscriptions
}

// A session is an accepted connection. Fields without a remark are used on the
// connection's own goroutine, or do not change.
type session struct {
	b      *Broker
	client string
	id     access.Identity
	// account is whom it counts for, see access.Account.
	account string
	sub     *routing.Subscriber
	conn    *conn
	link    *sessions.Link // to what is stored; nil: nothing is
	expiry  uint32         // of the session, in seconds; 0 ends with the connection
	terms
	usage

	will wills.Will

	use    *identity // what all sessions of its identity use
	unread int       // bytes of the packet being read that are counted in use

	pace    *transport.Pace // at which it publishes; nil until the first message
	aliases answer.Aliases
	pending inflight.Received

	clean atomic.Bool   // the client said good-bye, so its will is not sent
	done  chan struct{} // closed when no trace of the connection is left

	term *time.Timer // ends the connection with its certificate; nil: it has none
}

func newSession(b *Broker, c *conn, id access.Identity, p *packets.Packet) *session {
	v5 := p.ProtocolVersion == 5
	s := &session{
		b: b, conn: c, client: strings.Clone(p.Connect.ClientIdentifier), id: id, done: make(chan struct{}),
		terms: terms{
			v5: v5, terse: p.Properties.RequestProblemInfoFlag && p.Properties.RequestProblemInfo == 0, asked: bounds.Asked(p.ProtocolVersion, p.Connect.Clean, p.Properties.SessionExpiryInterval),
			keepAlive: b.o.Limits.KeepAliveOf(p.Connect.Keepalive, v5), largest: int(p.Properties.MaximumPacketSize),
		},
		usage: usage{begun: time.Now()},
	}
	window := b.o.Limits.Unacknowledged
	if n := int(p.Properties.ReceiveMaximum); n > 0 { // [MQTT-3.3.4-9]
		window = min(window, n)
	}
	if s.keepAlive == 0 {
		c.KeepAlive()
	}
	s.window = window
	c.SetWindow(window)
	if b.o.Limits.PublishRate > 0 {
		s.limiter = rate.NewLimiter(rate.Limit(b.o.Limits.PublishRate), b.o.Limits.PublishBurst)
	}
	return s
}

// Transport implements routing.Connection.
func (s *session) Transport() *transport.Conn { return s.conn.Conn }

// V5 implements routing.Connection.
func (s *session) V5() bool { return s.v5 }

// Panicked implements routing.Connection.
func (s *session) Panicked(what string, r any) {
	_ = s.b.panicked(s.conn, what, r)
	s.b.disconnect(s.conn, packets.ErrUnspecifiedError)
}

func (s *session) version() byte {
	if s.v5 {
		return 5
	}
	return 4
}

// wait keeps a client that publishes too fast from being read.
func (s *session) wait(ctx context.Context) {
	if s.limiter != nil {
		_ = s.limiter.Wait(ctx) // fails only when the broker stops
	}
}

// ended is called when a connection is done with.
func (b *Broker) ended(c *conn, err error) {
	s := c.session.Load()
	if why := c.why.Load(); why != nil && errors.Is(err, net.ErrClosed) {
		err = errors.New(*why)
	}
	if s == nil {
		b.log.Debug("connection ended before its session", "listener", c.listener.Name, "remote", c.remote(), "err", err)
		return
	}
	if s.term != nil {
		s.term.Stop()
	}
	b.retire(s)
	b.metrics.Inflight.Add(-int64(c.Forget()))
	b.mu.Lock()
	delete(b.sessions, s.client)
	if s.use.sessions--; s.use.sessions == 0 {
		delete(b.identities, s.id.Name)
	}
	b.mu.Unlock()
	b.metrics.Clients.Down() // its client id is free
	b.metrics.Disconnected(s.conn.Ending(), errors.Is(err, errBye))
	b.changed(s, false, err)
	close(s.done)
	b.log.Debug("client disconnected", "client", refusals.Shortened(s.client), "listener", c.listener.Name, "clean", s.clean.Load(), "err", err)
}

func (b *Broker) changed(s *session, connected bool, ended error) {
	if b.o.Changed != nil {
		info := access.ConnectInfo{Listener: s.conn.listener.Name, Remote: s.conn.remote(), ClientID: s.client}
		b.o.Changed(access.Change{ConnectInfo: info, Identity: s.id, Connected: connected, Ended: ended, Clean: errors.Is(ended, errBye)})
	}
}

// waiting is how long messages of the client may wait for their subscribers, in all.
func (s *session) waiting(most time.Duration) *transport.Waiting {
	if s.pace == nil {
		s.pace = &transport.Pace{}
	}
	return s.pace.Waiting(most)
}

// disconnect ends a connection for a reason, which an MQTT 5 client gets, unless it is still to get CONNACK. [MQTT-3.14.0-1]
func (b *Broker) disconnect(c *conn, code packets.Code) {
	if s := c.session.Load(); s != nil && c.End(code.Code) {
		c.why.Store(&code.Reason)
		c.greeting.Lock()
		if s.v5 && c.greeted {
			frame, err := answer.Disconnect(s.takes(), code)
			_ = b.write(c, frame, err) // a connection that has ended needs no reason
		}
		c.greeting.Unlock()
	}
	_ = c.Close() // never fails
}

// send encodes a packet and queues it, within the maximum packet size of the client. encode is
// the method of p that encodes it.
func (b *Broker) send(c *conn, p *packets.Packet, encode func(*bytes.Buffer) error) error {
	largest := 0
	if s := c.session.Load(); s != nil {
		largest = s.largest
	}
	frame, err := answer.Encode(p, largest, encode)
	return b.write(c, frame, err)
}

// write queues a packet, unless err says that there is none.
func (b *Broker) write(c *conn, frame []byte, err error) error {
	if err != nil {
		return err
	}
	_, err = c.Write(frame)
	b.metrics.Sent(len(frame))
	return err
}
