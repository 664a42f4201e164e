package broker

import (
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/protocol"
)

// onPublish acts on a PUBLISH packet: it is taken, retained, put into the queues of its
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
	b.metrics.publishedIn(qos)
	if qos == 2 {
		if _, again := s.pending[p.ID]; again {
			s.ack(packets.Pubrec, p.ID, packets.CodeSuccess) // [MQTT-4.3.3-10]
			return nil
		}
		if len(s.pending) >= receiveMaximum { // [MQTT-3.3.4-7]
			return packets.ErrReceiveMaximum
		}
	}
	m := &message{
		topic: topic, payload: p.Payload, props: p.Properties, qos: qos, retain: h.Retain(),
		origin: s.client, owner: s.id.Name, expires: expiryOf(p.Expiry, time.Now()),
	}
	if code := b.receive(s, m); code.Code != 0 {
		return s.reject(qos, p.ID, code)
	}
	switch qos {
	case 1:
		s.ack(packets.Puback, p.ID, packets.CodeSuccess) // [MQTT-4.3.2-4]
	case 2:
		if s.pending == nil {
			s.pending = make(map[uint16]struct{})
		}
		s.pending[p.ID] = struct{}{}
		s.ack(packets.Pubrec, p.ID, packets.CodeSuccess) // [MQTT-4.3.3-8]
	}
	return nil
}

// receive is onPublish between validation and acknowledgement. It returns why the
// message was refused, or the code 0.
func (b *Broker) receive(s *session, m *message) packets.Code {
	if reserved(m.topic) || !b.o.Access.MayPublish(s.id, m.topic) {
		b.metrics.refused("publish", "access")
		b.log.Warn("publish refused", "client", s.client, "topic", m.topic)
		return packets.ErrNotAuthorized
	}
	if err := b.accepted(s, m, func() { b.distribute(m, s.waiting(forever)) }); err != nil {
		b.log.Warn("message not taken", "client", s.client, "topic", m.topic, "qos", m.qos, "err", err)
		return publishCode(err)
	}
	return packets.Code{}
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
type group = []topictree.Match[*session]

// distribute retains m, if it says so, and puts it into the queues of its subscribers:
// first of those that keep up, then of those that lag behind, which w may wait for.
func (b *Broker) distribute(m *message, w *transport.Waiting) {
	switch {
	case !m.retain:
	case len(m.payload) == 0: // [MQTT-3.3.1-6]
		b.retained.Delete(m.topic)
	default: // [MQTT-3.3.1-5]
		b.retained.Put(retained.Message[*message]{Topic: m.topic, Value: m, Owner: m.owner, Size: m.size(), Expires: m.expires})
	}
	to := b.tree.Find(m.topic)
	d := distribution{b: b, f: frames{m: m}}
	for i := range to.Plain {
		if sub := &to.Plain[i]; !sub.NoLocal || sub.To.client != m.origin { // [MQTT-3.8.3-3]
			d.offer(to.Plain[i : i+1])
		}
	}
	for _, members := range to.Shared {
		d.offer(members)
	}
	if len(d.late) > 0 {
		d.await(w)
	}
}

// A distribution is a message on its way to its subscribers.
type distribution struct {
	b     *Broker
	f     frames
	quick bool    // a subscriber that keeps up got it
	late  []group // have not got it, as they lag behind
}

// offer delivers to a group, unless it lags behind.
func (d *distribution) offer(to group) {
	lags := -1
	for i := range to {
		sub := to[i].To
		state := sub.conn.State()
		if state == transport.Lags && sub.client == d.f.m.origin {
			state = transport.GivenUp // who waits for itself reads no acknowledgements
		}
		switch {
		case state == transport.KeepsUp && sub.deliver(&d.f, deliveryFor(d.f.m, &to[i])): // [MQTT-4.8.2-4]
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
			d.b.metrics.waits.Inc()
		}
		took := time.Since(begun)
		d.b.metrics.waited.WithLabelValues(whom).Add(took.Seconds())
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
		if c := to[i].To.conn; c.State() != transport.GivenUp {
			out = append(out, c.Conn)
		}
	}
	return out
}

// deliver delivers to one of a group: if possible to one that keeps up.
func (d *distribution) deliver(to group) {
	for _, anyone := range []bool{len(to) == 1, true} {
		for i := range to {
			if sub := to[i].To; (anyone || sub.conn.State() == transport.KeepsUp) && sub.deliver(&d.f, deliveryFor(d.f.m, &to[i])) {
				return
			}
		}
	}
}

// deliveryFor is how a subscriber wants m.
func deliveryFor(m *message, sub *topictree.Match[*session]) delivery {
	return delivery{qos: min(m.qos, sub.QoS), retain: m.retain && sub.RetainAsPublished && sub.To.v5, ids: sub.Identifiers()}
}

// deliver puts a message into the queue of one subscriber; false if that is gone.
func (s *session) deliver(f *frames, d delivery) bool {
	b := s.b
	if !b.o.Access.MaySubscribe(s.id, f.m.topic) {
		b.metrics.dropped("access")
		return true
	}
	frame := f.get(s.v5, d)
	if s.largest > 0 && frame.Size() > s.largest { // [MQTT-3.1.2-24]
		b.metrics.dropped("packet_too_large")
		return true
	}
	switch err := s.conn.Publish(frame); err {
	case nil:
		b.metrics.publishedOut(d.qos, frame.Size())
		b.relieve()
		return true
	case transport.ErrSlow:
		b.tooSlow(s.conn, s.conn.Slowness())
	}
	return false
}

// tooSlow disconnects a client that has missed a message, or is about to.
func (b *Broker) tooSlow(c *conn, reason string) {
	b.metrics.dropped(reason)
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
