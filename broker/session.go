package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/protocol"
)

// An identity is what is counted over all sessions of one name of identity.
type identity struct {
	sessions int          // protected by Broker.mu
	unread   atomic.Int64 // bytes of packets that have not arrived whole
}

// A lastWill is what the broker publishes when the client is gone.
type lastWill struct {
	m      *message // nil: none
	expiry uint32   // seconds from then; 0: none
}

// subscriptions are those of one session.
type subscriptions struct {
	filters map[string]struct{} // nil until the first
	levels  int                 // of all filters together
}

// A session is an accepted connection. It ends with the connection. Fields
// without a remark are used on the connection's own goroutine, or do not change.
type session struct {
	b         *Broker
	conn      *conn
	id        access.Identity
	client    string
	v5        bool
	terse     bool   // the client wants no reason strings. [MQTT-3.1.2-29]
	ephemeral bool   // CONNECT asked for a session expiry of 0
	keepAlive uint16 // seconds; 0: none
	largest   int    // bytes of a packet that the client takes; 0: any
	limiter   *rate.Limiter

	will lastWill

	use    *identity // what all sessions of its identity use
	unread int       // bytes of the packet being read that are counted in use

	subs    subscriptions
	replays *replays            // of retained messages to new subscriptions; nil until the first
	pace    *transport.Pace     // at which it publishes; nil until the first message
	aliases map[uint16]string   // topic aliases that the client set
	pending map[uint16]struct{} // packet ids of QoS 2 that wait for PUBREL

	clean atomic.Bool   // the client said good-bye, so its will is not sent
	done  chan struct{} // closed when all traces of the connection are gone
}

func newSession(b *Broker, c *conn, id access.Identity, p *packets.Packet) *session {
	v5 := p.ProtocolVersion == 5
	s := &session{
		b: b, conn: c, id: id, client: strings.Clone(p.Connect.ClientIdentifier), v5: v5,
		terse:     p.Properties.RequestProblemInfoFlag && p.Properties.RequestProblemInfo == 0,
		ephemeral: p.Properties.SessionExpiryInterval == 0,
		keepAlive: b.keepAlive(p.Connect.Keepalive, v5),
		largest:   int(p.Properties.MaximumPacketSize),
		done:      make(chan struct{}),
	}
	window := b.o.Limits.Unacknowledged
	if n := int(p.Properties.ReceiveMaximum); n > 0 { // [MQTT-3.3.4-9]
		window = min(window, n)
	}
	c.SetWindow(window)
	if b.o.Limits.PublishRate > 0 {
		s.limiter = rate.NewLimiter(rate.Limit(b.o.Limits.PublishRate), b.o.Limits.PublishBurst)
	}
	return s
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
	if s == nil {
		b.log.Debug("connection ended before its session", "listener", c.listener.Name, "remote", c.remote(), "err", err)
		return
	}
	for filter := range s.subs.filters {
		s.forget(filter)
	}
	if s.will.m != nil && !s.clean.Load() && b.ctx.Err() == nil {
		b.sendWill(s)
	}
	b.metrics.clients.down()
	b.metrics.inflight.Add(-int64(c.Forget()))
	b.mu.Lock()
	delete(b.sessions, s.client)
	if s.use.sessions--; s.use.sessions == 0 {
		delete(b.identities, s.id.Name)
	}
	b.mu.Unlock()
	close(s.done)
	b.metrics.disconnected(s, err)
	b.log.Info("client disconnected", "client", s.client, "listener", c.listener.Name, "clean", s.clean.Load(), "err", err)
}

// sendWill sends the last will of a session that ends. A will delay ends with the
// session, and so at once. [MQTT-3.1.3-9]
func (b *Broker) sendWill(s *session) {
	w := s.will.m
	w.expires = expiryOf(s.will.expiry, time.Now())
	if err := b.accepted(s, w, func() { b.distribute(w, s.waiting(patience)) }); err != nil {
		b.log.Warn("last will not taken", "client", s.client, "topic", w.topic, "err", err)
		return
	}
	b.metrics.wills.Inc()
}

// accepted hands a message to the owner of the broker, and if that takes it, does
// what is to be done with it. If it is to be retained, there is room for it.
func (b *Broker) accepted(s *session, m *message, do func()) error {
	if m.retain && len(m.payload) > 0 {
		ok, whose := b.retained.Reserve(m.topic, m.owner, m.size())
		if !ok {
			b.metrics.refused("publish", "retained_bytes")
			return protocol.Errorf(protocol.Unavailable, "no room to retain %d bytes on %s: the limit of %s is reached", m.size(), m.topic, whose)
		}
		defer b.retained.Release(m.owner, m.size())
	}
	if err := b.acceptPublish(s, m); err != nil {
		return err
	}
	do()
	return nil
}

// waiting is how long messages of the client may wait for their subscribers, in all.
func (s *session) waiting(most time.Duration) *transport.Waiting {
	if s.pace == nil {
		s.pace = &transport.Pace{}
	}
	return s.pace.Waiting(most)
}

// acceptPublish hands a message to the owner of the broker.
func (b *Broker) acceptPublish(s *session, m *message) error {
	if b.o.Accept == nil {
		return nil
	}
	begun := time.Now()
	err := b.o.Accept(b.ctx, s.id, m.public())
	b.metrics.acceptSeconds.Observe(time.Since(begun).Seconds())
	if err != nil {
		b.metrics.refused("publish", string(protocol.KindOf(err)))
	}
	return err
}

// disconnect ends a connection for a reason, which an MQTT 5 client is told.
func (b *Broker) disconnect(c *conn, code packets.Code) {
	if s := c.session.Load(); s != nil && s.v5 && c.End(code.Code) {
		p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: 5, ReasonCode: code.Code}
		if !s.terse {
			p.Properties.ReasonString = code.Reason
		}
		_ = b.send(c, &p, p.DisconnectEncode) // a connection that is gone needs no reason
	}
	_ = c.Close() // never fails
}

// send encodes a packet and queues it. encode is the method of p that encodes it. A
// reason string is left out if the packet is too large for the client with it.
// [MQTT-3.2.2-19] [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3]
func (b *Broker) send(c *conn, p *packets.Packet, encode func(*bytes.Buffer) error) error {
	var buf bytes.Buffer
	if err := encode(&buf); err != nil {
		return fmt.Errorf("encode %s: %w", packet.Type(p.FixedHeader.Type), err)
	}
	if s := c.session.Load(); s != nil && s.largest > 0 && buf.Len() > s.largest && p.Properties.ReasonString != "" {
		p.Properties.ReasonString = ""
		buf.Reset()
		if err := encode(&buf); err != nil {
			return fmt.Errorf("encode %s: %w", packet.Type(p.FixedHeader.Type), err)
		}
	}
	_, err := c.Write(buf.Bytes())
	b.metrics.sent(buf.Len())
	return err
}

// tlsState is the state of the TLS connection under c, or nil.
func tlsState(c *conn) *tls.ConnectionState {
	t, ok := c.Raw().(*tls.Conn)
	if !ok {
		over, wraps := c.Raw().(interface{ NetConn() net.Conn }) // a WebSocket
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

// reasonString is err as an MQTT reason string: short, valid UTF-8, no controls.
func reasonString(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}

// malformed is err, with a reason code if it has none.
func malformed(err error) error {
	if _, ok := codeOf(err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", packets.ErrMalformedPacket, err)
}

// codeOf is the reason code of an error in the packets of a client.
func codeOf(err error) (packets.Code, bool) {
	if bad, ok := errors.AsType[*packet.Error](err); ok {
		return packets.Code{Code: bad.Code, Reason: reasonString(bad)}, true
	}
	code, ok := errors.AsType[packets.Code](err)
	return code, ok && code.Code >= packets.ErrUnspecifiedError.Code
}
