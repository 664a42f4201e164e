package broker

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/inflight"
)

// readBuffer is the size of a connection's read buffer. A packet that is larger
// is read past it.
const readBuffer = 512

// errBye ends the connection of a client that said DISCONNECT.
var errBye = errors.New("the client disconnected")

// attend reads the packets of an accepted connection until its end. It waits in
// few and small stack frames: there are as many of them as there are clients.
func (b *Broker) attend(c *conn) {
	defer b.untrack(c)
	s := c.session.Load()
	err := b.readAll(c, s)
	if code, ok := codeOf(err); ok {
		b.disconnect(c, code) // [MQTT-4.13.1-1]
	}
	_ = c.Close() // never fails
	b.ended(c, err)
}

func (b *Broker) readAll(c *conn, s *session) error {
	for {
		s.grant()
		fh, err := c.readHead(int64(b.o.Limits.PacketBytes))
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return packets.ErrKeepAliveTimeout
			}
			b.report(c, fh.Type, nil, err)
			return err
		}
		if fh.Type == packets.Pingreq && fh.Remaining == 0 { // in this small frame, as most packets of an idle client
			_, _ = c.Write([]byte{packets.Pingresp << 4, 0}) // [MQTT-3.12.4-1]; a client that is gone needs no answer
			b.metrics.sent(2)
			continue
		}
		if err := b.packet(s, fh); err != nil {
			return err
		}
	}
}

// grant gives the client 1.5 times its keep-alive for the next bytes. [MQTT-3.1.2-22]
func (s *session) grant() {
	var until time.Time
	if s.keepAlive > 0 {
		until = time.Now().Add(time.Duration(s.keepAlive) * 1500 * time.Millisecond)
	}
	_ = s.conn.SetDeadline(until) // a dead transport shows at the read
}

// readChunk is how much of a large packet must come within the keep-alive's time:
// on a slow link the whole may take longer, and the client cannot ping meanwhile.
const readChunk = 16 << 10

// readBody reads the rest of a packet.
func (s *session) readBody(fh packets.FixedHeader) ([]byte, error) {
	if fh.Remaining <= readChunk {
		return s.conn.readBody(fh)
	}
	body := make([]byte, fh.Remaining)
	for at := 0; at < len(body); at += readChunk {
		if _, err := io.ReadFull(s.conn.r, body[at:min(at+readChunk, len(body))]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, packets.ErrKeepAliveTimeout
			}
			return nil, err
		}
		s.grant()
	}
	return body, nil
}

// readHead waits for the next packet and reads its fixed header.
func (c *conn) readHead(limit int64) (fh packets.FixedHeader, err error) {
	first, err := c.r.ReadByte()
	if err != nil {
		return fh, err
	}
	if err := fh.Decode(first); err != nil {
		return fh, err
	}
	n, width, err := packets.DecodeLength(c.r)
	if err != nil {
		return fh, err
	}
	if int64(n)+1+int64(width) > limit {
		return fh, packets.ErrPacketTooLarge // [MQTT-3.2.2-15]
	}
	fh.Remaining = n
	c.b.metrics.received(1 + width + n)
	return fh, nil
}

func (c *conn) readBody(fh packets.FixedHeader) ([]byte, error) {
	body := make([]byte, fh.Remaining)
	_, err := io.ReadFull(c.r, body)
	return body, err
}

func newReader(c *conn) *bufio.Reader { return bufio.NewReaderSize(c, readBuffer) }

// packet reads the rest of a packet and acts on it. An error ends the connection;
// if it is a packets.Code, the client is told. So does a panic: no packet ends more
// than the connection it came on.
//
//go:noinline
func (b *Broker) packet(s *session, fh packets.FixedHeader) (err error) {
	var body []byte
	defer func() {
		if r := recover(); r != nil {
			err = b.panicked(s.conn, fh.Type, r)
		}
		b.report(s.conn, fh.Type, body, err)
	}()
	if body, err = s.readBody(fh); err != nil {
		return err
	}
	p := packets.Packet{FixedHeader: fh, ProtocolVersion: s.version()}
	decode := p.PublishDecode
	switch fh.Type {
	case packets.Publish:
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		return b.acknowledge(s, fh, body)
	case packets.Subscribe:
		decode = p.SubscribeDecode
	case packets.Unsubscribe:
		decode = p.UnsubscribeDecode
	case packets.Disconnect:
		decode = p.DisconnectDecode
	case packets.Connect:
		return packets.ErrProtocolViolationSecondConnect // [MQTT-3.1.0-2]
	default:
		return packets.ErrProtocolViolation // sent by servers only, or AUTH without a method
	}
	if err := decode(body); err != nil {
		return malformed(err)
	}
	switch fh.Type {
	case packets.Publish:
		return b.onPublish(s, &p)
	case packets.Subscribe:
		return b.onSubscribe(s, &p)
	case packets.Unsubscribe:
		return b.onUnsubscribe(s, &p)
	}
	return s.onDisconnect(&p)
}

// onDisconnect acts on a DISCONNECT packet.
func (s *session) onDisconnect(p *packets.Packet) error {
	if p.Properties.SessionExpiryInterval > 0 && s.ephemeral { // [MQTT-3.14.2-2]
		return packets.ErrProtocolViolationZeroNonZeroExpiry
	}
	s.clean.Store(p.ReasonCode != packets.CodeDisconnectWillMessage.Code) // [MQTT-3.14.4-3]
	return errBye
}

// panicked turns a panic while a packet was served into the end of its connection.
func (b *Broker) panicked(c *conn, kind byte, r any) error {
	b.metrics.refused("packet", "panic")
	b.log.Error("a packet made the broker panic: its connection ends; report this fault", "packet", packets.PacketNames[kind],
		"remote", c.RemoteAddr().String(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	code := packets.ErrMalformedPacket
	code.Reason = "the broker could not process this " + packets.PacketNames[kind]
	return code
}

// shownBytes is how much of a bad packet the log shows.
const shownBytes = 64

// report counts a packet that breaks the protocol, and shows its first bytes at debug.
func (b *Broker) report(c *conn, kind byte, body []byte, err error) {
	code, bad := codeOf(err)
	if !bad {
		return
	}
	b.metrics.refused("packet", fmt.Sprintf("0x%02x", code.Code))
	b.log.Debug("bad packet", "packet", packets.PacketNames[kind], "remote", c.RemoteAddr().String(), "err", err,
		"body", hex.EncodeToString(body[:min(len(body), shownBytes)]), "bytes", len(body))
}

func malformed(err error) error {
	if _, ok := errors.AsType[packets.Code](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", packets.ErrMalformedPacket, err)
}

// acknowledge acts on PUBACK, PUBREC, PUBREL and PUBCOMP. Their first two bytes
// are the packet id, the third, if any, is the reason code.
func (b *Broker) acknowledge(s *session, fh packets.FixedHeader, body []byte) error {
	if len(body) < 2 || !s.v5 && len(body) != 2 {
		return packets.ErrMalformedPacketID
	}
	id, reason := uint16(body[0])<<8|uint16(body[1]), byte(0)
	if len(body) > 2 {
		reason = body[2]
	}
	const failed = 0x80
	switch fh.Type {
	case packets.Puback:
		s.conn.acknowledged(id, inflight.Puback)
	case packets.Pubcomp:
		s.conn.acknowledged(id, inflight.Pubcomp)
	case packets.Pubrec:
		switch {
		case reason >= failed: // [MQTT-4.3.3-4]
			s.conn.acknowledged(id, inflight.Pubrec)
		case s.conn.recorded(id):
			s.ack(packets.Pubrel, id, packets.CodeSuccess)
		default:
			s.ack(packets.Pubrel, id, packets.ErrPacketIdentifierNotFound)
		}
	case packets.Pubrel:
		code := packets.ErrPacketIdentifierNotFound
		if _, ok := s.pending[id]; ok {
			delete(s.pending, id)
			code = packets.CodeSuccess
		}
		s.ack(packets.Pubcomp, id, code) // [MQTT-4.3.3-11]
	}
	return nil
}

// ack sends PUBACK, PUBREC, PUBREL or PUBCOMP.
func (s *session) ack(kind byte, id uint16, code packets.Code) {
	if code.Code == 0 || !s.v5 {
		head := kind << 4
		if kind == packets.Pubrel {
			head |= 2 // [MQTT-3.6.1-1]
		}
		_, _ = s.conn.Write([]byte{head, 2, byte(id >> 8), byte(id)}) // a client that is gone needs no answer
		s.b.metrics.sent(4)
		return
	}
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, ProtocolVersion: 5, PacketID: id, ReasonCode: code.Code}
	if !s.terse {
		p.Properties.ReasonString = code.Reason
	}
	encode := map[byte]func(*bytes.Buffer) error{
		packets.Puback: p.PubackEncode, packets.Pubrec: p.PubrecEncode, packets.Pubrel: p.PubrelEncode, packets.Pubcomp: p.PubcompEncode,
	}[kind]
	if kind == packets.Pubrel {
		p.FixedHeader.Qos = 1
	}
	_ = s.conn.send(&p, encode) // as above
}
