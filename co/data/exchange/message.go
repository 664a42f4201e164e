package exchange

import (
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// The user properties that machine data has at the CO's broker, in front of the
// message's own.
const (
	timeProperty   = "colony-time"   // arrival at the site, by the site's clock, in timeFormat
	streamProperty = "colony-stream" // with colony-seq, the message's position among those of its site
	seqProperty    = "colony-seq"
)

// reserved is the prefix of the names of user properties that only Colony sets.
const reserved = "colony-"

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// forClients returns a message of a site as clients of the CO's broker receive it.
func forClients(d *fleet.Delivery) client.Message {
	m := &d.Message
	out := client.Message{
		Topic: topic.ForTail(topic.Data, d.Site, m.Topic), Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Expiry: d.ExpiresIn,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
		Properties: make([]client.Property, 0, 3+len(m.Properties)/2),
	}
	if !d.Time.IsZero() {
		out.Properties = append(out.Properties, client.Property{Key: timeProperty, Value: d.Time.Format(timeFormat)})
	}
	out.Properties = append(out.Properties,
		client.Property{Key: streamProperty, Value: d.Stream}, client.Property{Key: seqProperty, Value: strconv.FormatUint(d.Seq, 10)})
	for i := 0; i+1 < len(m.Properties); i += 2 {
		if !strings.HasPrefix(m.Properties[i], reserved) {
			out.Properties = append(out.Properties, client.Property{Key: m.Properties[i], Value: m.Properties[i+1]})
		}
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
