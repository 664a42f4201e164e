package broker

import (
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/protocol"
)

// onPublish acts on a PUBLISH packet: it is taken, retained, put into the write
// buffers of its subscribers, and only then acknowledged.
func (b *Broker) onPublish(s *session, p *packets.Packet) error {
	s.wait(b.ctx)
	if err := s.resolve(p); err != nil {
		return err
	}
	if code := p.PublishValidate(0); code != packets.CodeSuccess {
		return code
	}
	if strings.Contains(p.TopicName, "\x00") {
		return packets.ErrMalformedTopic // [MQTT-1.5.4-2]
	}
	b.metrics.publishedIn(p.FixedHeader.Qos)
	if p.FixedHeader.Qos == 2 {
		if _, again := s.pending[p.PacketID]; again {
			s.ack(packets.Pubrec, p.PacketID, packets.CodeSuccess) // [MQTT-4.3.3-10]
			return nil
		}
		if len(s.pending) >= receiveMaximum { // [MQTT-3.3.4-7]
			return packets.ErrReceiveMaximum
		}
	}
	if code := b.receive(s, p); code.Code != 0 {
		return s.reject(p, code)
	}
	switch p.FixedHeader.Qos {
	case 1:
		s.ack(packets.Puback, p.PacketID, packets.CodeSuccess) // [MQTT-4.3.2-4]
	case 2:
		if s.pending == nil {
			s.pending = make(map[uint16]struct{})
		}
		s.pending[p.PacketID] = struct{}{}
		s.ack(packets.Pubrec, p.PacketID, packets.CodeSuccess) // [MQTT-4.3.3-8]
	}
	return nil
}

// receive is onPublish between validation and acknowledgement. It returns why the
// message was refused, or the code 0.
func (b *Broker) receive(s *session, p *packets.Packet) packets.Code {
	if p.TopicName[0] == '$' || !b.o.Access.MayPublish(s.id, p.TopicName) {
		b.metrics.refused("publish", "access")
		b.log.Warn("publish refused", "client", s.client, "topic", p.TopicName)
		return packets.ErrNotAuthorized
	}
	m := received(p, s.client)
	if err := b.acceptPublish(s, m); err != nil {
		b.log.Warn("message not taken", "client", s.client, "topic", p.TopicName, "qos", p.FixedHeader.Qos, "err", err)
		return publishCode(err)
	}
	b.distribute(m, &waiting{forClients})
	return packets.Code{}
}

// resolve puts a topic in the place of its alias. [MQTT-3.3.2-8]
func (s *session) resolve(p *packets.Packet) error {
	if !p.Properties.TopicAliasFlag {
		return nil
	}
	alias := p.Properties.TopicAlias
	if alias == 0 || alias > aliasMaximum { // [MQTT-3.3.2-9]
		return packets.ErrTopicAliasInvalid
	}
	if p.TopicName == "" {
		known, ok := s.aliases[alias]
		if !ok {
			return packets.ErrProtocolViolationNoTopic
		}
		p.TopicName = known
	} else {
		if s.aliases == nil {
			s.aliases = make(map[uint16]string)
		}
		s.aliases[alias] = p.TopicName
	}
	p.Properties.TopicAlias, p.Properties.TopicAliasFlag = 0, false
	return nil
}

// reject answers a message that is refused. MQTT 3.1.1 has no such answer, and
// must not acknowledge; its client is disconnected.
func (s *session) reject(p *packets.Packet, code packets.Code) error {
	switch {
	case p.FixedHeader.Qos == 0:
	case !s.v5:
		return code
	case p.FixedHeader.Qos == 1:
		s.ack(packets.Puback, p.PacketID, code)
	default:
		s.ack(packets.Pubrec, p.PacketID, code)
	}
	return nil
}

// publishCode is the reason code with which a message is refused.
func publishCode(err error) packets.Code {
	code := packets.ErrImplementationSpecificError
	switch protocol.KindOf(err) {
	case protocol.Invalid:
		code = packets.ErrPayloadFormatInvalid
	case protocol.Denied:
		code = packets.ErrNotAuthorized
	case protocol.NotFound:
		code = packets.ErrTopicNameInvalid
	case protocol.Unavailable:
		code = packets.ErrQuotaExceeded
	case protocol.Conflict, protocol.Internal:
	}
	code.Reason = reasonString(err)
	return code
}

// forClients is how long a message of a client may wait in all, which is as long as
// its subscribers make it: only that client waits.
const forClients = time.Hour

// distribute retains m, if it says so, and puts it into the write buffers of its
// subscribers.
func (b *Broker) distribute(m *message, w *waiting) {
	switch {
	case !m.retain:
	case len(m.payload) == 0: // [MQTT-3.3.1-6]
		b.retained.Delete(m.topic)
	default: // [MQTT-3.3.1-5]
		b.retained.Put(m.topic, m, len(m.payload), m.expires)
	}
	to := b.tree.Find(m.topic)
	f := frames{m: m}
	for i := range to.Plain {
		if sub := &to.Plain[i]; !sub.NoLocal || sub.To.client != m.origin { // [MQTT-3.8.3-3]
			sub.To.deliver(&f, deliveryFor(m, sub), w)
		}
	}
	for _, group := range to.Shared {
		for i := range group {
			if group[i].To.deliver(&f, deliveryFor(m, &group[i]), w) { // [MQTT-4.8.2-4]
				break
			}
		}
	}
}

// deliveryFor is how a subscriber wants m.
func deliveryFor(m *message, sub *topictree.Match[*session]) delivery {
	return delivery{qos: min(m.qos, sub.QoS), retain: m.retain && sub.RetainAsPublished && sub.To.v5, ids: sub.Identifiers()}
}

// deliver puts a message into the write buffer of one subscriber; false if it is
// gone. As w allows it holds the caller while that subscriber lags behind: publishers
// are slowed before messages are lost, and nobody stops them for long.
func (s *session) deliver(f *frames, d delivery, w *waiting) bool {
	b := s.b
	if !b.o.Access.MaySubscribe(s.id, f.m.topic) {
		b.metrics.dropped("access")
		return true
	}
	frame, idAt, err := f.get(s.v5, d)
	if err != nil {
		b.log.Error("message not encoded", "topic", f.m.topic, "err", err)
		return true
	}
	if s.largest > 0 && len(frame) > s.largest { // [MQTT-3.1.2-24]
		b.metrics.dropped("packet_too_large")
		return true
	}
	if f.m.origin == s.client {
		w = &waiting{} // who waits for itself reads no acknowledgements
	}
	switch err := s.conn.publish(frame, idAt, d.qos, w); err {
	case nil:
		b.metrics.publishedOut(d.qos, len(frame))
		return true
	case errUnacknowledged:
		b.tooSlow(s, "unacknowledged")
	}
	return false
}

// tooSlow disconnects a client that has missed a message.
func (b *Broker) tooSlow(s *session, reason string) {
	b.metrics.dropped(reason)
	if !s.conn.isClosed() {
		b.log.Warn("slow client disconnected", "client", s.client, "reason", reason)
		b.disconnect(s.conn, packets.ErrQuotaExceeded)
	}
}
