package message

import (
	"bytes"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
)

// WillOf is the last will in a CONNECT packet, or nil. It shares no memory with the
// packet. Its expiry is counted from when it is sent.
func WillOf(p *packets.Packet) *Message {
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
	return &Message{Topic: strings.Clone(c.WillTopic), Payload: bytes.Clone(c.WillPayload), QoS: c.WillQos, Retain: c.WillRetain, Props: props.Encode()}
}
