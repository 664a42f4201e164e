package client

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/colonyfleet/colony/protocol"
)

// read takes packets off the wire until the link ends.
func (l *link) read() {
	defer close(l.inbound)
	for {
		p, err := l.readPacket()
		if err != nil {
			l.fail(protocol.Errorf(protocol.Unavailable, "read: %w", err))
			return
		}
		l.pulse.read()
		if err := l.receive(p); err != nil {
			l.fail(err)
			return
		}
	}
}

// receive acts on one packet of the broker.
func (l *link) receive(p *packets.ControlPacket) error {
	switch c := p.Content.(type) {
	case *packets.Publish:
		return l.deliver(c)
	case *packets.Puback:
		return l.settle(packets.PUBACK, c.PacketID, reply{[]byte{c.ReasonCode}, c.Properties.ReasonString})
	case *packets.Suback:
		return l.settle(packets.SUBACK, c.PacketID, reply{c.Reasons, c.Properties.ReasonString})
	case *packets.Pingresp:
	case *packets.Disconnect:
		return refusal("link", c.ReasonCode, c.Properties.ReasonString)
	default:
		return protocol.Errorf(protocol.Invalid, "unexpected %s from the broker", p.PacketType())
	}
	return nil
}

func (l *link) deliver(p *packets.Publish) error {
	if p.QoS > 1 {
		return protocol.Errorf(protocol.Invalid, "message on %s with QoS %d: subscribed with up to 1", p.Topic, p.QoS)
	}
	in := inboundMessage{message(p), 0}
	if p.QoS == 1 {
		in.id = p.PacketID
	}
	l.pulse.handing.Store(true)
	defer l.pulse.handing.Store(false)
	select {
	case l.inbound <- in:
	case <-l.ctx.Done():
	}
	l.pulse.read()
	return nil
}

// work hands each message to Handle and then acknowledges it. ctx is the client's.
func (l *link) work(ctx context.Context) {
	for in := range l.inbound {
		if l.ctx.Err() != nil {
			continue // not acknowledged: it is the broker's still
		}
		err := l.o.Handle(ctx, in.m)
		code := byte(0)
		if err != nil {
			code = codeOf(protocol.KindOf(err))
			l.log.WarnContext(ctx, "message not handled", "topic", in.m.Topic, "kind", protocol.KindOf(err), "err", err)
		}
		if in.id == 0 {
			continue
		}
		if err != nil && code == 0 {
			l.fail(fmt.Errorf("handle %s: %w", in.m.Topic, err))
			continue
		}
		ack := &packets.Puback{PacketID: in.id, ReasonCode: code, Properties: &packets.Properties{}}
		_ = l.send(ack, packets.PUBACK) // a failed write has ended the link with its reason
	}
}

// pingBytes is what a ping is on the wire at most, with a TLS record around it.
const pingBytes = 64

// watch sends a ping when either direction was idle for the keep-alive, and gives
// the link up when nothing was heard for 1.5 times as long.
func (l *link) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pinged time.Duration           // when the last ping went, since begun
	var pings int64                    // how many went
	var confirmed int64                // of the bytes written but for pings, the most that the other end's system had confirmed
	var looked, received time.Duration // when that was looked at last, and the last time before it grew
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-timer.C:
		}
		now := l.pulse.now()
		heard, sent := time.Duration(l.pulse.lastRead.Load()), time.Duration(l.pulse.lastSent.Load())
		if l.pulse.handing.Load() {
			heard = now // this end does not read: silence says nothing of the peer
		}
		// A large packet on a slow link takes longer than the keep-alive, and the peer answers only
		// after its end. TCP bytes of it that the peer confirmed since the last look count as a
		// sign of life. Pings do not count: a middlebox that confirms bytes without delivering them
		// would keep a dead link alive. Where confirmed bytes are not known, a write is no sign of
		// life: a buffer may hold it.
		written := l.pulse.written.Load()
		if open, known := unconfirmed(l.conn); known && written-open-pings*pingBytes > confirmed {
			confirmed, received = written-open-pings*pingBytes, looked
		}
		looked = now
		heard = max(heard, received)
		dead := heard + l.terms.keepAlive*3/2
		if now >= dead {
			l.fail(protocol.Errorf(protocol.Unavailable, "nothing heard from the broker for %s, 1.5 × the keep-alive", now-heard))
			return
		}
		due := min(sent, max(heard, pinged)) + l.terms.keepAlive
		if now >= due {
			pinged = now
			pings++
			l.wg.Go(l.ping)
			due = now + l.terms.keepAlive
		}
		timer.Reset(min(due, dead) - now)
	}
}

// ping runs beside watch, so that a write that is stuck in the network does not
// keep watch from ending the link. Closing the connection ends it.
func (l *link) ping() {
	_ = l.send(&packets.Pingreq{}, packets.PINGREQ) // a failed write has ended the link with its reason
}

// codeOf is the reason code that refuses a message, or 0 where the
// message must come again.
func codeOf(k protocol.Kind) byte {
	switch k {
	case protocol.Invalid:
		return 0x99 // payload format invalid
	case protocol.Denied:
		return 0x87 // not authorized
	case protocol.NotFound:
		return 0x90 // topic name invalid
	case protocol.Conflict:
		return 0x83 // implementation specific error
	case protocol.Unavailable, protocol.Internal:
		return 0
	}
	return 0
}

// refusal is the broker's reason code as an error.
func refusal(what string, code byte, reason string) error {
	kind := protocol.Internal
	switch code {
	case 0x86, 0x87, 0x8A, 0x8C:
		kind = protocol.Denied
	case 0x81, 0x82, 0x84, 0x85, 0x8F, 0x90, 0x94, 0x95, 0x99, 0x9A, 0x9B:
		kind = protocol.Invalid
	case 0x8E:
		kind = protocol.Conflict // another connection took the client id
	case 0x00, 0x80, 0x83, 0x88, 0x89, 0x8B, 0x8D, 0x93, 0x96, 0x97, 0x98, 0x9C, 0x9D, 0x9F:
		kind = protocol.Unavailable
	}
	if reason == "" {
		reason = "no reason given"
	}
	return protocol.Errorf(kind, "%s: the broker answered 0x%02X: %s", what, code, reason)
}

func properties(m Message) *packets.Properties {
	p := &packets.Properties{ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData}
	if s := m.ExpirySeconds(); s > 0 {
		p.MessageExpiry = &s
	}
	for _, u := range m.Properties {
		p.User = append(p.User, packets.User{Key: u.Key, Value: u.Value})
	}
	return p
}

func message(p *packets.Publish) Message {
	m := Message{
		Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain,
		ContentType: p.Properties.ContentType, ResponseTopic: p.Properties.ResponseTopic,
		CorrelationData: p.Properties.CorrelationData,
	}
	if e := p.Properties.MessageExpiry; e != nil {
		m.Expiry = time.Duration(max(1, *e)) * time.Second // 0 would be: never
	}
	for _, u := range p.Properties.User {
		m.Properties = append(m.Properties, Property{u.Key, u.Value})
	}
	return m
}
