package message

import (
	"bytes"
	"math"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
)

// atOnce stands for the expiry of 0 that a client has named for its last will, where 0 is none.
const atOnce = math.MaxUint32

// NoteWillExpiry makes the expiry of a last will in p what EndOfWill reads; named says that the client has named one.
func NoteWillExpiry(p *packets.Packet, named bool) {
	switch v := &p.Connect.WillProperties.MessageExpiryInterval; {
	case named && *v == 0:
		*v = atOnce
	case *v == atOnce:
		*v-- // 136 years less a second
	}
}

// EndOfWill is when a last will ends that is sent now; the zero time is never.
func EndOfWill(expiry uint32) time.Time {
	return EndOf(&packet.Publication{HasExpiry: expiry != 0, Expiry: expiry % atOnce})
}

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
