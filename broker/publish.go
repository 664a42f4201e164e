package broker

import (
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
)

// onPublish acts on a PUBLISH packet: it is accepted, retained, put into the queues of its
// subscribers, and only then acknowledged.
func (b *Broker) onPublish(s *session, h packet.Header, body []byte) error {
	p, err := packet.ReadPublish(h, body, s.v5, b.bounds)
	if err != nil {
		return err
	}
	s.wait(b.ctx)
	topic, err := s.topicOf(&p)
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
		Origin: s.client, Owner: s.id.Name, Expires: message.ExpiryOf(p.Expiry, time.Now()),
	}
	to, code := b.receive(s, m)
	if code.Code != 0 {
		return s.reject(qos, p.ID, code)
	}
	if len(to) > 0 || qos == 2 && s.link != nil {
		b.storeFrom(s, to, m, p.ID) // and acknowledge then
		return nil
	}
	s.accept(qos, p.ID)
	return nil
}

// accept acknowledges a message.
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
	if reserved(m.Topic) || !b.o.Access.MayPublish(s.id, m.Topic) {
		code := packets.ErrNotAuthorized
		if a, ok := b.o.Access.(interface {
			PublishRefusal(id access.Identity, topic string) string
		}); ok {
			code.Reason = a.PublishRefusal(s.id, m.Topic)
		}
		b.metrics.Refused("publish", "access")
		b.log.Warn("publish refused", "client", s.client, "topic", m.Topic, "reason", code.Reason)
		return nil, code
	}
	var to []sessions.Target
	err := b.accepted(s.id, m, func() { to = b.distribute(m, s.waiting(forever)) })
	if err != nil {
		b.log.Warn("message refused", "client", s.client, "topic", m.Topic, "qos", m.QoS, "err", err)
		return nil, reason.OfPublish(err)
	}
	return to, packets.Code{}
}

// reserved reports whether a topic is the broker's own. [MQTT-4.7.2-1] Whether a client
// may use other topics that begin with $ is for access control to say.
func reserved(topic string) bool {
	first, _, _ := strings.Cut(topic, "/")
	return first == "$SYS" || first == "$share"
}

// topicOf is the topic of a PUBLISH, which may stand behind an alias. [MQTT-3.3.2-8]
func (s *session) topicOf(p *packet.Publication) (string, error) {
	if !p.HasAlias {
		return string(p.Topic), nil
	}
	if p.Alias == 0 || p.Alias > aliasMaximum { // [MQTT-3.3.2-9]
		return "", packets.ErrTopicAliasInvalid
	}
	if len(p.Topic) == 0 {
		known, ok := s.aliases[p.Alias]
		if !ok {
			return "", packets.ErrProtocolViolationNoTopic
		}
		return known, nil
	}
	if s.aliases == nil {
		s.aliases = make(map[uint16]string)
	}
	topic := string(p.Topic)
	s.aliases[p.Alias] = topic
	return topic, nil
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
	// patience is how long one message waits for subscribers that all lag behind.
	patience = 2 * time.Second
	// listPatience is how long a list of messages waits for subscribers, in all.
	listPatience = 500 * time.Millisecond
	// forever is no limit but that of each message.
	forever = time.Duration(1<<63 - 1)
)

// A group is one subscriber, or the members of a shared subscription, of which one gets
// the message.
type group = []topictree.Match[*subscriber]

// distribute retains m, if it says so, and puts it into the queues of its subscribers:
// first of those that keep up, then of those that lag behind, which w may wait for. It returns the
// sessions that it is to be stored for.
func (b *Broker) distribute(m *message.Message, w *transport.Waiting) []sessions.Target {
	if m.Retain {
		b.retain(m)
	}
	to := b.tree.Find(m.Topic)
	stored := b.separate(m, &to)
	d := distribution{b: b, f: message.Frames{Message: m}}
	for i := range to.Plain {
		if !local(m, &to.Plain[i]) {
			d.offer(to.Plain[i : i+1])
		}
	}
	for _, members := range to.Shared {
		d.offer(members)
	}
	if len(d.late) > 0 {
		d.await(w)
	}
	return stored
}

// retain notes a message that says so, or forgets the one of its topic.
func (b *Broker) retain(m *message.Message) {
	if len(m.Payload) == 0 { // [MQTT-3.3.1-6]
		b.retained.Delete(m.Topic)
		return
	}
	b.retained.Put(retained.Message[*message.Message]{Topic: m.Topic, Value: m, Owner: m.Owner, Size: m.Size(), Expires: m.Expires}) // [MQTT-3.3.1-5]
}

// local reports whether a subscriber does not want a message as it is its own. [MQTT-3.8.3-3]
func local(m *message.Message, sub *topictree.Match[*subscriber]) bool {
	return sub.NoLocal && sub.To.client == m.Origin
}

// A distribution is a message on its way to its subscribers.
type distribution struct {
	b     *Broker
	f     message.Frames
	quick bool    // a subscriber that keeps up got it
	late  []group // have not got it, as they lag behind
}

// offer delivers to a group, unless it lags behind.
func (d *distribution) offer(to group) {
	lags := -1
	for i := range to {
		sub := to[i].To.now.Load()
		if sub == nil {
			continue
		}
		state := sub.conn.State()
		if state == transport.Lags && sub.client == d.f.Message.Origin {
			state = transport.GivenUp // who waits for itself reads no acknowledgements
		}
		switch {
		case state == transport.KeepsUp && sub.deliver(&d.f, deliveryFor(d.f.Message, &to[i], sub.v5)): // [MQTT-4.8.2-4]
			d.quick = true
			return
		case state == transport.Lags && lags < 0:
			lags = i
		}
	}
	if lags >= 0 {
		to[0], to[lags] = to[lags], to[0]
		d.late = append(d.late, to)
		return
	}
	d.deliver(to)
}

// await delivers to the groups that lag behind. If nobody has the message yet, it waits
// until the fastest of them keeps up: publishers are slowed to its speed, and nothing is
// lost that could be delivered. The others it waits for as the publisher's pace allows.
// What does not fit into a queue then its subscriber misses, and is disconnected.
func (d *distribution) await(w *transport.Waiting) {
	wait := func(whom string, most time.Duration, on ...*transport.Conn) time.Duration {
		begun := time.Now()
		if !transport.AwaitAny(on, most, patience) {
			d.b.metrics.Waits.Inc()
		}
		took := time.Since(begun)
		d.b.metrics.Waited.WithLabelValues(whom).Add(took.Seconds())
		w.Left -= took
		return took
	}
	if most := min(w.Left, patience); !d.quick && most > 0 {
		var all []*transport.Conn
		for _, to := range d.late {
			all = append(all, conns(to)...)
		}
		wait("fastest", most, all...)
	}
	for _, to := range d.late {
		if len(d.late) > 1 || d.quick {
			if most := min(w.Left, w.Pace.Left(time.Now())); most > 0 {
				w.Pace.Spend(wait("others", most, conns(to)...))
			}
		}
		d.deliver(to)
	}
}

// conns are the connections of a group that publishers may wait for: one of them is enough.
func conns(to group) (out []*transport.Conn) {
	for i := range to {
		if s := to[i].To.now.Load(); s != nil && s.conn.State() != transport.GivenUp {
			out = append(out, s.conn.Conn)
		}
	}
	return out
}

// deliver delivers to one of a group: if possible to one that keeps up.
func (d *distribution) deliver(to group) {
	for _, anyone := range []bool{len(to) == 1, true} {
		for i := range to {
			sub := to[i].To.now.Load()
			if sub != nil && (anyone || sub.conn.State() == transport.KeepsUp) && sub.deliver(&d.f, deliveryFor(d.f.Message, &to[i], sub.v5)) {
				return
			}
		}
	}
}

// deliveryFor is how a subscriber wants m.
func deliveryFor(m *message.Message, sub *topictree.Match[*subscriber], v5 bool) message.Delivery {
	return message.Delivery{QoS: min(m.QoS, sub.QoS), Retain: m.Retain && sub.RetainAsPublished && v5, IDs: sub.Identifiers()}
}

// deliver puts a message into the queue of one subscriber; false if that has ended, or gets such
// messages from its stored session alone, whose packet ids they have.
func (s *session) deliver(f *message.Frames, d message.Delivery) bool {
	b := s.b
	if s.link != nil && min(f.Message.QoS, d.QoS) > 0 {
		return false
	}
	if !b.o.Access.MaySubscribe(s.id, f.Message.Topic) {
		b.withheld(s.id)
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

// withheld counts a message that a client subscribed to and may not get. That is as it should be for a
// device, whose wide filters are granted.
func (b *Broker) withheld(id access.Identity) {
	if !id.Device {
		b.metrics.Dropped("access")
	}
}

// countSent counts a message that is sent.
func (s *session) countSent(qos byte, bytes int) {
	s.sent.Add(1)
	s.b.metrics.PublishedOut(qos, bytes)
}

// tooSlow disconnects a client that has missed a message, or is about to.
func (b *Broker) tooSlow(c *conn, reason string) {
	b.metrics.Dropped(reason)
	if s := c.session.Load(); s != nil && !c.Closed() {
		b.log.Warn("slow client disconnected", "client", s.client, "reason", reason, "bytes", c.Pending())
	}
	c.DropMessages()
	b.disconnect(c, packets.ErrQuotaExceeded)
}

// relieve keeps what waits for all clients together within its limit: those that most
// memory waits for are disconnected.
func (b *Broker) relieve() {
	if b.pending.Load() <= b.o.Limits.TotalWriteBuffer || !b.relieving.TryLock() {
		return
	}
	defer b.relieving.Unlock()
	for {
		worst, sum := b.heaviest()
		if worst == nil || sum <= b.o.Limits.TotalWriteBuffer {
			return
		}
		b.tooSlow(worst, "memory")
	}
}

// heaviest returns the connection that most memory waits for, and the sum over all.
// Those that end already are left out: what they hold is about to be free.
func (b *Broker) heaviest() (worst *conn, sum int64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for c := range b.conns {
		if c.Closed() {
			continue
		}
		sum += c.Pending()
		if worst == nil || c.Pending() > worst.Pending() {
			worst = c
		}
	}
	return worst, sum
}
