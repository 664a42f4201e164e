// Package packet is the strict reader of what clients send: MQTT 5 and 3.1.1, as a server must read
// it. It runs before the decoder. A packet that it accepts has every field that its header
// announces, within the limits; for any other the error is an *Error with the reason code and the
// clause.
//
// It allocates nothing on the word of a client: a body is read in chunks as it arrives (ReadBody),
// and checked before it is decoded. No input makes it panic. PUBLISH, the acknowledgements and
// DISCONNECT it reads itself; for CONNECT, SUBSCRIBE and UNSUBSCRIBE it checks the body, and the
// codec of the broker decodes. It writes PUBLISH as well, see Frame.
//
// Nothing here is safe for concurrent use unless it says so.
package packet

import (
	"fmt"
	"io"
)

// A Type is the type of a packet: the upper four bits of its first byte. [MQTT 5, 2.1.2]
type Type byte

// The types of packets.
const (
	Connect     Type = iota + 1 // client to server: connect
	Connack                     // server to client: the answer to CONNECT
	Publish                     // a message
	Puback                      // acknowledges a PUBLISH of QoS 1
	Pubrec                      // acknowledges a PUBLISH of QoS 2
	Pubrel                      // releases a message of QoS 2
	Pubcomp                     // ends a message of QoS 2
	Subscribe                   // client to server: subscribe
	Suback                      // server to client: the answer to SUBSCRIBE
	Unsubscribe                 // client to server: unsubscribe
	Unsuback                    // server to client: the answer to UNSUBSCRIBE
	Pingreq                     // client to server: a ping
	Pingresp                    // server to client: the answer to PINGREQ
	Disconnect                  // ends the connection, with a reason in MQTT 5
	Auth                        // extended authentication (MQTT 5)
)

// will stands for the will properties of CONNECT where a Type is asked for.
const will Type = 0

var typeNames = [16]string{
	"will", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
}

// String returns the name of the type in the specification.
func (t Type) String() string { return typeNames[t&15] }

// The reason codes that this package gives. [MQTT 5, 2.4]
const (
	MalformedPacket  = 0x81 // the packet cannot be read
	ProtocolError    = 0x82 // the packet breaks a rule of MQTT
	BadVersion       = 0x84 // the version of MQTT is not supported
	TopicNameInvalid = 0x90 // the topic name is not accepted
	PacketTooLarge   = 0x95 // the packet is larger than the receiver allows
	QuotaExceeded    = 0x97 // a limit of the broker is reached
)

// An Error says why a packet is refused.
type Error struct {
	Code   byte   // the MQTT 5 reason code, 0x80 or above
	Clause string // of the specification, such as MQTT-3.8.3-1; "" for a limit of ours
	Reason string // in words
}

// Error returns the reason and the clause.
func (e *Error) Error() string {
	if e.Clause == "" {
		return e.Reason
	}
	return e.Reason + " [" + e.Clause + "]"
}

func malformed(clause, format string, args ...any) *Error {
	return &Error{MalformedPacket, clause, fmt.Sprintf(format, args...)}
}

func violation(clause, format string, args ...any) *Error {
	return &Error{ProtocolError, clause, fmt.Sprintf(format, args...)}
}

// Limits bound what one packet may hold, where the specification does not.
type Limits struct {
	Filters        int // filters of one SUBSCRIBE or UNSUBSCRIBE
	Levels         int // levels of a topic name; those of filters are for the subscriber's quota
	UserProperties int // user properties of one packet
}

// A Header is the fixed header of a packet.
type Header struct {
	Type   Type
	Flags  byte // the lower four bits of the first byte
	Length int  // bytes of the body, up to 268,435,455
	Size   int  // bytes of the header itself, 2 to 5
}

// QoS is the quality of service of a PUBLISH.
func (h Header) QoS() byte { return h.Flags >> 1 & 3 }

// Retain is the RETAIN flag of a PUBLISH.
func (h Header) Retain() bool { return h.Flags&1 != 0 }

// Total is the size of the whole packet in bytes.
func (h Header) Total() int { return h.Size + h.Length }

// ReadHeader reads a fixed header. The error is an *Error, or that of r. Idle connections
// wait in it, so its stack frame is small: what is wrong is put into words elsewhere.
func ReadHeader(r io.ByteReader) (h Header, err error) {
	b, err := r.ReadByte()
	if err != nil {
		return h, err
	}
	h.Type, h.Flags = Type(b>>4), b&15
	if !h.flagsAllowed() {
		return h, h.badFlags()
	}
	for shift := 0; ; shift += 7 { // [MQTT 5, 1.5.5]
		if b, err = r.ReadByte(); err != nil {
			return h, err
		}
		h.Length |= int(b&0x7f) << shift
		h.Size = 2 + shift/7
		if b == 0 && shift > 0 || b >= 0x80 && shift == 21 {
			return h, h.badLength(b)
		}
		if b < 0x80 {
			return h, nil
		}
	}
}

//go:noinline
func (h Header) badLength(last byte) error {
	if last == 0 {
		return malformed("MQTT-1.5.5-1", "%s: the remaining length takes more bytes than it needs", h.Type)
	}
	return malformed("MQTT-1.5.5-1", "%s: the remaining length has more than four bytes", h.Type)
}

// flagsAllowed checks the flags by the type. [MQTT 5, 2.1.3]
func (h Header) flagsAllowed() bool {
	switch h.Type {
	case will:
		return false
	case Publish:
		return h.QoS() != 3 && (h.QoS() > 0 || h.Flags&8 == 0)
	case Pubrel, Subscribe, Unsubscribe:
		return h.Flags == 2
	default:
		return h.Flags == 0
	}
}

//go:noinline
func (h Header) badFlags() error {
	switch {
	case h.Type == will:
		return malformed("MQTT 5, 2.1.2", "packet type 0 is reserved")
	case h.Type == Publish && h.QoS() == 3:
		return malformed("MQTT-3.3.1-4", "PUBLISH with QoS 3")
	case h.Type == Publish:
		return malformed("MQTT-3.3.1-2", "PUBLISH with DUP and QoS 0")
	}
	return malformed("MQTT-2.1.3-1", "%s with the flags %04b, which are reserved", h.Type, h.Flags)
}

// Chunk is how many bytes of a body are read, and allocated, at first. After that
// as many are allocated as have arrived.
const Chunk = 16 << 10

// ReadBody reads a body of n bytes. What it has allocated is never more than Chunk
// bytes, or twice what has arrived. grown is called before each further allocation
// with the number of bytes that it adds, and after each chunk that arrived with 0;
// its error ends the reading. The first Chunk bytes are not announced.
func ReadBody(r io.Reader, n int, grown func(more int) error) ([]byte, error) {
	body := make([]byte, min(n, Chunk))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, unexpected(err)
	}
	for len(body) < n {
		if len(body) == cap(body) {
			size := min(n, 2*cap(body))
			if err := grown(size - cap(body)); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		at := len(body)
		body = body[:min(at+Chunk, cap(body))]
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			return nil, unexpected(err)
		}
		if err := grown(0); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// unexpected is err, where the end of the input is in the middle of a packet.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
