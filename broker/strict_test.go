package broker_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
)

// What package packet refuses is refused on the wire, with its reason code: before
// CONNECT with CONNACK, after it with DISCONNECT. [MQTT-3.1.4-1] [MQTT-4.13.1-1] Each
// clause has its row in broker/packet.
func TestStrictReader(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	const head, tail = "\x00\x04MQTT\x05\x02\x00\x3c", "\x00\x01c"
	for name, c := range map[string]struct {
		body string
		code byte
	}{
		"receive maximum 0 [3.1.2.11.3]":                {head + "\x03\x21\x00\x00" + tail, 0x82},
		"maximum packet size 0 [3.1.2.11.4]":            {head + "\x05\x27\x00\x00\x00\x00" + tail, 0x82},
		"trailing bytes":                                {head + "\x00" + tail + "x", 0x81},
		"will QoS without will [MQTT-3.1.2-11]":         {"\x00\x04MQTT\x05\x0a\x00\x3c\x00" + tail, 0x81},
		"user name that is no UTF-8 [MQTT-3.1.3-12]":    {"\x00\x04MQTT\x05\x82\x00\x3c\x00" + tail + "\x00\x01\xff", 0x81},
		"property twice":                                {head + "\x0a\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01" + tail, 0x82},
		"a string past the property length":             {head + "\x04\x26\x00\x01a\x00\x01b" + tail, 0x81},
		"another protocol [MQTT-3.1.2-1]":               {"\x00\x04AMQP\x05\x02\x00\x3c\x00" + tail, 1},
		"3.1.1, password without user [3.1.1-3.1.2-22]": {"\x00\x04MQTT\x04\x42\x00\x3c" + tail + "\x00\x00", 0xff}, // no way to say so
	} {
		r := dialRaw(t, b.Addr("main"))
		if c.code == 1 {
			r.version = 4
		}
		r.write(wire(0x10, c.body))
		if c.code == 0xff {
			r.wantEnd()
			continue
		}
		if ack := r.want(packets.Connack); ack.ReasonCode != c.code {
			t.Errorf("%s: CONNACK 0x%02x %q, want 0x%02x", name, ack.ReasonCode, ack.Properties.ReasonString, c.code)
		}
		r.wantEnd()
	}
	for name, c := range map[string]struct {
		bytes string
		code  byte
	}{
		"five-byte length [MQTT-1.5.5-1]":          {"\x30\x80\x80\x80\x80\x01", 0x81},
		"non-minimal length [MQTT-1.5.5-1]":        {"\xc0\x80\x00", 0x81},
		"reserved SUBSCRIBE bits [MQTT-3.8.3-5]":   {wire(0x82, "\x00\x01\x00"+text("t")+"\xc0"), 0x81},
		"two subscription identifiers [3.8.2.1.2]": {wire(0x82, "\x00\x01\x04\x0b\x01\x0b\x02"+text("t")+"\x00"), 0x82},
		"payload format 2 [3.3.2.3.2]":             {wire(0x30, text("t")+"\x02\x01\x02x"), 0x82},
		"response topic # [MQTT-3.3.2-14]":         {wire(0x30, text("t")+"\x04\x08\x00\x01#x"), 0x82},
		"PINGREQ with a body":                      {"\xc0\x01x", 0x81},
		"PUBACK with an unknown reason":            {"\x40\x03\x00\x01\x7f", 0x82},
		"UNSUBSCRIBE without filters":              {wire(0xa2, "\x00\x01\x00"), 0x82},
	} {
		r := guest(t, b, "c")
		r.write(c.bytes)
		r.wantCode(packets.Disconnect, c.code)
		r.wantEnd()
		t.Log(name)
	}
	if n := metric(t, reg, "refused_total", "packet"); n != 18 {
		t.Errorf("%v bad packets counted, want 18", n)
	}
}

// A DISCONNECT of one byte, the reason alone, asks for the will. [MQTT-3.14.4-3] mochi's
// codec does not see it.
func TestDisconnectWithWill(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	sub := guest(t, b, "sub")
	sub.subscribe("will", 0)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("will", "offline"))
	r.write("\xe0\x01\x04")
	if p := sub.want(packets.Publish); string(p.Payload) != "offline" {
		t.Errorf("got %q", p.Payload)
	}
}

// Topics that begin with $ are for access control to allow, but for those of the broker
// itself. [MQTT-4.7.2-1]
func TestDollarTopics(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := guest(t, b, "c")
	for _, f := range []string{"$app/#", "#"} { // # does not match it
		if got := r.subscribe(f, 0); got != 0 {
			t.Errorf("subscribe %s: 0x%02x", f, got)
		}
	}
	r.publish("$app/x", "1", 1, 1)
	if p := r.want(packets.Publish); p.TopicName != "$app/x" {
		t.Errorf("got %s", p.TopicName)
	}
	r.wantCode(packets.Puback, 0)
	for _, topic := range []string{"$SYS/x", "$SYS", "$share/g/x"} {
		r.publish(topic, "1", 1, 1)
		r.wantCode(packets.Puback, 0x87)
	}
	if err := b.Publish(t.Context(), broker.Message{Topic: "$app/x"}); err == nil {
		t.Error("the owner of the broker publishes below $")
	}
}
