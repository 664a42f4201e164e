package broker

import (
	"bytes"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/retained"
)

// A message is one application message on its way through the broker. It does not
// change. It keeps its properties as they came on the wire, which takes no more memory
// than the client sent, and passes them on unchanged.
type message struct {
	topic   string
	payload []byte
	props   []byte // as in packet.Publication
	qos     byte
	retain  bool
	origin  string    // client id of the publisher; "" is the broker itself
	owner   string    // name of the publisher's identity; "" is the broker itself
	expires time.Time // zero: never
}

func expiryOf(seconds uint32, now time.Time) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(seconds) * time.Second)
}

// size is what the message counts for if it is retained.
func (m *message) size() int64 {
	return retained.Size(len(m.topic) + len(m.props) + len(m.payload))
}

// own is a message of the broker's owner.
func own(m Message) *message {
	p := packet.Properties{ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, Correlation: m.CorrelationData}
	for _, u := range m.Properties {
		p.User = append(p.User, packet.UserProperty(u))
	}
	return &message{
		topic: m.Topic, payload: m.Payload, qos: m.QoS, retain: m.Retain,
		expires: expiryOf(m.ExpirySeconds(), time.Now()), props: p.Encode(),
	}
}

// willOf is the last will in a CONNECT packet, or nil. It shares no memory with the
// packet. Its expiry is counted from when it is sent.
func willOf(p *packets.Packet) *message {
	c := &p.Connect
	if !c.WillFlag {
		return nil
	}
	w := &c.WillProperties
	props := packet.Properties{
		Format: w.PayloadFormat, HasFormat: w.PayloadFormatFlag, ContentType: w.ContentType, ResponseTopic: w.ResponseTopic, Correlation: w.CorrelationData,
	}
	for _, u := range w.User {
		props.User = append(props.User, packet.UserProperty{Key: u.Key, Value: u.Val})
	}
	return &message{topic: strings.Clone(c.WillTopic), payload: bytes.Clone(c.WillPayload), qos: c.WillQos, retain: c.WillRetain, props: props.Encode()}
}

// public is m as the owner of the broker sees it.
func (m *message) public() Message {
	out := Message{Topic: m.topic, Payload: m.payload, QoS: m.qos, Retain: m.retain}
	if !m.expires.IsZero() {
		out.Expiry = time.Duration(max(1, packet.Seconds(time.Until(m.expires)))) * time.Second // 0 would be: never
	}
	if len(m.props) == 0 {
		return out
	}
	p := packet.DecodeProperties(m.props)
	out.ContentType, out.ResponseTopic, out.CorrelationData = p.ContentType, p.ResponseTopic, p.Correlation
	for _, u := range p.User {
		out.Properties = append(out.Properties, Property(u))
	}
	return out
}

// A delivery says how one subscription wants a message.
type delivery struct {
	qos    byte // of the subscription
	retain bool // the RETAIN flag to send
	ids    []int
}

// frames are a message's PUBLISH packets. Subscribers of the same kind share one. Not
// safe for concurrent use.
type frames struct {
	m    *message
	same [2][3][2]*packet.Frame // by MQTT 5 or 3, QoS, RETAIN; without identifiers
}

func (f *frames) get(v5 bool, d delivery) *packet.Frame {
	if !v5 {
		d.ids = nil
	}
	slot := &f.same[truth(v5)][d.qos][truth(d.retain)]
	if len(d.ids) == 0 && *slot != nil {
		return *slot
	}
	frame := packet.NewFrame(packet.Outgoing{
		Topic: f.m.topic, Payload: f.m.payload, Properties: f.m.props, Expires: f.m.expires,
		Identifiers: d.ids, QoS: d.qos, Retain: d.retain, V5: v5,
	})
	if len(d.ids) == 0 {
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
