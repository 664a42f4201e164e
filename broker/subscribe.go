package broker

import (
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/topictree"
)

// onSubscribe acts on a SUBSCRIBE packet.
func (b *Broker) onSubscribe(s *session, p *packets.Packet) error {
	if code := p.SubscribeValidate(); code != packets.CodeSuccess {
		return code
	}
	for _, id := range p.Properties.SubscriptionIdentifier {
		if id == 0 {
			return packets.ErrProtocolViolation // [MQTT-3.8.2.1.2]
		}
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Suback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	var replays []replay
	for _, sub := range p.Filters {
		if sub.Qos > 2 || sub.RetainHandling > 2 { // [MQTT-3.8.3-5]
			return packets.ErrMalformedFlags
		}
		if sub.NoLocal && filter.Shared(sub.Filter) { // [MQTT-3.8.3-4]
			return packets.ErrProtocolViolationInvalidSharedNoLocal
		}
		code, isNew := b.subscribe(s, sub)
		if code.Code >= packets.ErrUnspecifiedError.Code {
			b.metrics.refused("subscribe", "access")
			b.log.Warn("subscribe refused", "client", s.client, "filter", sub.Filter, "code", code.Code, "reason", code.Reason)
			if !s.terse {
				ack.Properties.ReasonString = code.Reason
			}
			if !s.v5 {
				code.Code = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
			}
		} else if !filter.Shared(sub.Filter) && (sub.RetainHandling == 0 || sub.RetainHandling == 1 && isNew) {
			// Before SUBACK: what is retained after it comes once, as it is published.
			replays = append(replays, replay{sub, b.retained.Match(sub.Filter)}) // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code.Code)
	}
	if err := s.conn.send(&ack, ack.SubackEncode); err != nil { // [MQTT-3.8.4-1]
		return err
	}
	if len(replays) > 0 {
		b.wg.Go(func() { // the connection is counted meanwhile
			defer func() {
				if r := recover(); r != nil {
					_ = b.panicked(s.conn, packets.Subscribe, r)
					b.disconnect(s.conn, packets.ErrUnspecifiedError)
				}
			}()
			b.replay(s, replays)
		})
	}
	return nil
}

// subscribe adds a subscription, or replaces it.
func (b *Broker) subscribe(s *session, sub packets.Subscription) (code packets.Code, isNew bool) {
	plain, ok := filter.Plain(sub.Filter)
	if !ok {
		code = packets.ErrTopicFilterInvalid
		code.Reason = "filter " + sub.Filter + ": not a topic filter"
		return code, false
	}
	if !b.o.Access.MaySubscribe(s.id, plain) {
		code = packets.ErrNotAuthorized
		if a, ok := b.o.Access.(interface {
			Refusal(id access.Identity, filter string) string
		}); ok {
			code.Reason = a.Refusal(s.id, plain)
		}
		return code, false
	}
	if s.filters == nil {
		s.filters = make(map[string]struct{})
	}
	_, known := s.filters[sub.Filter]
	s.filters[sub.Filter] = struct{}{}
	b.tree.Add(s, sub.Filter, topictree.Options{ // [MQTT-3.8.4-3]
		Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	if !known {
		b.metrics.subscribed(sub.Filter, 1)
	}
	return packets.Code{Code: sub.Qos}, !known
}

// onUnsubscribe acts on an UNSUBSCRIBE packet.
func (b *Broker) onUnsubscribe(s *session, p *packets.Packet) error {
	if code := p.UnsubscribeValidate(); code != packets.CodeSuccess {
		return code
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	for _, sub := range p.Filters {
		code := packets.CodeNoSubscriptionExisted.Code
		if _, ok := s.filters[sub.Filter]; ok {
			s.forget(sub.Filter)
			code = packets.CodeSuccess.Code
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code) // [MQTT-3.11.3-1]
	}
	return s.conn.send(&ack, ack.UnsubackEncode) // [MQTT-3.10.4-4]
}

// forget ends a subscription.
func (s *session) forget(from string) {
	s.b.tree.Remove(s, from)
	delete(s.filters, from)
	s.b.metrics.subscribed(from, -1)
}

// A replay is what a new subscription gets of what is retained.
type replay struct {
	sub    packets.Subscription
	topics []string
}

// replay sends the retained messages of new subscriptions, at the speed of the
// client: it waits for room as long as the client takes. A message that changes
// meanwhile comes on the other way too, maybe before its older self from here; so
// what was sent is looked at again, and sent again if it has changed. The last
// message of a topic that the client gets is the newest.
func (b *Broker) replay(s *session, list []replay) {
	for _, r := range list {
		sub := r.sub
		for _, name := range r.topics {
			if s.conn.room(); s.conn.isClosed() {
				return
			}
			var last *message
			for m := b.retainedNow(name); m != last; m = b.retainedNow(name) {
				d := delivery{retain: true} // [MQTT-3.3.1-8]
				if last = m; m == nil {     // deleted since: what a subscriber would have seen
					m, d.retain = &message{topic: name, qos: sub.Qos}, false
				}
				d.qos = min(m.qos, sub.Qos)
				if sub.Identifier > 0 {
					d.ids = []int{sub.Identifier}
				}
				if !s.deliver(&frames{m: m}, d, &waiting{}) {
					return
				}
			}
		}
	}
}

// retainedNow is the retained message of a topic, or nil.
func (b *Broker) retainedNow(topic string) *message {
	m, _ := b.retained.Get(topic)
	return m
}
