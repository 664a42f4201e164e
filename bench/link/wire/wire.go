// Package wire speaks as much MQTT 5 as a publisher and a subscriber of the benchmark need. A
// client library would be measured along with the link.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The control packets that they need. [MQTT 5, 2.1.2]
const (
	packetConnack    = 2
	PacketPublish    = 3  // it delivers a message
	PacketPuback     = 4  // it acknowledges a PUBLISH of QoS 1
	PacketDisconnect = 14 // it ends a connection, with a reason
)

// KeepAlive is that of every connection to either end, in seconds, and of the
// links whose settings are chosen here.
const KeepAlive = 5

// DialTimeout bounds a connect up to its CONNACK.
const DialTimeout = 5 * time.Second

// A Conn is one MQTT 5 connection. One goroutine may read and one write.
type Conn struct {
	net.Conn
	R *bufio.Reader // of what the other end sends
	W *bufio.Writer // of what is sent; flushed by the writer
	// Window is the broker's Receive Maximum (section 3.2.2.3.3).
	Window int
}

// Dial connects with a session that outlives the connection where keep is set.
// user may be empty.
func Dial(addr, clientID, user string, keep bool) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, DialTimeout)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &Conn{Conn: conn, R: bufio.NewReaderSize(conn, 64<<10), W: bufio.NewWriterSize(conn, 64<<10), Window: 1<<16 - 1}
	if err := c.connect(clientID, user, keep); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *Conn) connect(clientID, user string, keep bool) error {
	flags, properties := byte(0x02), []byte{0} // clean start
	if keep {
		flags = 0
		properties = []byte{5, 0x11, 0, 0, 0x0e, 0x10} // session expiry interval: 1 h
	}
	if user != "" {
		flags |= 0x80
	}
	b := text(nil, "MQTT")
	b = append(b, 5, flags)
	b = binary.BigEndian.AppendUint16(b, 0) // no keep-alive: the bench itself sees which connections have ended
	b = append(b, properties...)
	b = text(b, clientID)
	if user != "" {
		b = text(b, user)
	}
	if err := c.SetDeadline(time.Now().Add(DialTimeout)); err != nil {
		return err
	}
	if err := c.send(0x10, b); err != nil {
		return err
	}
	kind, body, err := c.Receive()
	if err != nil {
		return fmt.Errorf("wait for the broker's CONNACK: %w", err)
	}
	if kind>>4 != packetConnack || len(body) < 3 || body[1] != 0 {
		return fmt.Errorf("the broker refused the connection of %s: % x", clientID, body)
	}
	if n := ReceiveMaximum(body[2:]); n > 0 {
		c.Window = n
	}
	return c.SetDeadline(time.Time{})
}

// text appends a string as MQTT writes it (section 1.5.4).
func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// ReceiveMaximum finds that property among those of a CONNACK, 0 where it is not.
func ReceiveMaximum(b []byte) int {
	n, used := binary.Uvarint(b)
	if used <= 0 || int(n) > len(b)-used {
		return 0
	}
	for b = b[used : used+int(n)]; len(b) > 0; {
		id := b[0]
		b = b[1:]
		size := 0
		switch id {
		case 0x24, 0x25, 0x28, 0x29, 0x2a: // a byte
			size = 1
		case 0x21, 0x22, 0x13: // two
			size = 2
		case 0x11, 0x27: // four
			size = 4
		case 0x12, 0x1a, 0x1c, 0x1f, 0x15, 0x16: // a string
			if len(b) >= 2 {
				size = 2 + int(binary.BigEndian.Uint16(b))
			}
		}
		if size == 0 || size > len(b) {
			return 0
		}
		if id == 0x21 {
			return int(binary.BigEndian.Uint16(b))
		}
		b = b[size:]
	}
	return 0
}

// head appends a fixed header (section 2.1).
func head(b []byte, first byte, size int) []byte {
	return binary.AppendUvarint(append(b, first), uint64(size))
}

// send writes a packet and flushes.
func (c *Conn) send(first byte, body []byte) error {
	if _, err := c.W.Write(head(nil, first, len(body))); err != nil {
		return err
	}
	if _, err := c.W.Write(body); err != nil {
		return err
	}
	return c.W.Flush()
}

// Publish writes a PUBLISH of QoS 1 and does not flush.
func (c *Conn) Publish(topic string, id uint16, payload []byte) error {
	b := make([]byte, 0, 16+len(topic)+len(payload))
	b = head(b, PacketPublish<<4|1<<1, 2+len(topic)+2+1+len(payload))
	b = text(b, topic)
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0) // no properties
	_, err := c.W.Write(append(b, payload...))
	return err
}

// Receive reads a packet.
func (c *Conn) Receive() (first byte, body []byte, err error) {
	if first, err = c.R.ReadByte(); err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(c.R)
	if err != nil {
		return 0, nil, err
	}
	if size > 1<<20 {
		return 0, nil, fmt.Errorf("a packet of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.R, body)
	return first, body, err
}

// Subscribe asks for a filter with QoS 1. It does not wait for the answer: a broker
// delivers what it holds for the session before that.
func (c *Conn) Subscribe(filter string) error {
	return c.send(0x82, append(text([]byte{0, 1, 0}, filter), 1)) // packet id 1, no properties
}

// A Delivery is a PUBLISH of QoS 1 as it arrived.
type Delivery struct {
	ID      uint16
	Payload []byte // content of the message
}

// ParsePublish reads the body of a PUBLISH.
func ParsePublish(first byte, body []byte) (d Delivery, err error) {
	bad := errors.New("a PUBLISH that is not whole")
	if len(body) < 2 {
		return d, bad
	}
	n := 2 + int(binary.BigEndian.Uint16(body))
	if len(body) < n {
		return d, bad
	}
	body = body[n:]
	if first>>1&3 > 0 {
		if len(body) < 2 {
			return d, bad
		}
		d.ID, body = binary.BigEndian.Uint16(body), body[2:]
	}
	size, used := binary.Uvarint(body)
	if used <= 0 || int(size) > len(body)-used {
		return d, bad
	}
	d.Payload = body[used+int(size):]
	return d, nil
}

// Puback queues an acknowledgement and does not flush.
func (c *Conn) Puback(id uint16) error {
	_, err := c.W.Write([]byte{PacketPuback << 4, 2, byte(id >> 8), byte(id)})
	return err
}
