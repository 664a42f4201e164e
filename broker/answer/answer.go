// Package answer encodes what the broker answers a client with, within what that client takes.
package answer

import (
	"bytes"
	"fmt"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
)

// A Client is what counts of a client for its answers.
type Client struct {
	V5      bool // it speaks MQTT 5
	Terse   bool // it wants no reason strings. [MQTT-3.1.2-29]
	Largest int  // bytes of a packet that it takes; 0: any
}

// Encode returns the bytes of a packet for a client that takes so many at most; 0: any. encode is
// the method of p that encodes it. A reason string is shortened (packet.ReasonString), and left out if the packet is too large with it.
// [MQTT-3.2.2-19] [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3] A packet that is too
// large without it is an error with a reason code: the client misses an answer. [MQTT-3.1.2-24]
func Encode(p *packets.Packet, largest int, encode func(*bytes.Buffer) error) ([]byte, error) {
	p.Properties.ReasonString = packet.ReasonString(p.Properties.ReasonString)
	var buf bytes.Buffer
	for {
		if err := encode(&buf); err != nil {
			return nil, fmt.Errorf("encode %s: %w", packet.Type(p.FixedHeader.Type), err)
		}
		if largest == 0 || buf.Len() <= largest {
			return buf.Bytes(), nil
		}
		if p.Properties.ReasonString == "" {
			code := packets.ErrPacketTooLarge
			code.Reason = fmt.Sprintf("%s of %d bytes: the client takes %d", packet.Type(p.FixedHeader.Type), buf.Len(), largest)
			return nil, code
		}
		p.Properties.ReasonString = ""
		buf.Reset()
	}
}

// Plain returns PUBACK, PUBREC, PUBREL or PUBCOMP of success, which is all that MQTT 3.1.1 has.
func Plain(kind byte, id uint16) [4]byte {
	head := kind << 4
	if kind == packets.Pubrel {
		head |= 2 // [MQTT-3.6.1-1]
	}
	return [4]byte{head, 2, byte(id >> 8), byte(id)}
}

// Ack returns PUBACK, PUBREC, PUBREL or PUBCOMP with a reason code, for a client of MQTT 5.
func Ack(c Client, kind byte, id uint16, code packets.Code) ([]byte, error) {
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, ProtocolVersion: 5, PacketID: id, ReasonCode: code.Code}
	if !c.Terse {
		p.Properties.ReasonString = code.Reason
	}
	encode := map[byte]func(*bytes.Buffer) error{
		packets.Puback: p.PubackEncode, packets.Pubrec: p.PubrecEncode, packets.Pubrel: p.PubrelEncode, packets.Pubcomp: p.PubcompEncode,
	}[kind]
	if kind == packets.Pubrel {
		p.FixedHeader.Qos = 1
	}
	return Encode(&p, c.Largest, encode)
}

// Refuse returns the CONNACK of a connection that is not accepted.
func Refuse(c Client, code packets.Code) ([]byte, error) {
	ack := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connack}, ReasonCode: code.Code, ProtocolVersion: 4,
		Properties: packets.Properties{ReasonString: code.Reason},
	}
	if c.V5 {
		ack.ProtocolVersion = 5
	}
	return Encode(&ack, c.Largest, ack.ConnackEncode)
}

// Disconnect returns the DISCONNECT that ends a connection for a reason, for a client of MQTT 5.
func Disconnect(c Client, code packets.Code) ([]byte, error) {
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: 5, ReasonCode: code.Code}
	if !c.Terse {
		p.Properties.ReasonString = code.Reason
	}
	return Encode(&p, c.Largest, p.DisconnectEncode)
}

// roomyConnack is how many bytes a CONNACK has at most without its strings.
const roomyConnack = 64

// Shorten leaves out of CONNACK what a client that takes only small packets can do without: topic
// aliases, and the session expiry where it is what the client asked for itself. [MQTT-3.1.2-24]
func Shorten(ack *packets.Packet, c Client, asked bool) {
	if c.Largest == 0 || c.Largest >= roomyConnack {
		return
	}
	ack.Properties.TopicAliasMaximum = 0 // none is what its absence means. [MQTT-3.2.2-18]
	if asked {
		ack.Properties.SessionExpiryInterval, ack.Properties.SessionExpiryIntervalFlag = 0, false
	}
}
