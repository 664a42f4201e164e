package client

import (
	"encoding/binary"
	"io"
	"net"

	"github.com/eclipse/paho.golang/packets"
)

// connect is a CONNECT packet whose will keeps its properties, which the codec
// would leave out.
type connect struct{ *packets.Connect }

// Buffers encodes the packet.
func (c connect) Buffers() net.Buffers {
	b := appendString(nil, c.ProtocolName)
	b = append(b, c.ProtocolVersion, c.PackFlags())
	b = binary.BigEndian.AppendUint16(b, c.KeepAlive)
	b = appendProperties(b, c.Properties.Pack(packets.CONNECT))
	b = appendString(b, c.ClientID)
	if c.WillFlag {
		b = appendProperties(b, c.WillProperties.Pack(packets.PUBLISH))
		b = appendString(b, c.WillTopic)
		b = appendString(b, string(c.WillMessage))
	}
	if c.UsernameFlag {
		b = appendString(b, c.Username)
	}
	if c.PasswordFlag {
		b = appendString(b, string(c.Password))
	}
	return net.Buffers{b}
}

// WriteTo writes the packet with its header.
func (c connect) WriteTo(w io.Writer) (int64, error) {
	return (&packets.ControlPacket{FixedHeader: packets.FixedHeader{Type: packets.CONNECT}, Content: c}).WriteTo(w)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendProperties(b, p []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(p))), p...) // MQTT's variable byte integer is a uvarint
}
