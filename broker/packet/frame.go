package packet

import (
	"bytes"
	"encoding/binary"
	"time"
)

// An Outgoing is a message as one kind of subscriber gets it.
type Outgoing struct {
	Topic       string
	Payload     []byte
	Properties  []byte    // as in Publication
	Expires     time.Time // zero: never
	Identifiers []int     // subscription identifiers
	QoS         byte
	Retain      bool
	V5          bool // for a client of MQTT 5
}

// A Frame is an encoded PUBLISH. Subscribers of one kind share it: what differs
// between them, and what changes with time, is put in when it is written. It does
// not change, and may be used concurrently.
type Frame struct {
	head     []byte // all that stands before the payload
	payload  []byte // shared with the message
	idAt     int    // where the packet id is; 0: none, as QoS is 0
	expiryAt int    // where the message expiry is; 0: none
	expires  time.Time
}

// NewFrame encodes a message. It keeps the payload, and with it all of the packet in which that came, unless
// the rest of this would be more than what the Frame counts for.
func NewFrame(o Outgoing) *Frame {
	props := 0
	expiry := o.V5 && !o.Expires.IsZero()
	if o.V5 {
		props = len(o.Properties)
		if expiry {
			props += 5
		}
		for _, id := range o.Identifiers {
			props += 1 + varintSize(id)
		}
	}
	length := 2 + len(o.Topic) + len(o.Payload) + props
	if o.QoS > 0 {
		length += 2
	}
	if o.V5 {
		length += varintSize(props)
	}
	first := byte(Publish)<<4 | o.QoS<<1
	if o.Retain {
		first |= 1
	}
	f := &Frame{payload: o.Payload, expires: o.Expires}
	if !o.V5 && len(o.Properties) > len(o.Payload) {
		f.payload = bytes.Clone(o.Payload)
	}
	b := make([]byte, 0, 1+varintSize(length)+length-len(o.Payload))
	b = binary.AppendUvarint(append(b, first), uint64(length)) // MQTT's variable byte integer is a uvarint
	b = appendText(b, o.Topic)
	if o.QoS > 0 {
		f.idAt = len(b)
		b = append(b, 0, 0)
	}
	if o.V5 {
		b = binary.AppendUvarint(b, uint64(props))
		if expiry {
			f.expiryAt = len(b) + 1
			b = append(b, propMessageExpiry, 0, 0, 0, 0)
		}
		for _, id := range o.Identifiers {
			b = binary.AppendUvarint(append(b, propSubscription), uint64(id))
		}
		b = append(b, o.Properties...)
	}
	f.head = b
	return f
}

func varintSize(n int) (size int) {
	for size = 1; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// NoMessage is the QoS of a Frame that is no PUBLISH.
const NoMessage = 0xff

// Raw is a Frame of a packet other than PUBLISH. It copies p, which is not empty.
func Raw(p []byte) *Frame { return &Frame{head: append([]byte(nil), p...)} }

// Size is the size of the packet in bytes.
func (f *Frame) Size() int { return len(f.head) + len(f.payload) }

// QoS is the quality of service with which the packet is sent; NoMessage if it is not
// a PUBLISH.
func (f *Frame) QoS() byte {
	if f.head[0]>>4 != byte(Publish) {
		return NoMessage
	}
	return f.head[0] >> 1 & 3
}

// Payload is the end of the packet.
func (f *Frame) Payload() []byte { return f.payload }

// Expired reports whether the message must not be sent any more. [MQTT-3.3.2-5]
func (f *Frame) Expired(now time.Time) bool { return !f.expires.IsZero() && !now.Before(f.expires) }

// AppendHead appends the packet without its payload, as it is to be sent now: with
// its packet id and the rest of the message's life. [MQTT-3.3.2-6]
func (f *Frame) AppendHead(b []byte, id uint16, now time.Time) []byte {
	at := len(b)
	b = append(b, f.head...)
	if f.idAt > 0 {
		binary.BigEndian.PutUint16(b[at+f.idAt:], id)
	}
	if f.expiryAt > 0 {
		binary.BigEndian.PutUint32(b[at+f.expiryAt:], Seconds(f.expires.Sub(now)))
	}
	return b
}

// Shortest is the life of a message whose publisher gives it 0 s: clients that take it at once receive it.
const Shortest = 250 * time.Millisecond

// Seconds is the rest of a message's life in whole seconds, rounded up; 0 if it is over, or is no more than Shortest, so
// that a message of 0 s is sent with 0. [MQTT-3.3.2-6]
func Seconds(left time.Duration) uint32 {
	if left <= Shortest {
		return 0
	}
	return uint32((left + time.Second - 1) / time.Second)
}
