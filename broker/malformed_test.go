package broker_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"
)

// [MQTT-4.13.1-1]: what a client may not send, byte by byte.
func TestMalformedPackets(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	for name, c := range map[string]struct {
		bytes string
		code  byte
	}{
		"reserved flags of PUBACK [MQTT-2.1.3-1]":              {"\x41\x02\x00\x01", 0x81},
		"reserved flags of PUBREC [MQTT-2.1.3-1]":              {"\x52\x02\x00\x01", 0x81},
		"reserved flags of PUBREL [MQTT-3.6.1-1]":              {"\x60\x02\x00\x01", 0x81},
		"reserved flags of PUBCOMP [MQTT-2.1.3-1]":             {"\x72\x02\x00\x01", 0x81},
		"reserved flags of SUBSCRIBE [MQTT-3.8.1-1]":           {wire(0x80, "\x00\x01\x00"+text("t")+"\x00"), 0x81},
		"reserved flags of UNSUBSCRIBE [MQTT-3.10.1-1]":        {wire(0xa0, "\x00\x01\x00"+text("t")), 0x81},
		"reserved flags of PINGREQ [MQTT-2.1.3-1]":             {"\xc1\x00", 0x81},
		"reserved flags of DISCONNECT [MQTT-3.14.1-1]":         {"\xe1\x00", 0x81},
		"reserved flags of AUTH [MQTT-3.15.1-1]":               {"\xf1\x00", 0x81},
		"DUP with QoS 0 [MQTT-3.3.1-2]":                        {wire(0x38, text("t")+"\x00x"), 0x81},
		"U+0000 in a topic [MQTT-1.5.4-2] [MQTT-4.7.3-2]":      {wire(0x30, text("a\x00b")+"\x00x"), 0x81},
		"U+0000 in a filter [MQTT-1.5.4-2] [MQTT-4.7.3-2]":     {subscribeWire("a\x00b"), 0x81},
		"a surrogate in a topic [MQTT-1.5.4-1] [MQTT-3.3.2-1]": {wire(0x30, text("\xed\xa0\x80")+"\x00x"), 0x81},
		"a filter that is no UTF-8 [MQTT-3.8.3-1]":             {subscribeWire("\xff"), 0x81},
		"UNSUBSCRIBE, a filter no UTF-8 [MQTT-3.10.3-1]":       {wire(0xa2, "\x00\x01\x00"+text("\xff")), 0x81},
		"UNSUBSCRIBE without a filter [MQTT-3.10.3-2]":         {wire(0xa2, "\x00\x01\x00"), 0x82},
		"the name of a user property [MQTT-1.5.7-1]":           {wire(0x30, text("t")+"\x07\x26"+text("\xff")+text("v")+"x"), 0x81},
		"the value of a user property [MQTT-1.5.7-1]":          {wire(0x30, text("t")+"\x07\x26"+text("n")+text("\xff")+"x"), 0x81},
		"the response topic [MQTT-3.3.2-13]":                   {wire(0x30, text("t")+"\x04\x08"+text("\xff")+"x"), 0x81},
		"the content type [MQTT-3.3.2-19]":                     {wire(0x30, text("t")+"\x04\x03"+text("\xff")+"x"), 0x81},
		"no topic and no alias [MQTT-4.7.3-1]":                 {wire(0x30, text("")+"\x00x"), 0x82},
		"a wildcard in a topic [MQTT-4.7.0-1]":                 {wire(0x30, text("a/#")+"\x00x"), 0x82},
		"PUBACK with a code that is none [MQTT-3.4.2-1]":       {wire(0x40, "\x00\x01\x05"), 0x82},
		"PUBREC with a code that is none [MQTT-3.5.2-1]":       {wire(0x50, "\x00\x01\x05"), 0x82},
		"PUBREL with a code that is none [MQTT-3.6.2-1]":       {wire(0x62, "\x00\x01\x10"), 0x82},
		"PUBCOMP with a code that is none [MQTT-3.7.2-1]":      {wire(0x70, "\x00\x01\x10"), 0x82},
		"DISCONNECT with a server's code [MQTT-3.14.2-1]":      {wire(0xe0, "\x8b"), 0x82},
		"AUTH without a method [MQTT-4.12.0-7]":                {wire(0xf0, "\x18\x00"), 0x82},
	} {
		r := guest(t, b, "c")
		r.write(c.bytes)
		p, err := r.next()
		if err != nil || p.FixedHeader.Type != packets.Disconnect || p.ReasonCode != c.code {
			t.Errorf("%s: got %s 0x%02x, %v, want DISCONNECT 0x%02x", name, packets.PacketNames[p.FixedHeader.Type], p.ReasonCode, err, c.code)
		}
		r.wantEnd() // [MQTT-3.14.4-1] [MQTT-3.14.4-2]
	}
	r := guest(t, b, "c")
	if code := r.subscribe("", 0); code != 0x8f { // [MQTT-4.7.3-1]
		t.Errorf("an empty filter: SUBACK 0x%02x, want 0x8f", code)
	}
}

// MQTT 3.1.1 has no DISCONNECT for clients: what they may not send ends the connection without a word.
// [MQTT-3.1.1, 4.8.0-1]
func TestMalformedOf311(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	subscribe := func(filter, options string) string { return "\x00\x01" + text(filter) + options }
	for name, bytes := range map[string]string{
		"a second CONNECT [3.1.0-2]":                   wire(0x10, "\x00\x04MQTT\x04\x02\x00\x3c"+text("c")),
		"flags of PUBACK [2.2.2-1] [2.2.2-2]":          "\x41\x02\x00\x01",
		"flags of PUBREL [3.6.1-1]":                    "\x60\x02\x00\x01",
		"flags of SUBSCRIBE [3.8.1-1]":                 wire(0x80, subscribe("t", "\x00")),
		"flags of UNSUBSCRIBE [3.10.1-1]":              wire(0xa0, subscribe("t", "")),
		"flags of DISCONNECT [3.14.1-1]":               "\xe1\x00",
		"packet id 0 in SUBSCRIBE [2.3.1-1]":           wire(0x82, "\x00\x00"+text("t")+"\x00"),
		"packet id 0 in UNSUBSCRIBE [2.3.1-1]":         wire(0xa2, "\x00\x00"+text("t")),
		"packet id 0 in PUBLISH [2.3.1-1]":             wire(0x32, text("t")+"\x00\x00x"),
		"no UTF-8 in a topic [1.5.3-1] [3.3.2-1]":      wire(0x30, text("\xff")+"x"),
		"U+0000 in a topic [1.5.3-2] [4.7.3-2]":        wire(0x30, text("a\x00")+"x"),
		"a wildcard in a topic [3.3.2-2] [4.7.1-1]":    wire(0x30, text("a/+")+"x"),
		"an empty topic [4.7.3-1]":                     wire(0x30, text("")+"x"),
		"QoS 3 [3.3.1-4]":                              wire(0x36, text("t")+"\x00\x01x"),
		"no UTF-8 in a filter [3.8.3-1]":               wire(0x82, subscribe("\xff", "\x00")),
		"SUBSCRIBE without a filter [3.8.3-3]":         wire(0x82, "\x00\x01"),
		"reserved bits beside the QoS [3.8.3-4]":       wire(0x82, subscribe("t", "\x04")),
		"a subscription with QoS 3 [3.8.3-4]":          wire(0x82, subscribe("t", "\x03")),
		"no UTF-8 in UNSUBSCRIBE [3.10.3-1]":           wire(0xa2, subscribe("\xff", "")),
		"UNSUBSCRIBE without a filter [3.10.3-2]":      wire(0xa2, "\x00\x01"),
		"PUBACK with a reason, which 3.1.1 has not":    wire(0x40, "\x00\x01\x00"),
		"DISCONNECT with a reason, which it has not":   wire(0xe0, "\x00"),
		"AUTH, which it has not":                       "\xf0\x00",
		"a packet that only a server sends [4.8.0-1]":  "\x20\x02\x00\x00",
		"DUP with QoS 0 [3.3.1-2]":                     wire(0x38, text("t")+"x"),
		"the last filter without its QoS [2.1, 3.8.3]": wire(0x82, subscribe("t", "\x00")+text("u")),
	} {
		r := dialRaw(t, b.Addr("main"))
		r.version = 4
		r.mustConnect("c", nil)
		r.write(bytes)
		t.Log(name)
		r.wantEnd()
	}
	r := dialRaw(t, b.Addr("main"))
	r.version = 4
	r.mustConnect("c", nil)
	r.write(wire(0x82, subscribe("a", "\x01")+text("a#")+"\x00"+text("")+"\x00"+text("b")+"\x02")) // wildcards: [3.8.3-2]
	if p := r.want(packets.Suback); !cmp.Equal(p.ReasonCodes, []byte{1, 0x80, 0x80, 2}) {          // [3.9.3-1] [3.9.3-2]
		t.Errorf("SUBACK % x, want 01 80 80 02", p.ReasonCodes)
	}
}
