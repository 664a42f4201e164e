package packet

import (
	"bytes"
	"encoding/binary"
)

// A Publication is a PUBLISH as a client sent it. It holds parts of the body.
type Publication struct {
	Topic   []byte // empty if Alias stands for it
	ID      uint16 // 0 with QoS 0
	Alias   uint16 // if HasAlias
	Expiry  uint32 // seconds, if HasExpiry
	Payload []byte
	// Properties are those to pass on, as they came: without the alias, the expiry and
	// the length.
	Properties []byte
	HasAlias   bool
	HasExpiry  bool
}

// ReadPublish reads the body of a PUBLISH. It may write to the body.
func ReadPublish(h Header, body []byte, v5 bool, l Limits) (p Publication, err error) {
	c := cursor{kind: Publish, b: body}
	p.Topic = c.text("the topic") // [MQTT-3.3.2-1]
	if bytes.ContainsAny(p.Topic, "+#") {
		c.fail(violation("MQTT-3.3.2-2", "PUBLISH to %.60q: a topic has no wildcards", p.Topic))
	}
	if bytes.Count(p.Topic, []byte{'/'}) >= l.Levels {
		c.fail(&Error{TopicNameInvalid, "", "PUBLISH to a topic with too many levels; see limits.levels"})
	}
	if h.QoS() > 0 {
		p.ID = c.packetID() // [MQTT-2.2.1-2]
	}
	if v5 {
		p.readProperties(&c, l)
	}
	if c.err != nil {
		return p, c.err
	}
	if len(p.Topic) == 0 && !p.HasAlias {
		return p, violation("MQTT-3.3.2-8", "PUBLISH without a topic or an alias for one")
	}
	p.Payload = c.b
	return p, nil
}

// readProperties reads the properties, and takes those out that end here.
func (p *Publication) readProperties(c *cursor, l Limits) {
	r := c.properties(Publish, l)
	all := r.b
	passed := 0 // bytes at the head of all that are passed on
	for r.more() {
		at := len(all) - len(r.b)
		one := r.next()
		switch one.id {
		case propTopicAlias:
			p.Alias, p.HasAlias = uint16(one.number), true
			continue
		case propMessageExpiry:
			p.Expiry, p.HasExpiry = one.number, true
			continue
		case propSubscription:
			r.fail(violation("MQTT-3.3.4-6", "PUBLISH with a subscription identifier: only the broker sends one"))
		}
		if r.err == nil {
			passed += copy(all[passed:], all[at:at+one.size]) // in place: nothing moves while nothing was taken out
		}
	}
	if r.err != nil {
		c.fail(r.err)
		return
	}
	p.Properties = all[:passed:passed]
}

// A UserProperty is a name and a value that the application chose.
type UserProperty struct{ Key, Value string }

// Properties are those of a message that a broker passes on. [MQTT-3.3.2-4]
// [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]
type Properties struct {
	Format        byte // if HasFormat
	HasFormat     bool
	ContentType   string // "": none
	ResponseTopic string // "": none
	Correlation   []byte // empty: none
	User          []UserProperty
}

// Encode returns p as in Publication.Properties; nil if there are none. Texts and
// data are of less than 64 KiB.
func (p *Properties) Encode() (b []byte) {
	if p.HasFormat {
		b = append(b, propFormat, p.Format)
	}
	if p.ContentType != "" {
		b = appendText(append(b, propContentType), p.ContentType)
	}
	if p.ResponseTopic != "" {
		b = appendText(append(b, propResponseTopic), p.ResponseTopic)
	}
	if len(p.Correlation) > 0 {
		b = appendText(append(b, propCorrelation), string(p.Correlation))
	}
	for _, u := range p.User {
		b = appendText(appendText(append(b, propUser), u.Key), u.Value)
	}
	return b
}

// DecodeProperties is the reverse of Encode, for properties that were checked. What
// it returns shares no memory with b.
func DecodeProperties(b []byte) (p Properties) {
	c := cursor{kind: Publish, b: b}
	for c.err == nil && len(c.b) > 0 {
		switch c.byte("") {
		case propFormat:
			p.Format, p.HasFormat = c.byte(""), true
		case propContentType:
			p.ContentType = string(c.data(""))
		case propResponseTopic:
			p.ResponseTopic = string(c.data(""))
		case propCorrelation:
			p.Correlation = bytes.Clone(c.data(""))
		case propUser:
			key := string(c.data(""))
			p.User = append(p.User, UserProperty{key, string(c.data(""))})
		}
	}
	return p
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}
