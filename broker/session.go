package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

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

	will       *message
	willExpiry uint32 // seconds; 0: none

	filters map[string]struct{} // of its subscriptions; nil until the first
	aliases map[uint16]string   // topic aliases that the client set
	pending map[uint16]struct{} // packet ids of QoS 2 that wait for PUBREL

	clean atomic.Bool   // the client said good-bye, so its will is not sent
	done  chan struct{} // closed when all traces of the connection are gone
}

func newSession(b *Broker, c *conn, id access.Identity, p *packets.Packet) *session {
	v5 := p.ProtocolVersion == 5
	s := &session{
		b: b, conn: c, id: id, client: p.Connect.ClientIdentifier, v5: v5,
		terse:     p.Properties.RequestProblemInfoFlag && p.Properties.RequestProblemInfo == 0,
		ephemeral: p.Properties.SessionExpiryInterval == 0,
		keepAlive: b.keepAlive(p.Connect.Keepalive, v5),
		largest:   int(p.Properties.MaximumPacketSize),
		done:      make(chan struct{}),
	}
	c.setWindow(p.Properties.ReceiveMaximum, v5)
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
		b.log.Debug("connection ended before its session", "listener", c.listener.Name, "remote", c.RemoteAddr().String(), "err", err)
		return
	}
	for filter := range s.filters {
		s.forget(filter)
	}
	if s.will != nil && !s.clean.Load() && b.ctx.Err() == nil {
		b.sendWill(s)
	}
	b.metrics.clients.down()
	b.metrics.inflight.Add(-int64(c.abandon()))
	b.mu.Lock()
	delete(b.sessions, s.client)
	if b.perName[s.id.Name]--; b.perName[s.id.Name] == 0 {
		delete(b.perName, s.id.Name)
	}
	b.mu.Unlock()
	close(s.done)
	b.metrics.disconnected(s, err)
	b.log.Info("client disconnected", "client", s.client, "listener", c.listener.Name, "clean", s.clean.Load(), "err", err)
}

// sendWill sends the last will of a session that ends. A will delay ends with the
// session, and so at once. [MQTT-3.1.3-9]
func (b *Broker) sendWill(s *session) {
	w := s.will
	w.expires = expiryOf(&packets.Properties{MessageExpiryInterval: s.willExpiry}, time.Now())
	if err := b.acceptPublish(s, w); err != nil {
		b.log.Warn("last will not taken", "client", s.client, "topic", w.topic, "err", err)
		return
	}
	b.distribute(w, &waiting{patience})
	b.metrics.wills.Inc()
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
	if s := c.session.Load(); s != nil && s.v5 && c.end(code) {
		p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: 5, ReasonCode: code.Code}
		if !s.terse {
			p.Properties.ReasonString = code.Reason
		}
		_ = c.send(&p, p.DisconnectEncode) // a connection that is gone needs no reason
	}
	_ = c.Close() // never fails
}

// send encodes a packet and queues it. encode is the method of p that encodes it.
func (c *conn) send(p *packets.Packet, encode func(*bytes.Buffer) error) error {
	var buf bytes.Buffer
	if err := encode(&buf); err != nil {
		return err
	}
	_, err := c.Write(buf.Bytes())
	c.b.metrics.sent(buf.Len())
	return err
}

// tlsState is the state of the TLS connection under c, or nil.
func tlsState(c *conn) *tls.ConnectionState {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		over, wraps := c.Conn.(interface{ NetConn() net.Conn }) // a WebSocket
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

// codeOf is the reason code of an error in the packets of a client.
func codeOf(err error) (packets.Code, bool) {
	code, ok := errors.AsType[packets.Code](err)
	return code, ok && code.Code >= packets.ErrUnspecifiedError.Code
}
