package exchange

import (
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// forClients returns a message of a site as clients of the CO's broker receive it.
func forClients(d *fleet.Delivery) client.Message {
	m := &d.Message
	out := client.Message{
		Topic: topic.ForTail(topic.Data, d.Site, m.Topic), Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Expiry: d.ExpiresIn,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	unsynced, own := stream.Unsynced(m.Properties)
	pairs := stream.Stamp{Time: d.Time, Unsynced: unsynced, Stream: d.Stream, Seq: d.Seq}.Properties(own)
	for i := 0; i < len(pairs); i += 2 {
		out.Properties = append(out.Properties, client.Property{Key: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// forSite returns a client's message as it is sent to the site of t.
func forSite(t topic.Topic, m client.Message) protocol.DataMessage {
	out := protocol.DataMessage{
		V: protocol.Version, Topic: t.Tail, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, ExpiryMillis: uint64(m.Expiry.Milliseconds()),
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	for _, p := range m.Properties {
		out.Properties = append(out.Properties, p.Key, p.Value)
	}
	return out
}
