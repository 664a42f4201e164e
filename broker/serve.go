package broker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/answer"
	"github.com/colonyfleet/colony/broker/inflight"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/transport"
)

// errBye ends the connection of a client that said DISCONNECT.
var errBye = errors.New("the client disconnected")

// attend reads the packets of an accepted connection until its end. It waits in
// few and small stack frames: there are as many of them as there are clients.
func (b *Broker) attend(c *conn) {
	defer b.untrack(c)
	s := c.session.Load()
	b.leave(c, b.readAll(c, s))
}

// leave ends a connection that is no longer read. A client that has ended its own direction gets the answers to
// what it sent before, unless it should have sent something meanwhile. [MQTT-3.1.2-22]
//
//go:noinline
func (b *Broker) leave(c *conn, err error) {
	switch inTime := c.AwaitAnswers(b.o.Limits.KeepAlive); {
	case errors.Is(err, transport.ErrDrained):
		err = packets.ErrSessionTakenOver
	case !inTime:
		err = packets.ErrKeepAliveTimeout
	}
	if code, ok := reason.Of(err); ok {
		b.disconnect(c, code) // [MQTT-4.13.1-1]
	}
	_ = c.Close() // never fails
	b.ended(c, err)
}

// readAll reads packets and serves them. A panic in the transport ends this connection
// alone, like one in serve.
func (b *Broker) readAll(c *conn, s *session) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = b.panicked(c, "a header", r)
		}
	}()
	for {
		s.grant()
		h, err := packet.ReadHeader(c)
		if err == nil {
			err = b.checkHeader(h, int64(b.o.Limits.PacketBytes), "limits.packetBytes")
		}
		if err != nil {
			return b.badHeader(c, h, err)
		}
		if h.Type == packet.Pingreq && h.Length == 0 { // in this small frame, as most packets of an idle client
			_, _ = c.Answer([]byte{byte(packet.Pingresp) << 4, 0}) // [MQTT-3.12.4-1]; a connection that has ended needs no answer
			b.metrics.Sent(2)
			continue
		}
		if err := b.serve(s, h); err != nil {
			return err
		}
	}
}

// badHeader says why no further packet comes.
//
//go:noinline
func (b *Broker) badHeader(c *conn, h packet.Header, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return packets.ErrKeepAliveTimeout
	}
	b.report(c, h.Type, nil, err)
	return err
}

// grant gives the client 1.5 times its keep-alive for the next bytes. [MQTT-3.1.2-22]
func (s *session) grant() { s.conn.Expect(time.Duration(s.keepAlive) * 1500 * time.Millisecond) }

// checkHeader counts a packet, and bounds its size, by a limit of a key, and what waits for all clients.
//
//go:noinline
func (b *Broker) checkHeader(h packet.Header, limit int64, key string) error {
	if int64(h.Total()) > limit { // [MQTT-3.2.2-15]
		return &packet.Error{Code: packet.PacketTooLarge, Reason: fmt.Sprintf("%s of %d bytes: the limit is %d; see %s", h.Type, h.Total(), limit, key)}
	}
	b.metrics.Received(h.Total())
	b.relieve() // of answers that are not read
	return nil
}

// readBody reads the rest of a packet. A large one may take longer than the keep-alive
// on a slow link, and the client cannot ping meanwhile; so each chunk has its time.
// What one takes that has not arrived whole is counted until forgetBody.
func (s *session) readBody(h packet.Header) (body []byte, err error) {
	if h.Length > s.conn.Buffered() {
		if err := s.grown(min(h.Length, packet.Chunk)); err != nil {
			return nil, err
		}
	}
	if h.Length <= packet.Chunk {
		body = make([]byte, h.Length)
		_, err = io.ReadFull(s.conn, body)
	} else {
		body, err = packet.ReadBody(s.conn, h.Length, s.grown)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, packets.ErrKeepAliveTimeout
	}
	return body, err
}

// grown is called while a body is read, with what it takes in addition.
func (s *session) grown(more int) error {
	if more == 0 {
		s.grant()
		return nil
	}
	s.unread += more
	s.conn.Hold(more)
	if n := s.use.unread.Add(int64(more)); n > s.b.o.Limits.UnreadPerIdentity {
		code := packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("%s has %d bytes of unfinished packets under way: the limit is %d; see limits.unreadPerIdentity", s.id.Name, n, s.b.o.Limits.UnreadPerIdentity)
		return code
	}
	s.b.relieve()
	return nil
}

// forgetBody ends what grown has counted.
func (s *session) forgetBody() {
	if s.unread > 0 {
		s.use.unread.Add(-int64(s.unread))
		s.conn.Hold(-s.unread)
		s.unread = 0
	}
}

// serve reads the rest of a packet and acts on it. An error ends the connection; if it
// has a reason code, the client gets it. So does a panic: no packet ends more than the
// connection it came on.
//
//go:noinline
func (b *Broker) serve(s *session, h packet.Header) (err error) {
	var body []byte
	defer func() {
		if r := recover(); r != nil {
			err = b.panicked(s.conn, h.Type.String(), r)
		}
		s.forgetBody()
		b.report(s.conn, h.Type, body, err)
	}()
	switch h.Type {
	case packet.Connect:
		return packets.ErrProtocolViolationSecondConnect // [MQTT-3.1.0-2]
	case packet.Publish, packet.Puback, packet.Pubrec, packet.Pubrel, packet.Pubcomp,
		packet.Subscribe, packet.Unsubscribe, packet.Disconnect:
	case packet.Pingreq:
		return packets.ErrMalformedPacket // with a body
	default:
		return packets.ErrProtocolViolation // sent by servers only, or AUTH without a method
	}
	if body, err = s.readBody(h); err != nil {
		return err
	}
	switch h.Type {
	case packet.Publish:
		return b.onPublish(s, h, body)
	case packet.Subscribe:
		return b.onSubscribe(s, body)
	case packet.Unsubscribe:
		return b.onUnsubscribe(s, body)
	case packet.Disconnect:
		return s.onDisconnect(body)
	default:
		return b.acknowledge(s, h.Type, body)
	}
}

// onDisconnect acts on a DISCONNECT packet.
func (s *session) onDisconnect(body []byte) error {
	d, err := packet.ReadDisconnect(body, s.v5, s.b.bounds)
	if err != nil {
		return err
	}
	if d.Expiry > 0 && s.asked == 0 { // [MQTT-3.14.2-2]
		return packets.ErrProtocolViolationZeroNonZeroExpiry
	}
	if d.HasExpiry && s.b.store != nil {
		s.expiry = s.b.store.Expiry(d.Expiry)
	}
	s.clean.Store(d.Reason == packets.CodeDisconnect.Code) // with any other reason the will is sent [MQTT-3.1.2-10] [MQTT-3.14.4-3]
	return errBye
}

// panicked turns a panic while a packet was served into the end of its connection.
func (b *Broker) panicked(c *conn, what string, r any) error {
	b.metrics.Refused("packet", "panic")
	b.log.Error("a packet made the broker panic: its connection ends; report this fault", "packet", what,
		"remote", c.remote(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	code := packets.ErrMalformedPacket
	code.Reason = "the broker could not process " + what
	return code
}

// How much of a bad packet the log shows: of CONNECT what stands before names and passwords.
const (
	shownBytes        = 64
	shownConnectBytes = 10
)

// report counts a packet that breaks the protocol, and shows its first bytes at debug.
func (b *Broker) report(c *conn, kind packet.Type, body []byte, err error) {
	if err == nil {
		return
	}
	code, bad := reason.Of(err)
	if !bad {
		return
	}
	b.metrics.Refused("packet", fmt.Sprintf("0x%02x", code.Code))
	shown := shownBytes
	if kind == packet.Connect {
		shown = shownConnectBytes
	}
	b.log.Debug("bad packet", "packet", kind.String(), "remote", c.remote(), "err", err,
		"body", hex.EncodeToString(body[:min(len(body), shown)]), "bytes", len(body))
}

// acknowledge acts on PUBACK, PUBREC, PUBREL and PUBCOMP.
func (b *Broker) acknowledge(s *session, kind packet.Type, body []byte) error {
	id, reason, err := packet.ReadAck(kind, body, s.v5, b.bounds)
	if err != nil {
		return err
	}
	if s.odd(kind, id) {
		return &packet.Error{Code: packet.ProtocolError, Clause: "MQTT-4.13.1-1", Reason: fmt.Sprintf("%s for packet id %d, whose message waits for another packet", kind, id)}
	}
	if s.link != nil {
		b.acknowledgeStored(s, kind, id, reason)
		return nil
	}
	switch kind {
	case packet.Puback:
		s.conn.Acknowledged(id, inflight.Puback)
	case packet.Pubcomp:
		s.conn.Acknowledged(id, inflight.Pubcomp)
	case packet.Pubrec:
		switch {
		case reason >= packets.ErrUnspecifiedError.Code: // [MQTT-4.3.3-4]
			s.conn.Acknowledged(id, inflight.Pubrec)
		case s.conn.Recorded(id):
			s.confirm(packets.Pubrel, id)
		default:
			s.ack(packets.Pubrel, id, packets.ErrPacketIdentifierNotFound)
		}
	case packet.Pubrel:
		if s.pending.End(id) {
			s.confirm(packets.Pubcomp, id) // [MQTT-4.3.3-11]
		} else {
			s.ack(packets.Pubcomp, id, packets.ErrPacketIdentifierNotFound)
		}
	}
	return nil
}

// odd reports whether an acknowledgement is not the one that its message waits for.
func (s *session) odd(kind packet.Type, id uint16) bool {
	stored := s.link != nil
	switch kind {
	case packet.Puback:
		return stored && s.link.Odd(id, sessions.Puback) || !stored && s.conn.Odd(id, inflight.Puback)
	case packet.Pubrec:
		return stored && s.link.Odd(id, sessions.Refused) || !stored && s.conn.Odd(id, inflight.Pubrec)
	case packet.Pubcomp:
		return stored && s.link.Odd(id, sessions.Pubcomp) || !stored && s.conn.Odd(id, inflight.Pubcomp)
	}
	return false
}

// confirm is ack of success for the goroutine that reads s: it writes at once where nothing else is to be written.
func (s *session) confirm(kind byte, id uint16) {
	frame := answer.Plain(kind, id)
	_, _ = s.conn.Answer(frame[:]) // a connection that has ended needs no answer
	s.b.metrics.Sent(len(frame))
}

// ack sends PUBACK, PUBREC, PUBREL or PUBCOMP.
func (s *session) ack(kind byte, id uint16, code packets.Code) {
	if code.Code == 0 || !s.v5 {
		frame := answer.Plain(kind, id)
		_ = s.b.write(s.conn, frame[:], nil) // a connection that has ended needs no answer
		return
	}
	frame, err := answer.Ack(s.takes(), kind, id, code)
	_ = s.b.write(s.conn, frame, err) // as above
}
