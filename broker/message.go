package broker

import (
	"bytes"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// A message is one application message on its way through the broker. It does
// not change.
type message struct {
	topic   string
	payload []byte
	qos     byte
	retain  bool
	origin  string      // client id of the publisher; "" is the broker itself
	expires time.Time   // zero: never
	props   *properties // nil: none
}

// properties are those that the broker passes on unchanged. [MQTT-3.3.2-4]
// [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]
type properties struct {
	format        byte
	hasFormat     bool
	contentType   string
	responseTopic string
	correlation   []byte
	user          []packets.UserProperty
}

func propertiesOf(p *packets.Properties) *properties {
	if !p.PayloadFormatFlag && p.ContentType == "" && p.ResponseTopic == "" && len(p.CorrelationData) == 0 && len(p.User) == 0 {
		return nil
	}
	return &properties{
		format: p.PayloadFormat, hasFormat: p.PayloadFormatFlag, contentType: p.ContentType,
		responseTopic: p.ResponseTopic, correlation: p.CorrelationData, user: p.User,
	}
}

func expiryOf(p *packets.Properties, now time.Time) time.Time {
	if p.MessageExpiryInterval == 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(p.MessageExpiryInterval) * time.Second)
}

// received is a PUBLISH packet of a client as a message.
func received(p *packets.Packet, origin string) *message {
	return &message{
		topic: p.TopicName, payload: p.Payload, qos: p.FixedHeader.Qos, retain: p.FixedHeader.Retain,
		origin: origin, expires: expiryOf(&p.Properties, time.Now()), props: propertiesOf(&p.Properties),
	}
}

// own is a message of the broker's owner.
func own(m Message) *message {
	p := packets.Properties{
		MessageExpiryInterval: m.ExpirySeconds(), ContentType: m.ContentType,
		ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	for _, u := range m.Properties {
		p.User = append(p.User, packets.UserProperty{Key: u.Key, Val: u.Value})
	}
	return &message{
		topic: m.Topic, payload: m.Payload, qos: m.QoS, retain: m.Retain,
		expires: expiryOf(&p, time.Now()), props: propertiesOf(&p),
	}
}

// public is m as the owner of the broker sees it.
func (m *message) public() Message {
	out := Message{Topic: m.topic, Payload: m.payload, QoS: m.qos, Retain: m.retain}
	if !m.expires.IsZero() {
		out.Expiry = time.Duration(m.expiresIn()) * time.Second
	}
	if m.props == nil {
		return out
	}
	out.ContentType, out.ResponseTopic, out.CorrelationData = m.props.contentType, m.props.responseTopic, m.props.correlation
	for _, u := range m.props.user {
		out.Properties = append(out.Properties, Property{Key: u.Key, Value: u.Val})
	}
	return out
}

// expiresIn is how many seconds of its life m has, rounded up, 0 if none. m expires.
func (m *message) expiresIn() uint32 {
	d := time.Until(m.expires)
	if d <= 0 {
		return 0
	}
	return uint32((d + time.Second - 1) / time.Second)
}

// A delivery says how one subscription wants a message.
type delivery struct {
	qos    byte // of the subscription
	retain bool // the RETAIN flag to send
	ids    []int
}

// frames are a message's PUBLISH packets. Those for subscribers of the same kind
// are equal but for the packet id, so each kind is encoded once. The result is
// good until the next call of get. Not safe for concurrent use.
type frames struct {
	m    *message
	same [2][3][2][]byte // by MQTT 5 or 3, QoS, RETAIN
}

// get returns the packet, and where its packet id is; 0 without one.
func (f *frames) get(v5 bool, d delivery) (frame []byte, idAt int, err error) {
	var slot *[]byte
	if len(d.ids) == 0 {
		slot = &f.same[truth(v5)][d.qos][truth(d.retain)]
		frame = *slot
	}
	if frame == nil {
		if frame, err = f.encode(v5, d); err != nil {
			return nil, 0, err
		}
		if slot != nil {
			*slot = frame
		}
	}
	if d.qos > 0 {
		idAt = 1
		for frame[idAt]&0x80 != 0 {
			idAt++
		}
		idAt += 3 + len(f.m.topic)
	}
	return frame, idAt, nil
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (f *frames) encode(v5 bool, d delivery) ([]byte, error) {
	m := f.m
	p := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: d.qos, Retain: d.retain},
		TopicName:   m.topic, Payload: m.payload, ProtocolVersion: 4, PacketID: 1, // the id is written over
	}
	size := len(m.topic) + len(m.payload) + 16
	if v5 {
		p.ProtocolVersion = 5
		p.Mods.AllowResponseInfo = true // without it mochi leaves the response topic out
		p.Properties.SubscriptionIdentifier = d.ids
		if !m.expires.IsZero() {
			p.Properties.MessageExpiryInterval = max(1, m.expiresIn()) // [MQTT-3.3.2-6]
		}
		if o := m.props; o != nil {
			p.Properties.PayloadFormat, p.Properties.PayloadFormatFlag = o.format, o.hasFormat
			p.Properties.ContentType, p.Properties.ResponseTopic = o.contentType, o.responseTopic
			p.Properties.CorrelationData, p.Properties.User = o.correlation, o.user
		}
	}
	var buf bytes.Buffer
	buf.Grow(size)
	if err := p.PublishEncode(&buf); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
