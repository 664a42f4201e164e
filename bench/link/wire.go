package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The control packets of MQTT 5 that a publisher and a subscriber need (section
// 2.1.2). A client library would be measured along with the link, so the bench
// implements itself, as little as it needs.
const (
	packetConnack    = 2
	packetPublish    = 3
	packetPuback     = 4
	packetDisconnect = 14
)

// keepAlive is that of every connection to either end, in seconds, and of the
// links whose settings are chosen here.
const keepAlive = 5

const dialTimeout = 5 * time.Second

// A wire is one MQTT 5 connection. One goroutine may read and one write.
type wire struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
	// window is the broker's Receive Maximum (section 3.2.2.3.3).
	window int
}

// dial connects with a session that outlives the connection where keep is set.
// user may be empty.
func dial(addr, clientID, user string, keep bool) (*wire, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &wire{Conn: conn, r: bufio.NewReaderSize(conn, 64<<10), w: bufio.NewWriterSize(conn, 64<<10), window: 1<<16 - 1}
	if err := c.connect(clientID, user, keep); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *wire) connect(clientID, user string, keep bool) error {
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
	if err := c.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	if err := c.send(0x10, b); err != nil {
		return err
	}
	kind, body, err := c.receive()
	if err != nil {
		return fmt.Errorf("wait for the broker's CONNACK: %w", err)
	}
	if kind>>4 != packetConnack || len(body) < 3 || body[1] != 0 {
		return fmt.Errorf("the broker refused the connection of %s: % x", clientID, body)
	}
	if n := receiveMaximum(body[2:]); n > 0 {
		c.window = n
	}
	return c.SetDeadline(time.Time{})
}

// text appends a string as MQTT writes it (section 1.5.4).
func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// receiveMaximum finds that property among those of a CONNACK, 0 where it is not.
func receiveMaximum(b []byte) int {
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
func (c *wire) send(first byte, body []byte) error {
	if _, err := c.w.Write(head(nil, first, len(body))); err != nil {
		return err
	}
	if _, err := c.w.Write(body); err != nil {
		return err
	}
	return c.w.Flush()
}

// publish writes a PUBLISH of QoS 1 and does not flush.
func (c *wire) publish(topic string, id uint16, payload []byte) error {
	b := make([]byte, 0, 16+len(topic)+len(payload))
	b = head(b, packetPublish<<4|1<<1, 2+len(topic)+2+1+len(payload))
	b = text(b, topic)
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0) // no properties
	_, err := c.w.Write(append(b, payload...))
	return err
}

// receive reads a packet.
func (c *wire) receive() (first byte, body []byte, err error) {
	if first, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(c.r)
	if err != nil {
		return 0, nil, err
	}
	if size > 1<<20 {
		return 0, nil, fmt.Errorf("a packet of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.r, body)
	return first, body, err
}

// subscribe asks for a filter with QoS 1. It does not wait for the answer: a broker
// delivers what it holds for the session before that.
func (c *wire) subscribe(filter string) error {
	return c.send(0x82, append(text([]byte{0, 1, 0}, filter), 1)) // packet id 1, no properties
}

// A delivery is a PUBLISH of QoS 1 as it arrived.
type delivery struct {
	id      uint16
	payload []byte
}

// parsePublish reads the body of a PUBLISH.
func parsePublish(first byte, body []byte) (d delivery, err error) {
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
		d.id, body = binary.BigEndian.Uint16(body), body[2:]
	}
	size, used := binary.Uvarint(body)
	if used <= 0 || int(size) > len(body)-used {
		return d, bad
	}
	d.payload = body[used+int(size):]
	return d, nil
}

// puback queues an acknowledgement and does not flush.
func (c *wire) puback(id uint16) error {
	_, err := c.w.Write([]byte{packetPuback << 4, 2, byte(id >> 8), byte(id)})
	return err
}
