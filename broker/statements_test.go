package broker_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

// noStrangers is free, but for those whose user name begins with stranger.
type noStrangers struct{ free }

func (n noStrangers) Connect(i access.ConnectInfo) (access.Identity, error) {
	if strings.HasPrefix(i.Username, "stranger") {
		return access.Identity{}, protocol.Errorf(protocol.Denied, "no strangers")
	}
	return n.free.Connect(i)
}

// acknowledge sends PUBACK, PUBREC, PUBREL or PUBCOMP.
func (r *raw) acknowledge(kind byte, id uint16, code byte) {
	r.t.Helper()
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, PacketID: id, ReasonCode: code}
	if kind == packets.Pubrel {
		p.FixedHeader.Qos = 1
	}
	r.send(p)
}

// [MQTT-3.1.0-1]: the first packet is CONNECT. Another one gets no answer. [MQTT-3.14.0-1]
func TestFirstPacketIsConnect(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	for _, first := range []string{"\xc0\x00", wire(0x30, text("t")+"\x00x"), subscribeWire("t"), "\xe0\x00", "\xf0\x00"} {
		r := dialRaw(t, b.Addr("main"))
		r.write(first)
		r.wantEnd()
	}
}

// [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT-3.2.2-1] [MQTT-3.1.4-5]: one CONNACK, before anything else, with no reserved
// bit set. It does not restrict QoS or retained messages [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-12] [MQTT-3.2.2-13], and
// has neither response information [MQTT-3.1.2-28] nor an authentication method [MQTT-4.12.0-6] nor user properties [MQTT-3.2.2-20].
func TestConnackBytes(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	put(t, b, broker.Message{Topic: "t", Payload: []byte("x"), QoS: 1, Retain: true})
	for _, wantsResponse := range []string{"\x00", "\x01"} {
		for i, want := range []string{"\x00", "\x01"} { // session present
			r := dialRaw(t, b.Addr("main"))
			if i == 0 { // ends the session of the round before
				r.write(wire(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x07\x19"+wantsResponse+"\x11\x00\x00\x0e\x10"+text("c")))
			} else {
				will := "\x00" + text("will") + text("")
				r.write(wire(0x10, "\x00\x04MQTT\x05\x34\x00\x3c\x07\x19"+wantsResponse+"\x11\x00\x00\x0e\x10"+text("c")+will)) // QoS 2, retain
			}
			r.write(subscribeWire("t"), "\xc0\x00")
			head := make([]byte, 5)
			if _, err := io.ReadFull(r.r, head); err != nil {
				t.Fatal(err)
			}
			if head[0] != 0x20 || string(head[2:4]) != want+"\x00" {
				t.Fatalf("CONNACK begins with % x, want flags % x and the code 0", head, want)
			}
			props := make([]byte, head[4])
			if _, err := io.ReadFull(r.r, props); err != nil {
				t.Fatal(err)
			}
			for len(props) > 0 {
				size := map[byte]int{0x11: 5, 0x21: 3, 0x22: 3, 0x27: 5}[props[0]]
				if size == 0 {
					t.Fatalf("CONNACK has the property 0x%02x", props[0])
				}
				props = props[size:]
			}
			var kinds []byte
			for len(kinds) == 0 || kinds[len(kinds)-1] != packets.Pingresp {
				p, err := r.next()
				if err != nil {
					t.Fatal(err)
				}
				if p.FixedHeader.Type != packets.Publish { // what is retained comes when it may
					kinds = append(kinds, p.FixedHeader.Type)
				}
			}
			if diff := cmp.Diff([]byte{packets.Suback, packets.Pingresp}, kinds); diff != "" {
				t.Errorf("after CONNACK (-want +got):\n%s", diff)
			}
		}
	}
}

// [MQTT-3.1.4-2] [MQTT-3.1.4-6] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-4.13.2-1]: a refused client gets CONNACK and the end of
// the connection, no DISCONNECT [MQTT-3.14.0-1], and nothing that it sent behind its CONNECT counts.
func TestRefusedConnectIsTheEnd(t *testing.T) {
	t.Parallel()
	b, _ := start(t, noStrangers{}, nil)
	sub := guest(t, b, "sub")
	sub.subscribe("#", 0)
	for _, version := range []string{"\x05\xc2\x00\x3c\x00", "\x04\xc2\x00\x3c"} {
		r := dialRaw(t, b.Addr("main"))
		if r.version = version[0]; version[0] == 5 {
			r.write(wire(0x10, "\x00\x04MQTT"+version+text("x")+text("stranger")+text("")) + wire(0x30, text("t")+"\x00x"))
		} else {
			r.write(wire(0x10, "\x00\x04MQTT"+version+text("x")+text("stranger")+text("")) + wire(0x30, text("t")+"x"))
		}
		if ack := r.want(packets.Connack); ack.ReasonCode != map[byte]byte{5: 0x87, 4: 5}[r.version] || ack.SessionPresent {
			t.Errorf("CONNACK 0x%02x, session present %v", ack.ReasonCode, ack.SessionPresent)
		}
		r.wantEnd()
	}
	put(t, b, broker.Message{Topic: "end"})
	if p := sub.want(packets.Publish); p.TopicName != "end" {
		t.Errorf("a message on %s of a client that was refused", p.TopicName)
	}
}

// [MQTT-3.1.3-2] [MQTT-3.1.3-5]: client ids of 1 to 23 letters and digits are taken, and name the session.
func TestClientIDs(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	for _, id := range []string{"0", "Z", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"} {
		for i := range 2 {
			r := dialRaw(t, b.Addr("main"))
			if ack := r.mustConnect(id, lasting(3600)); ack.SessionPresent != (i == 1) {
				t.Errorf("connection %d of %s: session present %v", i+1, id, ack.SessionPresent)
			}
		}
	}
}

// [MQTT-1.5.4-3] [MQTT-4.7.3-3] [MQTT-4.7.3-4]: strings are compared and passed on byte by byte: a byte order mark, unlike
// forms of one letter, capitals, and a topic of 65,535 bytes.
func TestTopicsAreBytes(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	topics := []string{"a", "\ufeffa", "A", "\u00e9", "e\u0301", "a/", "/a", " a", strings.Repeat("x", 65_535)}
	for _, filter := range topics {
		r := guest(t, b, "c")
		if code := r.subscribe(filter, 0); code != 0 {
			t.Fatalf("subscribe: 0x%02x", code)
		}
		for _, topic := range topics {
			r.write(wire(0x30, text(topic)+"\x00x"))
		}
		if p := r.want(packets.Publish); p.TopicName != filter { // [MQTT-3.3.2-3]
			t.Errorf("subscribed to %.20q, got %.20q", filter, p.TopicName)
		}
		r.ping() // and nothing more
	}
}

// [MQTT-3.8.4-8] [MQTT-4.3.1-1] [MQTT-3.3.1-3] [MQTT-4.3.2-2] [MQTT-4.3.3-2]: the QoS of a delivery is the lower one of message
// and subscription; its DUP is not that of the message. A packet id is there with QoS 1 and 2 only [MQTT-2.2.1-2] [MQTT-2.2.1-4], and
// an answer by its QoS for the publisher. [MQTT-3.3.4-1] [MQTT-2.2.1-5]
func TestQoSOfDelivery(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	for granted := range byte(3) {
		sub, pub := guest(t, b, "sub"), guest(t, b, "pub")
		if code := sub.subscribe("t", granted); code != granted { // [MQTT-3.8.4-7]
			t.Fatalf("SUBACK 0x%02x, want 0x%02x", code, granted)
		}
		for qos := range byte(3) {
			id := uint16(40 + qos)
			pub.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos, Dup: qos > 0}, PacketID: id, TopicName: "t"})
			answer := map[byte]byte{1: packets.Puback, 2: packets.Pubrec}[qos]
			if qos > 0 {
				if p := pub.wantCode(answer, 0); p.PacketID != id {
					t.Errorf("%s with packet id %d, want %d", packets.PacketNames[answer], p.PacketID, id)
				}
			}
			if qos == 2 {
				pub.acknowledge(packets.Pubrel, id, 0)
				if p := pub.wantCode(packets.Pubcomp, 0); p.PacketID != id { // [MQTT-4.3.3-11]
					t.Errorf("PUBCOMP with packet id %d, want %d", p.PacketID, id)
				}
			}
			p := sub.want(packets.Publish)
			if h := p.FixedHeader; h.Qos != min(qos, granted) || h.Dup || (p.PacketID != 0) != (h.Qos > 0) {
				t.Errorf("QoS %d for a subscription with %d: QoS %d, DUP %v, packet id %d", qos, granted, h.Qos, h.Dup, p.PacketID)
			}
		}
	}
}

// [MQTT-3.1.2-7] [MQTT-3.1.2-14] [MQTT-3.1.2-15]: a will is retained if it says so.
func TestWillRetain(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	sub := guest(t, b, "sub")
	sub.subscribe("will", 0)
	for _, retain := range []bool{false, true} {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", func(p *packets.Packet) {
			withWill("will", "off")(p)
			p.Connect.WillRetain = retain
		})
		_ = r.conn.Close()
		sub.want(packets.Publish)
		if n := len(b.Retained("will")); (n == 1) != retain {
			t.Errorf("will retain %v: %d messages are retained", retain, n)
		}
	}
}

// [MQTT-3.3.2-7]: a topic alias ends with its connection, also where the session goes on.
func TestAliasEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", lasting(3600))
	r.write(wire(0x30, text("t")+"\x03\x23\x00\x01x"))
	r.ping()
	r = dialRaw(t, b.Addr("main"))
	if ack := r.mustConnect("c", lasting(3600)); !ack.SessionPresent {
		t.Error("no session")
	}
	r.write(wire(0x30, text("")+"\x03\x23\x00\x01x"))
	r.wantCode(packets.Disconnect, 0x82)
	r.wantEnd()
}

// [MQTT-2.2.1-6] [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5]
// [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT-3.12.4-1]: each packet has its answer with its packet id, and a code for each filter in their order.
func TestEachAnswer(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := guest(t, b, "c")
	for id := uint16(1); id <= 5; id++ {
		filters := packets.Subscriptions{{Filter: "a", Qos: 1}, {Filter: "a/#/b"}, {Filter: "b", Qos: 2}, {Filter: "c"}}
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: id * 11, Filters: filters})
		if p := r.want(packets.Suback); p.PacketID != id*11 || !cmp.Equal(p.ReasonCodes, []byte{1, 0x8f, 2, 0}) {
			t.Errorf("SUBACK %d % x, want %d with 01 8f 02 00", p.PacketID, p.ReasonCodes, id*11)
		}
		for _, code := range []byte{0, 0x11} {
			r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: id * 13, Filters: packets.Subscriptions{{Filter: "b"}, {Filter: "none"}, {Filter: "a"}}})
			if p := r.want(packets.Unsuback); p.PacketID != id*13 || !cmp.Equal(p.ReasonCodes, []byte{code, 0x11, code}) {
				t.Errorf("UNSUBACK %d % x, want %d with %02x 11 %02x", p.PacketID, p.ReasonCodes, id*13, code, code)
			}
		}
		r.ping()
	}
}

// [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]: an UNSUBSCRIBE ends the subscription, and not a delivery that has begun.
func TestUnsubscribeWhileUnderWay(t *testing.T) {
	t.Parallel()
	for _, expiry := range []func(*packets.Packet){nil, lasting(3600)} {
		b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", expiry)
		r.subscribe("t", 2)
		put(t, b, broker.Message{Topic: "t", QoS: 2})
		id := r.want(packets.Publish).PacketID
		for _, other := range []string{"T", "t"} { // compared character by character
			r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 7, Filters: packets.Subscriptions{{Filter: other}}})
			r.want(packets.Unsuback)
			put(t, b, broker.Message{Topic: "t", Payload: []byte("after " + other)})
			if other == "T" {
				if p := r.want(packets.Publish); string(p.Payload) != "after T" {
					t.Errorf("got %q", p.Payload)
				}
			}
		}
		r.acknowledge(packets.Pubrec, id, 0)
		if p := r.wantCode(packets.Pubrel, 0); p.PacketID != id {
			t.Errorf("PUBREL with packet id %d, want %d", p.PacketID, id)
		}
		r.acknowledge(packets.Pubcomp, id, 0)
		r.ping() // and nothing more
	}
}

// [MQTT-4.3.3-7] [MQTT-4.3.3-13]: a message of QoS 2 whose time is up goes on to its end, both ways.
func TestExpiryDoesNotEndQoS2(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	sub, pub := guest(t, b, "sub"), guest(t, b, "pub")
	sub.subscribe("t", 2)
	pub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 2, Retain: true}, PacketID: 3, TopicName: "t", Payload: []byte("x"),
		Properties: packets.Properties{MessageExpiryInterval: 1},
	})
	pub.wantCode(packets.Pubrec, 0)
	id := sub.want(packets.Publish).PacketID
	until(t, "the time of the message is up", func() bool { return len(b.Retained("t")) == 0 })
	sub.acknowledge(packets.Pubrec, id, 0)
	sub.wantCode(packets.Pubrel, 0)
	pub.acknowledge(packets.Pubrel, 3, 0)
	pub.wantCode(packets.Pubcomp, 0)
}

// [MQTT-3.3.4-10] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]: to a client that has not acknowledged as many messages as it takes
// none of QoS 1 and 2 is sent, and everything else is.
func TestFullWindowHoldsOnlyMessages(t *testing.T) {
	t.Parallel()
	for _, edit := range []func(*packets.Packet){func(*packets.Packet) {}, lasting(3600)} {
		b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", func(p *packets.Packet) {
			edit(p)
			p.Properties.ReceiveMaximum = 1
		})
		r.subscribe("t", 1)
		for i := range 2 {
			put(t, b, broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1})
		}
		id := r.want(packets.Publish).PacketID
		r.ping()
		r.subscribe("u", 0)
		put(t, b, broker.Message{Topic: "u", Payload: []byte("u")})
		if p := r.want(packets.Publish); string(p.Payload) != "u" {
			t.Errorf("got %q before an acknowledgement", p.Payload)
		}
		r.publish("v", "x", 2, 9)
		r.wantCode(packets.Pubrec, 0)
		r.acknowledge(packets.Pubrel, 9, 0)
		r.wantCode(packets.Pubcomp, 0)
		r.acknowledge(packets.Puback, id, 0)
		if p := r.want(packets.Publish); string(p.Payload) != "1" {
			t.Errorf("got %q after the acknowledgement", p.Payload)
		}
	}
}

// [MQTT-4.4.0-2] [MQTT-4.8.2-6]: a message that its subscriber refuses is acknowledged: it is not sent again, also not to
// another member of a group. [MQTT-4.3.3-9]
func TestRefusedBySubscriber(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	for qos := byte(1); qos <= 2; qos++ {
		one := dialRaw(t, b.Addr("main"))
		one.mustConnect("one", lasting(3600))
		one.subscribe("$share/g/t", 2)
		put(t, b, broker.Message{Topic: "t", Payload: []byte("refused"), QoS: qos})
		id := one.want(packets.Publish).PacketID
		two := dialRaw(t, b.Addr("main"))
		two.mustConnect("two", lasting(3600))
		two.subscribe("$share/g/t", 2)
		one.acknowledge(map[byte]byte{1: packets.Puback, 2: packets.Pubrec}[qos], id, 0x83)
		one.ping()
		_ = one.conn.Close()
		two.ping()
		one = dialRaw(t, b.Addr("main"))
		if ack := one.mustConnect("one", lasting(3600)); !ack.SessionPresent {
			t.Error("no session")
		}
		one.ping() // and nothing comes again
		for _, r := range []*raw{one, two} {
			r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, Properties: packets.Properties{SessionExpiryIntervalFlag: true}})
			r.wantEnd()
		}
	}
	r := guest(t, b, "pub") // and the same packet id names a new message after a refusal of ours
	for range 2 {
		r.publish("$SYS/x", "x", 2, 5)
		r.wantCode(packets.Pubrec, 0x87)
	}
	r.publish("ok", "x", 2, 5)
	r.wantCode(packets.Pubrec, 0)
}

// [MQTT-4.8.2-3]: a member of a group gets messages with the QoS that was granted to it.
func TestSharedQoS(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	members := map[byte]*raw{}
	for qos := range byte(3) {
		members[qos] = guest(t, b, fmt.Sprint("m", qos))
		members[qos].subscribe("$share/g/t", qos)
	}
	for range 30 {
		put(t, b, broker.Message{Topic: "t", QoS: 2})
	}
	for qos, m := range members {
		m.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		n := 0
		for {
			p, err := m.next()
			if err != nil {
				t.Fatal(err)
			}
			if p.FixedHeader.Type == packets.Pingresp {
				break
			}
			if n++; p.FixedHeader.Qos != qos {
				t.Errorf("the member with QoS %d got QoS %d", qos, p.FixedHeader.Qos)
			}
		}
		if n == 0 {
			t.Errorf("the member with QoS %d got nothing", qos)
		}
	}
}

// [MQTT-3.14.2-2]: a DISCONNECT of the broker has no session expiry; nothing follows it. [MQTT-3.14.4-1] [MQTT-3.14.4-2] And the
// broker answers nothing that comes after the client's own, whose will is not sent. [MQTT-3.14.4-3] [MQTT-3.1.2-10]
func TestDisconnectIsTheEnd(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = t.TempDir() })
	sub := guest(t, b, "sub")
	sub.subscribe("#", 0)
	old := dialRaw(t, b.Addr("main"))
	old.mustConnect("c", lasting(3600))
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) {
		lasting(3600)(p)
		withWill("will", "off")(p)
	})
	if p := old.wantCode(packets.Disconnect, 0x8e); p.Properties.SessionExpiryIntervalFlag {
		t.Error("DISCONNECT has a session expiry")
	}
	old.wantEnd()
	r.write("\xe0\x00", "\xc0\x00", wire(0x30, text("after")+"\x00x"))
	r.wantEnd()
	put(t, b, broker.Message{Topic: "end", Expiry: time.Hour})
	if p := sub.want(packets.Publish); p.TopicName != "end" {
		t.Errorf("got a message on %s", p.TopicName)
	}
}

// [MQTT-3.3.1-8]: a message without RETAIN neither replaces what is retained nor deletes it.
func TestMessageWithoutRetain(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := guest(t, b, "c")
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: true}, TopicName: "t", Payload: []byte("kept")})
	for _, payload := range []string{"passing", ""} {
		r.publish("t", payload, 0, 0)
		r.publish("u", payload, 0, 0)
	}
	r.ping()
	if kept := b.Retained("#"); len(kept) != 1 || string(kept[0].Payload) != "kept" {
		t.Errorf("%d messages are retained: %+v", len(kept), kept)
	}
}
