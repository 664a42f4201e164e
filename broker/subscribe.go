package broker

import (
	"fmt"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/topictree"
)

// onSubscribe acts on a SUBSCRIBE packet.
func (b *Broker) onSubscribe(s *session, body []byte) error {
	if err := packet.CheckSubscribe(body, s.v5, b.bounds); err != nil {
		return err
	}
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1, Remaining: len(body)}, ProtocolVersion: s.version()}
	if err := p.SubscribeDecode(body); err != nil {
		return malformed(err)
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Suback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	var list []replay
	for _, sub := range p.Filters {
		sub.Filter = strings.Clone(sub.Filter) // it outlives the packet
		code, isNew := b.subscribe(s, sub)
		if code.Code >= packets.ErrUnspecifiedError.Code {
			b.metrics.refused("subscribe", subscribeReason(code.Code))
			b.log.Warn("subscribe refused", "client", s.client, "filter", shortened(sub.Filter), "code", code.Code, "reason", code.Reason)
			if !s.terse {
				ack.Properties.ReasonString = code.Reason
			}
			if !s.v5 {
				code.Code = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
			}
		} else if !filter.Shared(sub.Filter) && (sub.RetainHandling == 0 || sub.RetainHandling == 1 && isNew) {
			// Before SUBACK: what is retained after it comes once, as it is published.
			list = append(list, replay{sub, b.retained.Find(sub.Filter)}) // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code.Code)
	}
	if err := b.send(s.conn, &ack, ack.SubackEncode); err != nil { // [MQTT-3.8.4-1]
		return err
	}
	b.startReplays(s, list)
	return nil
}

// subscribeReason is what a refused filter is counted under.
func subscribeReason(code byte) string {
	if code == packets.ErrQuotaExceeded.Code {
		return "quota"
	}
	return "access"
}

// shortened is a filter as the log shows it.
func shortened(filter string) string {
	const most = 200
	if len(filter) <= most {
		return filter
	}
	return fmt.Sprintf("%s... (%d bytes)", filter[:most], len(filter))
}

// subscribe adds a subscription, or replaces it.
func (b *Broker) subscribe(s *session, sub packets.Subscription) (code packets.Code, isNew bool) {
	plain, ok := filter.Plain(sub.Filter)
	if !ok {
		code = packets.ErrTopicFilterInvalid
		code.Reason = "filter " + shortened(sub.Filter) + ": not a topic filter"
		return code, false
	}
	_, known := s.subs.filters[sub.Filter]
	levels := 1 + strings.Count(sub.Filter, "/")
	if code := b.withinQuota(s, levels, known); code.Code != 0 {
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
	if s.subs.filters == nil {
		s.subs.filters = make(map[string]struct{})
	}
	s.subs.filters[sub.Filter] = struct{}{}
	b.tree.Add(s, sub.Filter, topictree.Options{ // [MQTT-3.8.4-3]
		Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	if !known {
		s.subs.levels += levels
		b.metrics.subscribed(sub.Filter, 1)
	}
	return packets.Code{Code: sub.Qos}, !known
}

// levelsPerFilter is how many levels the filters of a client may have, on average: what
// a subscription takes is taken by its levels.
const levelsPerFilter = 10

// withinQuota refuses a filter for which the client has no room, by reason code.
func (b *Broker) withinQuota(s *session, levels int, known bool) (code packets.Code) {
	l := &b.o.Limits
	switch {
	case levels > l.Levels:
		code = packets.ErrTopicFilterInvalid
		code.Reason = fmt.Sprintf("filter with %d levels: the limit is %d", levels, l.Levels)
	case known:
	case len(s.subs.filters) >= l.Filters:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("%d subscriptions: that is the limit of a client", len(s.subs.filters))
	case s.subs.levels+levels > l.Filters*levelsPerFilter:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("subscriptions with %d levels in all: the limit of a client is %d", s.subs.levels+levels, l.Filters*levelsPerFilter)
	}
	return code
}

// onUnsubscribe acts on an UNSUBSCRIBE packet.
func (b *Broker) onUnsubscribe(s *session, body []byte) error {
	if err := packet.CheckUnsubscribe(body, s.v5, b.bounds); err != nil {
		return err
	}
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1, Remaining: len(body)}, ProtocolVersion: s.version()}
	if err := p.UnsubscribeDecode(body); err != nil {
		return malformed(err)
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	for _, sub := range p.Filters {
		code := packets.CodeNoSubscriptionExisted.Code
		if _, ok := s.subs.filters[sub.Filter]; ok {
			s.forget(sub.Filter)
			code = packets.CodeSuccess.Code
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code) // [MQTT-3.11.3-1]
	}
	return b.send(s.conn, &ack, ack.UnsubackEncode) // [MQTT-3.10.4-4]
}

// forget ends a subscription.
func (s *session) forget(from string) {
	s.b.tree.Remove(s, from)
	delete(s.subs.filters, from)
	if s.replays != nil {
		s.replays.remove(from)
	}
	s.subs.levels -= 1 + strings.Count(from, "/")
	s.b.metrics.subscribed(from, -1)
}
