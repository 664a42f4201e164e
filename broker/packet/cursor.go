package packet

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// A cursor reads the fields of one packet in order. The first error stays, and
// everything after it reads as zero; so a sequence of fields is checked once, at
// its end.
type cursor struct {
	kind Type
	b    []byte // what is not read yet
	err  *Error
}

// fail notes an error, if it is the first.
func (c *cursor) fail(e *Error) {
	if c.err == nil {
		c.err = e
	}
	c.b = nil
}

// bytes reads n bytes. what names the field.
func (c *cursor) bytes(n int, what string) []byte {
	if n > len(c.b) {
		if c.err == nil {
			c.fail(malformed("MQTT 5, 2.1.4", "%s ends within %s", c.kind, what))
		}
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) byte(what string) byte {
	if b := c.bytes(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16(what string) uint16 {
	if b := c.bytes(2, what); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) uint32(what string) uint32 {
	if b := c.bytes(4, what); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// varint reads a variable byte integer. [MQTT 5, 1.5.5]
func (c *cursor) varint(what string) int {
	v := 0
	for shift := 0; c.err == nil; shift += 7 {
		b := c.byte(what)
		v |= int(b&0x7f) << shift
		switch {
		case b == 0 && shift > 0:
			c.fail(malformed("MQTT-1.5.5-1", "%s: %s takes more bytes than it needs", c.kind, what))
		case b < 0x80:
			return v
		case shift == 21:
			c.fail(malformed("MQTT-1.5.5-1", "%s: %s has more than four bytes", c.kind, what))
		}
	}
	return 0
}

// data reads binary data: two bytes of length, and as many bytes. [MQTT 5, 1.5.6]
func (c *cursor) data(what string) []byte { return c.bytes(int(c.uint16(what)), what) }

// text reads a UTF-8 string. [MQTT 5, 1.5.4]
func (c *cursor) text(what string) []byte {
	b := c.data(what)
	if !utf8.Valid(b) {
		c.fail(malformed("MQTT-1.5.4-1", "%s: %s is not valid UTF-8", c.kind, what))
	} else if bytes.IndexByte(b, 0) >= 0 {
		c.fail(malformed("MQTT-1.5.4-2", "%s: %s contains the character U+0000", c.kind, what))
	}
	return b
}

// packetID reads a packet id, which is not 0.
func (c *cursor) packetID() uint16 {
	id := c.uint16("the packet id")
	if id == 0 && c.err == nil {
		c.fail(violation("MQTT-2.2.1-3", "%s with the packet id 0", c.kind))
	}
	return id
}

// end expects that nothing is left, and returns the first error.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.err = malformed("MQTT 5, 2.1.4", "%s with %d bytes after its last field", c.kind, len(c.b))
	}
	if c.err == nil {
		return nil // not a nil *Error
	}
	return c.err
}
