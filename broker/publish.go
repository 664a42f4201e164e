package broker

import (
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/quota"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/internal/refusals"
)

// onPublish acts on a PUBLISH packet: it is accepted, retained, put into the queues of its
// subscribers, and only then acknowledged.
func (b *Broker) onPublish(s *session, h packet.Header, body []byte) error {
	p, err := packet.ReadPublish(h, body, s.v5, b.bounds)
	if err != nil {
		return err
	}
	s.wait(b.ctx)
	topic, err := b.routes.TopicOf(&p, &s.aliases, s.conn.address())
	if err != nil {
		return err
	}
	qos := h.QoS()
	b.metrics.PublishedIn(qos)
	s.received.Add(1)
	if qos == 2 {
		switch known, room := s.pending.Begin(p.ID, receiveMaximum); {
		case known:
			return b.acknowledgeRepeat(s, p.ID)
		case !room: // [MQTT-3.3.4-7]
			return packets.ErrReceiveMaximum
		}
	}
	m := &message.Message{
		Topic: topic, Payload: p.Payload, Props: p.Properties, QoS: qos, Retain: h.Retain(),
		Origin: s.client, Owner: s.account, Expires: message.EndOf(&p),
	}
	to, code := b.receive(s, m)
	if code == codeLeft && !s.v5 { // as if it had not arrived: what follows it, such as DISCONNECT, is read
		if qos == 2 {
			s.pending.End(p.ID)
		}
		return nil
	}
	if code.Code != 0 {
		return s.reject(qos, p.ID, code)
	}
	if len(to) > 0 || qos == 2 && s.link != nil {
		b.storeFrom(s, to, m, p.ID) // and acknowledge then
		return nil
	}
	switch qos {
	case 1:
		s.confirm(packets.Puback, p.ID) // [MQTT-4.3.2-4]
	case 2:
		s.confirm(packets.Pubrec, p.ID) // [MQTT-4.3.3-8]
	}
	return nil
}

// accept acknowledges a message that was stored.
func (s *session) accept(qos byte, id uint16) {
	switch qos {
	case 1:
		s.ack(packets.Puback, id, packets.CodeSuccess) // [MQTT-4.3.2-4]
	case 2:
		s.ack(packets.Pubrec, id, packets.CodeSuccess) // [MQTT-4.3.3-8]
	}
}

// receive is onPublish between validation and acknowledgement. It returns the sessions that the
// message is to be stored for, or why it was refused.
func (b *Broker) receive(s *session, m *message.Message) ([]sessions.Target, packets.Code) {
	if filter.Reserved(m.Topic) || !b.o.Access.MayPublish(s.id, m.Topic) {
		code := packets.ErrNotAuthorized
		if a, ok := b.o.Access.(interface {
			PublishRefusal(id access.Identity, topic string) string
		}); ok {
			code.Reason = a.PublishRefusal(s.id, m.Topic)
		}
		b.metrics.Refused("publish", "access")
		shown := refusals.Shortened(m.Topic)
		b.refused.Warn("publish", s.account, shown, "publish refused", "client", refusals.Shortened(s.client), "topic", shown, "reason", code.Reason)
		return nil, code
	}
	turn, here := b.rest(s.conn, s.client, m)
	defer turn.End()
	if !here {
		b.metrics.Refused("publish", "match_rate")
		return nil, codeLeft
	}
	to, err := b.routes.Accept(s.id, m, s.waiting(forever))
	if err != nil {
		b.refused.Warn("message", s.account, err.Error(), "message refused", "client", refusals.Shortened(s.client), "topic", refusals.Shortened(m.Topic), "qos", m.QoS, "err", err)
		return nil, reason.OfPublish(err)
	}
	return to, packets.Code{}
}

// codeLeft refuses a message whose client has left before it could be accepted.
var codeLeft = packets.Code{Code: packets.ErrQuotaExceeded.Code, Reason: "the connection has ended while this message waited for those of its account; see limits.matchRate"}

// rest keeps a client from being read before a message, or last will, of it is accepted that takes many steps to find its subscribers, where the
// messages of its account have taken more than that may have, or another one of them is being accepted. It returns false where the
// connection has ended. The turn ends when the message has been accepted; nil waits for nothing.
func (b *Broker) rest(c *conn, client string, m *message.Message) (turn *quota.Turn, here bool) {
	turn = b.routes.Turn(m)
	if turn == nil {
		return nil, true
	}
	begun := time.Now()
	for waits := false; ; waits = true {
		come, retryDelay := turn.Come(time.Now())
		if come {
			if waits {
				b.metrics.Waited.WithLabelValues("match").Add(time.Since(begun).Seconds())
			}
			return turn, true
		}
		if !waits {
			b.refused.Warn("match rate", m.Owner, "", "a client is read more slowly: it takes many steps to find the subscribers of the messages of its account, as filters of many levels with wildcards match them or nearly do",
				"client", refusals.Shortened(client), "limit", "limits.matchRate")
		}
		if !c.Pause(retryDelay, turn.Wake()) {
			b.metrics.Waited.WithLabelValues("match").Add(time.Since(begun).Seconds())
			return turn, false
		}
	}
}

// reject answers a message that is refused. MQTT 3.1.1 has no such answer, and
// must not acknowledge; its client is disconnected.
func (s *session) reject(qos byte, id uint16, code packets.Code) error {
	if qos == 2 {
		s.pending.End(id)
	}
	switch {
	case qos == 0:
	case !s.v5:
		return code
	case qos == 1:
		s.ack(packets.Puback, id, code)
	default:
		s.ack(packets.Pubrec, id, code)
	}
	return nil
}

const (
	// listPatience is how long a list of messages waits for subscribers, in all.
	listPatience = 500 * time.Millisecond
	// forever is no limit but that of each message.
	forever = time.Duration(1<<63 - 1)
)

// Deliver puts a message into the queue of one subscriber; false if that has ended, or gets such
// messages from its stored session alone, whose packet ids they have.
func (s *session) Deliver(f *message.Frames, d message.Delivery) bool {
	b := s.b
	if s.link != nil && min(f.Message.QoS, d.QoS) > 0 {
		return false
	}
	if !b.o.Access.MaySubscribe(s.id, f.Message.Topic) {
		b.routes.Withheld(s.id)
		return true
	}
	frame := f.Get(s.v5, d)
	if s.largest > 0 && frame.Size() > s.largest { // [MQTT-3.1.2-24]
		b.metrics.Dropped("packet_too_large")
		return true
	}
	switch err := s.conn.Publish(frame); err {
	case nil:
		s.countSent(d.QoS, frame.Size())
		b.relieve()
		return true
	case transport.ErrSlow:
		b.tooSlow(s.conn, s.conn.Slowness())
	}
	return false
}

// countSent counts a message that is sent.
func (s *session) countSent(qos byte, bytes int) {
	s.sent.Add(1)
	s.b.metrics.PublishedOut(qos, bytes)
}

// tooSlow disconnects a client that has missed a message, or is about to.
func (b *Broker) tooSlow(c *conn, reason string) {
	b.metrics.Dropped(reason)
	b.endSlow(c, reason, slowLimits[reason])
}

// endSlow disconnects a client for a reason, which has to do with the limit of a key.
func (b *Broker) endSlow(c *conn, reason, key string) {
	if s := c.session.Load(); s != nil && !c.Closed() && b.refused.Show("slow client", s.account, s.client) {
		b.log.Warn("slow client disconnected", "client", refusals.Shortened(s.client), "reason", reason, "limit", key, "bytes", c.Pending())
	}
	if reason == "memory" {
		c.Drop()
	} else {
		c.DropMessages()
	}
	code := packets.ErrQuotaExceeded
	code.Reason = "messages are read or acknowledged too slowly; see " + key
	b.disconnect(c, code)
}

// slowLimits are the keys of the limits that a client meets which is too slow, by the reason under which it is counted.
var slowLimits = map[string]string{
	"slow_client": "limits.writeBuffer", "unacknowledged": "limits.unacknowledged", "memory": "limits.totalWriteBuffer", "write_timeout": "limits.writeTimeout",
}

// relieve keeps what waits for all clients together within its limit: of the account that most memory
// waits for, the connections that most waits for are disconnected.
func (b *Broker) relieve() {
	if b.pending.Load() <= b.o.Limits.TotalWriteBuffer || !b.relieving.TryLock() {
		return
	}
	defer b.relieving.Unlock()
	for {
		open, loads := b.loads()
		guilty := quota.Guilty(loads, b.o.Limits.TotalWriteBuffer)
		if len(guilty) == 0 {
			return
		}
		for _, i := range guilty {
			b.tooSlow(open[i], "memory")
		}
	}
}

// loads returns the connections, and what waits for each. Those that end already are left out: what they hold
// is about to be free.
func (b *Broker) loads() (open []*conn, loads []quota.Load) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for c := range b.conns {
		if n := c.Pending(); n > 0 && !c.Closed() {
			open, loads = append(open, c), append(loads, quota.Load{Owner: c.account(), Bytes: n})
		}
	}
	return open, loads
}
