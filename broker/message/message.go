// Package message is an application message within the broker: how it comes from the broker's
// owner, and which packets carry it to clients.
package message

import (
	"strings"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/protocol"
)

// A Message is one application message on its way through the broker. It does not
// change. It keeps its properties as they came on the wire, which takes no more memory
// than the client sent, and passes them on unchanged.
type Message struct {
	Topic   string
	Payload []byte
	Props   []byte    // as in packet.Publication
	QoS     byte      // with which it was published
	Retain  bool      // it was published to be retained
	Origin  string    // client id of the publisher; "" is the broker itself
	Owner   string    // whom the publisher counts for, an identity or an address; "" is the broker itself
	Expires time.Time // zero: never
}

// ExpiryOf is when a message ends that lives so many seconds from now on; the zero time for 0,
// which is never.
func ExpiryOf(seconds uint32) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(seconds) * time.Second)
}

// EndOf is when a message ends that a client has published; the zero time is never. An expiry of 0 is not none: it is
// what a client passes on that got the message in its last second.
func EndOf(p *packet.Publication) time.Time {
	if p.HasExpiry && p.Expiry == 0 {
		return time.Now().Add(packet.Shortest)
	}
	return ExpiryOf(p.Expiry)
}

// Size is what the message counts for if it is retained.
func (m *Message) Size() int64 {
	return retained.Size(len(m.Topic) + len(m.Props) + len(m.Payload))
}

// Own is a message of the broker's owner.
func Own(m client.Message) *Message {
	p := packet.Properties{ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, Correlation: m.CorrelationData}
	for _, u := range m.Properties {
		p.User = append(p.User, packet.UserProperty(u))
	}
	return &Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain,
		Expires: ExpiryOf(m.ExpirySeconds()), Props: p.Encode(),
	}
}

// Public is m as the owner of the broker sees it.
func (m *Message) Public() client.Message {
	out := client.Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain}
	if !m.Expires.IsZero() {
		out.Expiry = time.Duration(max(1, packet.Seconds(time.Until(m.Expires)))) * time.Second // 0 would be: never
	}
	if len(m.Props) == 0 {
		return out
	}
	p := packet.DecodeProperties(m.Props)
	out.ContentType, out.ResponseTopic, out.CorrelationData = p.ContentType, p.ResponseTopic, p.Correlation
	for _, u := range p.User {
		out.Properties = append(out.Properties, client.Property(u))
	}
	return out
}

// A Delivery says how one subscription wants a message.
type Delivery struct {
	QoS    byte  // of the subscription
	Retain bool  // the RETAIN flag to send
	IDs    []int // subscription identifiers
}

// Frames are a message's PUBLISH packets. Subscribers of the same kind share one. Not
// safe for concurrent use.
type Frames struct {
	Message *Message               // does not change
	same    [2][3][2]*packet.Frame // by MQTT 5 or 3, QoS, RETAIN; without identifiers
}

// Get returns the packet for a delivery to a client of MQTT 5, or of an earlier version.
func (f *Frames) Get(v5 bool, d Delivery) *packet.Frame {
	if !v5 {
		d.IDs = nil
	}
	slot := &f.same[truth(v5)][d.QoS][truth(d.Retain)]
	if len(d.IDs) == 0 && *slot != nil {
		return *slot
	}
	frame := packet.NewFrame(packet.Outgoing{
		Topic: f.Message.Topic, Payload: f.Message.Payload, Properties: f.Message.Props, Expires: f.Message.Expires,
		Identifiers: d.IDs, QoS: d.QoS, Retain: d.Retain, V5: v5,
	})
	if len(d.IDs) == 0 {
		*slot = frame
	}
	return frame
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Check returns what is wrong with a message of the broker's owner, of kind Invalid.
func Check(m client.Message) error {
	if m.Topic == "" || len(m.Topic) > 1<<16-1 || strings.ContainsAny(m.Topic, "+#\x00") || m.Topic[0] == '$' {
		return protocol.Errorf(protocol.Invalid, "publish to %.200q: want a topic of up to 65535 bytes without wildcards that does not begin with $", m.Topic)
	}
	if max(len(m.ContentType), len(m.ResponseTopic), len(m.CorrelationData)) > 1<<16-1 {
		return protocol.Errorf(protocol.Invalid, "publish to %s: a property of more than 65535 bytes", m.Topic)
	}
	for _, p := range m.Properties {
		if max(len(p.Key), len(p.Value)) > 1<<16-1 {
			return protocol.Errorf(protocol.Invalid, "publish to %s: user property %.60q of more than 65535 bytes", m.Topic, p.Key)
		}
	}
	if m.QoS > 2 {
		return protocol.Errorf(protocol.Invalid, "publish to %s: QoS %d: want 0, 1 or 2", m.Topic, m.QoS)
	}
	return nil
}
