package packet

import "bytes"

// The identifiers of the properties that clients send. [MQTT 5, 2.2.2.2]
const (
	propFormat              = 0x01
	propMessageExpiry       = 0x02
	propContentType         = 0x03
	propResponseTopic       = 0x08
	propCorrelation         = 0x09
	propSubscription        = 0x0b
	propSessionExpiry       = 0x11
	propAuthMethod          = 0x15
	propAuthData            = 0x16
	propRequestProblemInfo  = 0x17
	propWillDelay           = 0x18
	propRequestResponseInfo = 0x19
	propReason              = 0x1f
	propReceiveMaximum      = 0x21
	propTopicAliasMaximum   = 0x22
	propTopicAlias          = 0x23
	propUser                = 0x26
	propMaximumPacketSize   = 0x27
)

// A form is how a property's value is written.
type form byte

const (
	asFlag form = iota + 1 // a byte that is 0 or 1
	asUint16
	asUint32
	asVarint
	asText
	asData
	asPair // two texts
)

// A rule says how a property is written, and in which packets a client may send it.
type rule struct {
	name string
	form form
	in   uint16 // a bit for each Type
	zero bool   // 0 is not allowed
}

func in(types ...Type) (set uint16) {
	for _, t := range types {
		set |= 1 << t
	}
	return set
}

var everywhere = in(Connect, will, Publish, Puback, Pubrec, Pubrel, Pubcomp, Subscribe, Unsubscribe, Disconnect, Auth)

// rules are those of MQTT 5, table 2-4, for what clients send.
var rules = [propMaximumPacketSize + 1]rule{
	propFormat:              {name: "the payload format", form: asFlag, in: in(Publish, will)},
	propMessageExpiry:       {name: "the message expiry", form: asUint32, in: in(Publish, will)},
	propContentType:         {name: "the content type", form: asText, in: in(Publish, will)},
	propResponseTopic:       {name: "the response topic", form: asText, in: in(Publish, will)},
	propCorrelation:         {name: "the correlation data", form: asData, in: in(Publish, will)},
	propSubscription:        {name: "the subscription identifier", form: asVarint, in: in(Publish, Subscribe), zero: true},
	propSessionExpiry:       {name: "the session expiry", form: asUint32, in: in(Connect, Disconnect)},
	propAuthMethod:          {name: "the authentication method", form: asText, in: in(Connect, Auth)},
	propAuthData:            {name: "the authentication data", form: asData, in: in(Connect, Auth)},
	propRequestProblemInfo:  {name: "request problem information", form: asFlag, in: in(Connect)},
	propWillDelay:           {name: "the will delay", form: asUint32, in: in(will)},
	propRequestResponseInfo: {name: "request response information", form: asFlag, in: in(Connect)},
	propReason:              {name: "the reason string", form: asText, in: in(Puback, Pubrec, Pubrel, Pubcomp, Disconnect, Auth)},
	propReceiveMaximum:      {name: "the receive maximum", form: asUint16, in: in(Connect), zero: true},
	propTopicAliasMaximum:   {name: "the topic alias maximum", form: asUint16, in: in(Connect)},
	propTopicAlias:          {name: "the topic alias", form: asUint16, in: in(Publish)},
	propUser:                {name: "a user property", form: asPair, in: everywhere},
	propMaximumPacketSize:   {name: "the maximum packet size", form: asUint32, in: in(Connect), zero: true},
}

// A property is one that was read.
type property struct {
	id     byte
	number uint32 // the value of one that is a number
	size   int    // bytes, the identifier included
}

// A propertyReader reads the properties of one packet, each at most once but for
// user properties.
type propertyReader struct {
	cursor
	seen  uint64 // a bit for each identifier
	users int    // user properties that may still come
}

// properties begins to read a packet's properties, and moves c behind them.
func (c *cursor) properties(kind Type, l Limits) propertyReader {
	b := c.bytes(c.varint("the property length"), "the properties")
	return propertyReader{cursor: cursor{kind: kind, b: b, err: c.err}, users: l.UserProperties}
}

// skipProperties reads all properties and checks them. It returns which there were.
func (c *cursor) skipProperties(kind Type, l Limits) (seen uint64) {
	r := c.properties(kind, l)
	for r.more() {
		r.next()
	}
	if r.err != nil {
		c.fail(r.err)
	}
	return r.seen
}

func (r *propertyReader) more() bool { return r.err == nil && len(r.b) > 0 }

// next reads one property.
func (r *propertyReader) next() (p property) {
	before := len(r.b)
	p.id = r.byte("a property")
	var u rule
	if int(p.id) < len(rules) {
		u = rules[p.id]
	}
	switch {
	case u.in&(1<<r.kind) == 0:
		r.fail(malformed("MQTT 5, 2.2.2.2", "%s with the property 0x%02x, which has no place there", r.kind, p.id))
	case p.id == propUser:
		if r.users--; r.users < 0 {
			r.fail(&Error{QuotaExceeded, "", r.kind.String() + " with too many user properties; see limits.userProperties"})
		}
	case r.seen&(1<<p.id) != 0:
		r.fail(violation("MQTT 5, 2.2.2", "%s with %s twice", r.kind, u.name))
	}
	r.seen |= 1 << (p.id & 63)
	p.number = r.value(p.id, &u)
	p.size = before - len(r.b)
	return p
}

// value reads the value of a property, and checks it by itself.
func (r *propertyReader) value(id byte, u *rule) (v uint32) {
	switch u.form {
	case asFlag:
		v = uint32(r.byte(u.name))
	case asUint16:
		v = uint32(r.uint16(u.name))
	case asUint32:
		v = r.uint32(u.name)
	case asVarint:
		v = uint32(r.varint(u.name))
	case asData:
		r.data(u.name)
	case asPair:
		r.text(u.name)
		r.text(u.name)
	case asText:
		b := r.text(u.name)
		if id == propResponseTopic && r.err == nil && (len(b) == 0 || bytes.ContainsAny(b, "+#")) {
			r.fail(violation("MQTT-3.3.2-14", "%s: the response topic %.60q is not a topic name", r.kind, b))
		}
	}
	if r.err == nil && (u.zero && v == 0 || u.form == asFlag && v > 1) {
		r.fail(violation("MQTT 5, 2.2.2.2", "%s: %s is %d", r.kind, u.name, v))
	}
	return v
}

// has reports whether a property is in the set that a propertyReader has seen.
func has(seen uint64, id byte) bool { return seen&(1<<id) != 0 }
