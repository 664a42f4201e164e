package packet

import (
	"bytes"
	"slices"
)

// CheckConnect checks the body of a CONNECT. With an error, version is the protocol
// version if it was reached and is 3, 4 or 5, and else 0. willExpires says that a last will names an expiry, which may be 0.
func CheckConnect(body []byte, l Limits) (version byte, willExpires bool, err error) {
	c := cursor{kind: Connect, b: body}
	name, level := string(c.data("the protocol name")), c.byte("the protocol version")
	switch {
	case c.err != nil:
		return 0, false, c.err
	case name != "MQTT" && name != "MQIsdp":
		return 0, false, &Error{BadVersion, "MQTT-3.1.2-1", "CONNECT does not name the protocol MQTT"}
	case (level == 3) != (name == "MQIsdp") || level < 3 || level > 5:
		return 0, false, &Error{BadVersion, "MQTT-3.1.2-2", "protocol versions here are 3, 4 and 5"}
	}
	flags := connectFlags(c.byte("the connect flags"))
	if c.err == nil {
		flags.check(&c, level)
	}
	c.uint16("the keep-alive")
	if level == 5 {
		seen := c.skipProperties(Connect, l)
		if has(seen, propAuthData) && !has(seen, propAuthMethod) {
			c.fail(violation("MQTT 5, 3.1.2.11.10", "CONNECT with authentication data and no method"))
		}
	}
	c.text("the client id") // [MQTT-3.1.3-4]
	if flags.will() {
		if level == 5 {
			willExpires = has(c.skipProperties(will, l), propMessageExpiry)
		}
		c.text("the will topic")   // [MQTT-3.1.3-11]
		c.data("the will payload") // may be empty
	}
	if flags.user() {
		c.text("the user name") // [MQTT-3.1.3-12]
	}
	if flags.password() {
		c.data("the password")
	}
	return level, willExpires, c.end()
}

// connectFlags are the flags of CONNECT. [MQTT 5, 3.1.2.3]
type connectFlags byte

func (f connectFlags) will() bool     { return f&0x04 != 0 }
func (f connectFlags) willQoS() byte  { return byte(f) >> 3 & 3 }
func (f connectFlags) password() bool { return f&0x40 != 0 }
func (f connectFlags) user() bool     { return f&0x80 != 0 }

func (f connectFlags) check(c *cursor, version byte) {
	switch {
	case f&1 != 0:
		c.fail(malformed("MQTT-3.1.2-3", "CONNECT with the reserved flag set"))
	case !f.will() && f.willQoS() != 0:
		c.fail(malformed("MQTT-3.1.2-11", "CONNECT with a will QoS and no will"))
	case f.willQoS() == 3:
		c.fail(malformed("MQTT-3.1.2-12", "CONNECT with the will QoS 3"))
	case !f.will() && f&0x20 != 0:
		c.fail(malformed("MQTT-3.1.2-13", "CONNECT with will retain and no will"))
	case version < 5 && f.password() && !f.user():
		c.fail(malformed("MQTT 3.1.1, MQTT-3.1.2-22", "CONNECT with a password and no user name"))
	}
}

// CheckSubscribe checks the body of a SUBSCRIBE: its shape, not whether its filters
// are topic filters, which SUBACK says one by one.
func CheckSubscribe(body []byte, v5 bool, l Limits) error {
	c := cursor{kind: Subscribe, b: body}
	c.packetID()
	if v5 {
		c.skipProperties(Subscribe, l)
	}
	n := 0
	for ; c.err == nil && len(c.b) > 0; n++ {
		filter := c.text("a filter") // [MQTT-3.8.3-1]
		c.subscriptionOptions(filter, v5)
		if n == l.Filters {
			c.fail(tooManyFilters(Subscribe, l))
		}
	}
	if n == 0 {
		c.fail(violation("MQTT-3.8.3-2", "SUBSCRIBE without a filter"))
	}
	return c.end()
}

// subscriptionOptions reads and checks the byte after a filter. [MQTT 5, 3.8.3.1]
func (c *cursor) subscriptionOptions(filter []byte, v5 bool) {
	o := c.byte("the subscription options")
	switch {
	case c.err != nil:
	case o&3 == 3:
		c.fail(violation("MQTT 5, 3.8.3.1", "SUBSCRIBE to %.60q with QoS 3", filter))
	case !v5 && o > 2:
		c.fail(malformed("MQTT 3.1.1, MQTT-3.8.3-4", "SUBSCRIBE to %.60q with reserved bits set", filter))
	case o&0xc0 != 0:
		c.fail(malformed("MQTT-3.8.3-5", "SUBSCRIBE to %.60q with reserved bits set", filter))
	case o>>4&3 == 3:
		c.fail(violation("MQTT 5, 3.8.3.1", "SUBSCRIBE to %.60q with retain handling 3", filter))
	case o&4 != 0 && bytes.HasPrefix(filter, []byte("$share/")):
		c.fail(violation("MQTT-3.8.3-4", "SUBSCRIBE to %.60q with no local: that is not for shared subscriptions", filter))
	}
}

// CheckUnsubscribe checks the body of an UNSUBSCRIBE.
func CheckUnsubscribe(body []byte, v5 bool, l Limits) error {
	c := cursor{kind: Unsubscribe, b: body}
	c.packetID()
	if v5 {
		c.skipProperties(Unsubscribe, l)
	}
	n := 0
	for ; c.err == nil && len(c.b) > 0; n++ {
		c.text("a filter") // [MQTT-3.10.3-1]
		if n == l.Filters {
			c.fail(tooManyFilters(Unsubscribe, l))
		}
	}
	if n == 0 {
		c.fail(violation("MQTT-3.10.3-2", "UNSUBSCRIBE without a filter"))
	}
	return c.end()
}

func tooManyFilters(kind Type, l Limits) *Error {
	e := violation("", "%s with more than %d filters: send several; see limits.subscribeFilters", kind, l.Filters)
	e.Code = QuotaExceeded
	return e
}

// ackCodes are the reason codes that each acknowledgement may carry. [MQTT 5, 2.4]
var ackCodes = map[Type][]byte{
	Puback:  {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	Pubrec:  {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	Pubrel:  {0, 0x92},
	Pubcomp: {0, 0x92},
}

// ReadAck reads the body of PUBACK, PUBREC, PUBREL or PUBCOMP.
func ReadAck(kind Type, body []byte, v5 bool, l Limits) (id uint16, reason byte, err error) {
	c := cursor{kind: kind, b: body}
	id = c.packetID()
	if v5 && len(c.b) > 0 { // [MQTT 5, 3.4.2.1]
		reason = c.byte("the reason code")
		if !slices.Contains(ackCodes[kind], reason) {
			c.fail(violation("MQTT-3.4.2-1", "%s with the reason code 0x%02x", kind, reason))
		}
		if len(c.b) > 0 {
			c.skipProperties(kind, l)
		}
	}
	return id, reason, c.end()
}

// disconnectCodes are the reason codes with which a client may disconnect. [MQTT-3.14.2-1]
var disconnectCodes = []byte{0, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}

// A Disconnection is what a DISCONNECT says.
type Disconnection struct {
	Reason    byte   // 0 is a normal one
	Expiry    uint32 // the session expiry interval in seconds, if HasExpiry
	HasExpiry bool
}

// ReadDisconnect reads the body of a DISCONNECT. A body of one byte is the reason alone.
func ReadDisconnect(body []byte, v5 bool, l Limits) (d Disconnection, err error) {
	c := cursor{kind: Disconnect, b: body}
	if v5 && len(c.b) > 0 { // [MQTT 5, 3.14.2.1]
		d.Reason = c.byte("the reason code")
		if !slices.Contains(disconnectCodes, d.Reason) {
			c.fail(violation("MQTT-3.14.2-1", "DISCONNECT with the reason code 0x%02x", d.Reason))
		}
		if len(c.b) > 0 {
			r := c.properties(Disconnect, l)
			for r.more() {
				if p := r.next(); p.id == propSessionExpiry {
					d.Expiry, d.HasExpiry = p.number, true
				}
			}
			if r.err != nil {
				c.fail(r.err)
			}
		}
	}
	return d, c.end()
}
