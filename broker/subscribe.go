package broker

import (
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/internal/refusals"
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
	var list []routing.Replay
	for _, sub := range p.Filters {
		sub.Filter = strings.Clone(sub.Filter) // it outlives the packet
		code, isNew := b.routes.Subscribe(s.sub, s.id, sub)
		if code.Code >= packets.ErrUnspecifiedError.Code {
			b.metrics.Refused("subscribe", reason.OfFilter(code.Code))
			shown := refusals.Shortened(sub.Filter)
			b.refused.Warn("subscribe", s.account, shown, "subscribe refused", "client", refusals.Shortened(s.client), "filter", shown, "code", code.Code, "reason", code.Reason)
			if !s.terse {
				ack.Properties.ReasonString = code.Reason
			}
			if !s.v5 {
				code.Code = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
			}
		} else if !filter.Shared(sub.Filter) && (sub.RetainHandling == 0 || sub.RetainHandling == 1 && isNew) {
			// Before SUBACK: what is retained after it comes once, as it is published.
			list = append(list, b.routes.Replay(sub)) // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
		}
		if isNew {
			s.subscribed.Add(1)
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code.Code)
	}
	if s.sub.Stored != nil {
		if err := b.flush(); err != nil {
			list = s.unsubscribed(&ack, p.Filters, err)
		}
	}
	if err := b.send(s.conn, &ack, ack.SubackEncode); err != nil { // [MQTT-3.8.4-1]
		return err
	}
	b.routes.StartReplays(s.sub, s, list)
	return nil
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
		if s.sub.Subscribed(sub.Filter) {
			b.routes.Forget(s.sub, sub.Filter)
			s.subscribed.Add(-1)
			if code = packets.CodeSuccess.Code; s.sub.Stored != nil {
				s.sub.Stored.Unsubscribe(sub.Filter)
			}
		}
		ack.ReasonCodes = append(ack.ReasonCodes, code) // [MQTT-3.11.3-1]
	}
	if s.sub.Stored != nil {
		if err := b.flush(); err != nil { // it has no effect any more until a crash
			b.notStored(s, "unsubscribe not stored", err)
			for i, code := range ack.ReasonCodes {
				if code == packets.CodeSuccess.Code {
					ack.ReasonCodes[i] = packets.ErrUnspecifiedError.Code
				}
			}
			if !s.terse {
				ack.Properties.ReasonString = reason.String(err)
			}
		}
	}
	return b.send(s.conn, &ack, ack.UnsubackEncode) // [MQTT-3.10.4-4]
}
