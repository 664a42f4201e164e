package broker

import (
	"fmt"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
)

// onSubscribe acts on a SUBSCRIBE packet.
func (b *Broker) onSubscribe(s *session, body []byte) error {
	if err := packet.CheckSubscribe(body, s.v5, b.bounds); err != nil {
		return err
	}
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1, Remaining: len(body)}, ProtocolVersion: s.version()}
	if err := p.SubscribeDecode(body); err != nil {
		return reason.Malformed(err)
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Suback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	var list []replay
	for _, sub := range p.Filters {
		sub.Filter = strings.Clone(sub.Filter) // it outlives the packet
		code, isNew := b.subscribe(s, sub)
		if code.Code >= packets.ErrUnspecifiedError.Code {
			b.metrics.Refused("subscribe", subscribeReason(code.Code))
			b.log.Warn("subscribe refused", "client", s.client, "filter", shortened(sub.Filter), "code", code.Code, "reason", code.Reason)
			if !s.terse {
				ack.Properties.ReasonString = code.Reason
			}
			if !s.v5 {
				code.Code = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
			}
		} else if !filter.Shared(sub.Filter) && (sub.RetainHandling == 0 || sub.RetainHandling == 1 && isNew) {
			// Before SUBACK: what is retained after it comes once, as it is published.
			list = append(list, replay{s, sub, b.retained.Find(sub.Filter)}) // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code.Code)
	}
	if s.sub.stored != nil {
		if err := b.flush(); err != nil {
			list = s.unsubscribed(&ack, p.Filters, err)
		}
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
	_, known := s.sub.subs.filters[sub.Filter]
	levels := 1 + strings.Count(sub.Filter, "/")
	if code := b.withinQuota(s, sub.Filter, known); code.Code != 0 {
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
	if !known {
		if ok, whose := b.held.Take(s.sub.address, heldBy(sub.Filter)); !ok {
			code = packets.ErrQuotaExceeded
			code.Reason = noState("subscription", whose)
			return code, false
		}
	}
	if s.sub.subs.filters == nil {
		s.sub.subs.filters = make(map[string]struct{})
	}
	s.sub.subs.filters[sub.Filter] = struct{}{}
	if s.sub.stored != nil {
		s.sub.stored.Subscribe(sub.Filter, sessions.Subscription{
			Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
		})
	}
	b.tree.Add(s.sub, sub.Filter, topictree.Options{ // [MQTT-3.8.4-3]
		Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	if !known {
		s.subscribed.Add(1)
		s.sub.subs.levels += levels
		s.sub.subs.bytes += len(sub.Filter)
		b.metrics.Subscribed(sub.Filter, 1)
	}
	return packets.Code{Code: sub.Qos}, !known
}

// levelsPerFilter is how many levels the filters of a client may have, on average: what
// a subscription takes is taken by its levels.
const levelsPerFilter = 10

// heldBy is about the memory that a subscription takes, in bytes.
func heldBy(filter string) int64 { return int64(len(filter)) + 256 }

// withinQuota refuses a filter for which the client has no room, by reason code.
func (b *Broker) withinQuota(s *session, filter string, known bool) (code packets.Code) {
	l, levels := &b.o.Limits, 1+strings.Count(filter, "/")
	switch {
	case levels > l.Levels:
		code = packets.ErrTopicFilterInvalid
		code.Reason = fmt.Sprintf("filter with %d levels: the limit is %d", levels, l.Levels)
	case known:
	case len(s.sub.subs.filters) >= l.Filters:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("%d subscriptions: that is the limit of a client", len(s.sub.subs.filters))
	case s.sub.subs.levels+levels > l.Filters*levelsPerFilter:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("subscriptions with %d levels in all: the limit of a client is %d", s.sub.subs.levels+levels, l.Filters*levelsPerFilter)
	case s.sub.subs.bytes+len(filter) > l.FilterBytes:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("subscriptions with filters of %d bytes in all: the limit of a client is %d", s.sub.subs.bytes+len(filter), l.FilterBytes)
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
		return reason.Malformed(err)
	}
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, ProtocolVersion: s.version(), PacketID: p.PacketID}
	for _, sub := range p.Filters {
		code := packets.CodeNoSubscriptionExisted.Code
		if _, ok := s.sub.subs.filters[sub.Filter]; ok {
			b.forget(s.sub, sub.Filter)
			s.subscribed.Add(-1)
			if code = packets.CodeSuccess.Code; s.sub.stored != nil {
				s.sub.stored.Unsubscribe(sub.Filter)
			}
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code) // [MQTT-3.11.3-1]
	}
	if s.sub.stored != nil {
		if err := b.flush(); err != nil { // it has no effect any more until a crash
			b.log.Warn("unsubscribe not stored", "client", s.client, "err", err)
		}
	}
	return b.send(s.conn, &ack, ack.UnsubackEncode) // [MQTT-3.10.4-4]
}

// forget ends a subscription.
func (b *Broker) forget(s *subscriber, from string) {
	b.tree.Remove(s, from)
	delete(s.subs.filters, from)
	if s.replays != nil {
		s.replays.remove(from)
	}
	s.subs.levels -= 1 + strings.Count(from, "/")
	s.subs.bytes -= len(from)
	b.held.Add(s.address, -heldBy(from))
	b.metrics.Subscribed(from, -1)
}
