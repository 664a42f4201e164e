package broker_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
)

// [MQTT-3.1.2-24]: no packet is larger than the client takes, answers included. Without room for a
// reason string it is left out [MQTT-3.2.2-19] [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3]; what is still
// too large ends the connection.
func TestAnswersFitTheClient(t *testing.T) {
	t.Parallel()
	b, _ := start(t, access.Site("plant1"), nil)
	within := func(n uint32) func(*packets.Packet) {
		return func(p *packets.Packet) { p.Properties.MaximumPacketSize = n }
	}
	for _, user := range []string{"n1.plant1", "stranger"} { // accepted, and refused with a long reason
		for _, n := range []uint32{2, 4} {
			r := dialRaw(t, b.Addr("main"))
			p := packets.Packet{
				FixedHeader: packets.FixedHeader{Type: packets.Connect},
				Connect: packets.ConnectParams{
					ProtocolName: []byte("MQTT"), Clean: true, ClientIdentifier: user, Keepalive: 60, UsernameFlag: true, Username: []byte(user),
				},
			}
			within(n)(&p)
			r.send(p)
			r.wantEnd()
		}
	}
	if ack := dialRaw(t, b.Addr("main")).connect("stranger", within(22)); ack.ReasonCode < 0x80 || ack.Properties.ReasonString != "" {
		t.Errorf("refused within 22 bytes: CONNACK 0x%02x, reason %q", ack.ReasonCode, ack.Properties.ReasonString)
	}
	r := dialRaw(t, b.Addr("main"))
	if ack := r.mustConnect("n1.plant1", within(16)); ack.Properties.ReceiveMaximum != 1024 || ack.Properties.MaximumPacketSize == 0 {
		t.Errorf("CONNACK within 16 bytes: Receive Maximum %d, Maximum Packet Size %d", ack.Properties.ReceiveMaximum, ack.Properties.MaximumPacketSize)
	}
	for qos, kind := range map[byte]byte{1: packets.Puback, 2: packets.Pubrec} {
		r.publish("colony/x", "not mine", qos, 1)
		if p := r.wantCode(kind, 0x87); p.Properties.ReasonString != "" {
			t.Errorf("%s with the reason %q", packets.PacketNames[kind], p.Properties.ReasonString)
		}
	}
	if p := r.subscribeAs(packets.Subscription{Filter: "colony/#"}); p.ReasonCodes[0] != 0x87 || p.Properties.ReasonString != "" {
		t.Errorf("SUBACK 0x%02x with the reason %q", p.ReasonCodes[0], p.Properties.ReasonString)
	}
	many := make([]string, 60) // their SUBACK has more than 16 bytes
	for i := range many {
		many[i] = fmt.Sprint("a/", i)
	}
	r.write(subscribeWire(many...))
	if p := r.wantCode(packets.Disconnect, 0x95); p.Properties.ReasonString != "" {
		t.Errorf("DISCONNECT with the reason %q", p.Properties.ReasonString)
	}
	r.wantEnd()
}

// [MQTT-4.13.1-1]: an acknowledgement that is not the one its message waits for is an error in the protocol,
// with a session that is stored and without. What comes twice, or for an unknown packet id, is none.
func TestAcknowledgementOfAnotherStep(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	ack := func(r *raw, kind byte, id uint16, code byte) {
		p := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, PacketID: id, ReasonCode: code}
		if kind == packets.Pubrel {
			p.FixedHeader.Qos = 1
		}
		r.send(p)
	}
	for _, expiry := range []uint32{0, 3600} {
		for _, c := range []struct {
			qos  byte
			with []byte // the last one is the wrong one
			code byte
		}{
			{1, []byte{packets.Pubrec}, 0},
			{1, []byte{packets.Pubrec}, 0x80},
			{1, []byte{packets.Pubcomp}, 0},
			{2, []byte{packets.Puback}, 0},
			{2, []byte{packets.Pubcomp}, 0},
			{2, []byte{packets.Pubrec, packets.Puback}, 0},
		} {
			name := fmt.Sprintf("expiry %d, QoS %d, %v", expiry, c.qos, c.with)
			r := dialRaw(t, b.Addr("main"))
			r.mustConnect("c", func(p *packets.Packet) {
				p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = expiry, true
			})
			r.subscribe("t", 2)
			put(t, b, broker.Message{Topic: "t", QoS: c.qos})
			id := r.want(packets.Publish).PacketID
			ack(r, packets.Puback, id+100, 0) // unknown
			for i, kind := range c.with {
				code := byte(0)
				if i == len(c.with)-1 {
					code = c.code
				}
				ack(r, kind, id, code)
				if i < len(c.with)-1 {
					r.wantCode(packets.Pubrel, 0)
				}
			}
			t.Log(name)
			r.wantCode(packets.Disconnect, 0x82)
			r.wantEnd()
		}
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", func(p *packets.Packet) {
			p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = expiry, true
		})
		r.subscribe("t", 2)
		put(t, b, broker.Message{Topic: "t", QoS: 2})
		id := r.want(packets.Publish).PacketID
		for range 2 {
			ack(r, packets.Pubrec, id, 0)
			r.wantCode(packets.Pubrel, 0)
		}
		for range 2 {
			ack(r, packets.Pubcomp, id, 0)
		}
		r.ping()
	}
}

// MQTT 3.1: a client id is needed, and CONNACK has no session present.
func TestMQTT31(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	connect := func(id string) packets.Packet {
		r := dialRaw(t, b.Addr("main"))
		r.version = 4 // CONNACK and PUBLISH look like those of 3.1.1
		r.write(wire(0x10, "\x00\x06MQIsdp\x03\x00\x00\x3c"+text(id)))
		ack := r.want(packets.Connack)
		if ack.ReasonCode == 0 {
			r.subscribe("t", 1)
			put(t, b, broker.Message{Topic: "t", Payload: []byte("x")})
			if p := r.want(packets.Publish); string(p.Payload) != "x" {
				t.Errorf("got %q", p.Payload)
			}
		}
		return ack
	}
	if ack := connect(""); ack.ReasonCode != 2 {
		t.Errorf("without a client id: CONNACK %d, want 2", ack.ReasonCode)
	}
	for range 2 {
		if ack := connect("old"); ack.ReasonCode != 0 || ack.SessionPresent {
			t.Errorf("CONNACK %d, session present %v", ack.ReasonCode, ack.SessionPresent)
		}
	}
}

// [MQTT-3.4.2-3] [MQTT-3.5.2-3] [MQTT-3.6.2-3] [MQTT-3.7.2-3] [MQTT-3.9.2-2] [MQTT-3.11.2-2] [MQTT-3.14.2-4]: no answer has user properties,
// so none makes a packet too large; and where reason strings do, there are none. [MQTT-3.6.2-2] [MQTT-3.7.2-2] [MQTT-3.11.2-1]
func TestPropertiesOfAnswers(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	for _, largest := range []uint32{0, 16} {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", func(p *packets.Packet) { p.Properties.MaximumPacketSize = largest })
		r.publish("$SYS/x", "x", 1, 1)
		r.publish("$SYS/x", "x", 2, 2)
		r.acknowledge(packets.Pubrec, 77, 0)
		r.acknowledge(packets.Pubrel, 77, 0)
		r.write(subscribeWire("a#"), wire(0xa2, "\x00\x01\x00"+text("b")), "\xf0\x00")
		for kind, code := range [...]struct{ kind, code byte }{
			{packets.Puback, 0x87},
			{packets.Pubrec, 0x87},
			{packets.Pubrel, 0x92},
			{packets.Pubcomp, 0x92},
			{packets.Suback, 0},
			{packets.Unsuback, 0},
			{packets.Disconnect, 0x82},
		} {
			p := r.want(code.kind)
			if code.code != 0 && p.ReasonCode != code.code {
				t.Errorf("answer %d: 0x%02x, want 0x%02x", kind, p.ReasonCode, code.code)
			}
			if len(p.Properties.User) > 0 || largest > 0 && p.Properties.ReasonString != "" {
				t.Errorf("%s has user properties %v, and the reason %q", packets.PacketNames[code.kind], p.Properties.User, p.Properties.ReasonString)
			}
		}
		r.wantEnd()
	}
}

// A client that ends its own direction behind its last message gets all answers that it waits for: those that are queued,
// and those that wait for the disk; over TLS as well.
func TestAnswersToHalfClosed(t *testing.T) {
	t.Parallel()
	server, client := testTLS(t)
	b, reg := start(t, free{}, func(o *broker.Options) {
		stored(t, sessions.Limits{})(o)
		o.Listeners = append(o.Listeners, broker.Listener{Name: "secure", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server})
	})
	sub := dialStored(t, b, "sub", false, lasting(3600))
	sub.subscribe("stored", 2)
	leave(t, reg, sub)
	const messages = 100
	for round := range 20 {
		for _, topic := range []string{"nobody", "stored"} {
			r := dialRaw(t, b.Addr("main"))
			if round%2 == 1 {
				c, err := tls.Dial("tcp", b.Addr("secure"), client)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				r = rawOver(t, c)
			}
			r.mustConnect(fmt.Sprint(topic, round), nil)
			var all bytes.Buffer
			for id := range messages {
				all.WriteString(wire(0x32+byte(id%2)<<1, text(topic)+"\x00"+string(rune(id+1))+"\x00x"))
			}
			r.write(all.String())
			r.endOwn()
			for id := range messages {
				p, err := r.next()
				if want := packets.Puback + byte(id%2); err != nil || p.FixedHeader.Type != want || int(p.PacketID) != id+1 {
					t.Fatalf("%s, round %d: answer %d is of type %d for %d, %v; want type %d", topic, round, id+1, p.FixedHeader.Type, p.PacketID, err, want)
				}
			}
			r.wantEnd()
		}
	}
	until(t, "their connections are gone", func() bool { return metric(t, reg, "clients_connected") == 0 })
}
