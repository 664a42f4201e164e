package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
)

// Each test here is named after what it shows of MQTT 5, and says by which
// clause. DESIGN.md has the table.

// guest is a connected raw client.
func guest(t *testing.T, b *broker.Broker, id string) *raw {
	t.Helper()
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect(id, nil)
	return r
}

func put(t *testing.T, b *broker.Broker, m broker.Message) {
	t.Helper()
	if err := b.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// [MQTT-3.3.1-5] [MQTT-3.3.1-8] to [MQTT-3.3.1-13]: what is retained comes by retain
// handling; RETAIN is set on it, and on live messages only with retain as published.
func TestRetainOptions(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	put(t, b, broker.Message{Topic: "t", Payload: []byte("1"), QoS: 1, Retain: true})
	put(t, b, broker.Message{Topic: "t", Payload: []byte("2"), QoS: 1, Retain: true}) // replaces
	for handling, want := range map[byte][2]bool{0: {true, true}, 1: {true, false}, 2: {false, false}} {
		for _, rap := range []bool{false, true} {
			r := guest(t, b, fmt.Sprint("c", handling, rap))
			for again, comes := range want {
				r.subscribeAs(packets.Subscription{Filter: "t", Qos: 0, RetainHandling: handling, RetainAsPublished: rap})
				if comes {
					if p := r.want(packets.Publish); string(p.Payload) != "2" || !p.FixedHeader.Retain {
						t.Errorf("handling %d, subscription %d: got %q, RETAIN %v", handling, again, p.Payload, p.FixedHeader.Retain)
					}
				}
			}
			put(t, b, broker.Message{Topic: "t", Payload: []byte("2"), QoS: 1, Retain: true})
			if p := r.want(packets.Publish); p.FixedHeader.Retain != rap {
				t.Errorf("handling %d, retain as published %v: a live message has RETAIN %v", handling, rap, p.FixedHeader.Retain)
			}
		}
	}
	// [MQTT-3.3.1-6] [MQTT-3.3.1-7]: an empty message deletes, and is delivered like another.
	r := guest(t, b, "deleter")
	r.subscribeAs(packets.Subscription{Filter: "t", RetainHandling: 2})
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: true}, TopicName: "t"})
	if p := r.want(packets.Publish); len(p.Payload) != 0 || p.FixedHeader.Retain {
		t.Errorf("got %q, RETAIN %v", p.Payload, p.FixedHeader.Retain)
	}
	if left := b.Retained("t"); len(left) != 0 {
		t.Errorf("%v stays", left)
	}
}

// [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-3.3.1-9]: a/# is a too, and # is not $SYS, for retained
// messages as for live ones.
func TestRetainedByWildcard(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	for _, topic := range []string{"a", "a/b", "a/b/c", "ab"} {
		put(t, b, broker.Message{Topic: topic, Payload: []byte("x"), Retain: true})
	}
	for filter, want := range map[string][]string{
		"#": {"a", "a/b", "a/b/c", "ab"}, "a/#": {"a", "a/b", "a/b/c"}, "a/b/#": {"a/b", "a/b/c"}, "+": {"a", "ab"}, "+/b/#": {"a/b", "a/b/c"},
	} {
		r := guest(t, b, "c")
		r.subscribe(filter, 0)
		got := map[string]bool{}
		for range want {
			got[r.want(packets.Publish).TopicName] = true
		}
		if diff := cmp.Diff(set(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filter, diff)
		}
		r.ping() // and nothing more
	}
	r := guest(t, b, "c")
	r.subscribe("$SYS/broker/clients/connected", 0)
	if p := r.want(packets.Publish); string(p.Payload) == "" {
		t.Error("$SYS is empty")
	}
}

// [MQTT-3.8.3-3]: no local. [MQTT-3.8.3-4]: and not for a shared subscription.
func TestNoLocal(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := guest(t, b, "c")
	r.subscribeAs(packets.Subscription{Filter: "t", Qos: 1, NoLocal: true})
	r.publish("t", "own", 1, 1)
	r.want(packets.Puback)
	put(t, b, broker.Message{Topic: "t", Payload: []byte("other")})
	if p := r.want(packets.Publish); string(p.Payload) != "other" {
		t.Errorf("got %q", p.Payload)
	}
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 2,
		Filters: packets.Subscriptions{{Filter: "$share/g/t", NoLocal: true}},
	})
	r.wantCode(packets.Disconnect, 0x82)
}

// [MQTT-4.8.2-4] [MQTT-4.8.2-6]: each message to one member of a group, to every group, and to those
// outside; nothing retained; a client that leaves gets nothing more.
func TestSharedSubscriptions(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	put(t, b, broker.Message{Topic: "t/0", Payload: []byte("kept"), Retain: true})
	members := []*raw{guest(t, b, "m0"), guest(t, b, "m1"), guest(t, b, "m2")}
	members[0].subscribe("$share/g/t/#", 1)
	members[1].subscribe("$share/g/t/#", 1)
	members[2].subscribe("$share/h/t/+", 1)
	plain := guest(t, b, "plain")
	plain.subscribe("t/1", 1)
	if n := metric(t, reg, "shared_subscriptions"); n != 3 {
		t.Errorf("%v shared subscriptions counted", n)
	}
	const n = 100
	for i := range n {
		put(t, b, broker.Message{Topic: "t/1", Payload: fmt.Append(nil, i), QoS: 1})
	}
	count := func(r *raw) (got int) {
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		for {
			p, err := r.next()
			if err != nil || p.FixedHeader.Type != packets.Publish {
				return got
			}
			if string(p.Payload) == "kept" {
				t.Error("a retained message came to a shared subscription")
			}
			got++
		}
	}
	g0, g1 := count(members[0]), count(members[1])
	if g0+g1 != n || g0 == 0 || g1 == 0 {
		t.Errorf("members of a group got %d and %d of %d", g0, g1, n)
	}
	if h, p := count(members[2]), count(plain); h != n || p != n {
		t.Errorf("the other group got %d, the plain subscriber %d of %d", h, p, n)
	}
	_ = members[0].conn.Close()
	for metric(t, reg, "shared_subscriptions") != 2 {
		members[1].ping() // takes a moment
	}
	for range n {
		put(t, b, broker.Message{Topic: "t/1", QoS: 1})
	}
	if got := count(members[1]); got != n {
		t.Errorf("the member left over got %d of %d", got, n)
	}
}

// [MQTT-3.3.2-4] [MQTT-3.3.2-15] to [MQTT-3.3.2-18] [MQTT-3.3.2-20]: the properties of a message arrive as they were sent,
// user properties in their order; also from a last will. [MQTT-3.1.3-10]
func TestMessageProperties(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	sub := guest(t, b, "sub")
	sub.subscribe("t", 1)
	want := packets.Properties{
		PayloadFormat: 1, PayloadFormatFlag: true, ContentType: "text/plain", ResponseTopic: "answer/1", CorrelationData: []byte{0, 255},
		User: []packets.UserProperty{{Key: "b", Val: "1"}, {Key: "a", Val: "2"}, {Key: "b", Val: "1"}},
	}
	pub := dialRaw(t, b.Addr("main"))
	pub.mustConnect("pub", func(p *packets.Packet) {
		p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload, p.Connect.WillQos = true, "t", []byte("will"), 1
		p.Connect.WillProperties = want
		p.Connect.WillProperties.WillDelayInterval = 3600 // ends with the session. [MQTT-3.1.3-9]
	})
	pub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, PacketID: 1, TopicName: "t", Payload: []byte("live"), Properties: want,
	})
	pub.want(packets.Puback)
	_ = pub.conn.Close()
	for _, payload := range []string{"live", "will"} {
		p := sub.want(packets.Publish)
		if diff := cmp.Diff(want, p.Properties); diff != "" || string(p.Payload) != payload {
			t.Errorf("got %q, want %q; properties (-sent +received):\n%s", p.Payload, payload, diff)
		}
	}
}

// [MQTT-3.3.2-5] [MQTT-3.3.2-6]: the expiry of a message is counted down while it is kept, and then it is
// not delivered.
func TestMessageExpiry(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	put(t, b, broker.Message{Topic: "t/long", Payload: []byte("x"), Retain: true, Expiry: 100 * time.Second})
	put(t, b, broker.Message{Topic: "t/short", Payload: []byte("x"), Retain: true, Expiry: time.Second})
	deadline := time.After(patience)
	for len(b.Retained("t/short")) > 0 {
		select {
		case <-deadline:
			t.Fatal("the short message does not expire")
		default:
			guest(t, b, "wait").ping()
		}
	}
	r := guest(t, b, "c")
	r.subscribe("t/#", 1)
	p := r.want(packets.Publish)
	if left := p.Properties.MessageExpiryInterval; p.TopicName != "t/long" || left < 80 || left > 99 {
		t.Errorf("got %s with %d s left, want less than 100", p.TopicName, left)
	}
	r.ping()
}

// [MQTT-3.1.2-24] [MQTT-3.1.2-25]: a message larger than the client takes is not sent, and counts as delivered.
func TestClientsMaximumPacketSize(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) { p.Properties.MaximumPacketSize = 100 })
	r.subscribe("t", 1)
	put(t, b, broker.Message{Topic: "t", Payload: make([]byte, 200), QoS: 1})
	put(t, b, broker.Message{Topic: "t", Payload: []byte("small"), QoS: 1})
	if p := r.want(packets.Publish); string(p.Payload) != "small" {
		t.Errorf("got %d bytes", len(p.Payload))
	}
	if n := metric(t, reg, "dropped_total", "packet_too_large"); n != 1 {
		t.Errorf("%v drops counted, want 1", n)
	}
}

// [MQTT-3.3.2-8] to [MQTT-3.3.2-12]: a topic alias from the client, within the number that CONNACK allows.
func TestAliasFromClient(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	alias := func(r *raw, topic string, n uint16) {
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, PacketID: 1, TopicName: topic, Payload: []byte("x"),
			Properties: packets.Properties{TopicAlias: n, TopicAliasFlag: true},
		})
	}
	r := guest(t, b, "c")
	r.subscribe("#", 0)
	for _, step := range []struct{ send, want string }{{"a", "a"}, {"", "a"}, {"b", "b"}, {"", "b"}} { // set, use, set anew, use
		alias(r, step.send, 32)
		if p := r.want(packets.Publish); p.TopicName != step.want || p.Properties.TopicAliasFlag {
			t.Errorf("got topic %q, want %q", p.TopicName, step.want)
		}
		r.wantCode(packets.Puback, 0)
	}
	for n, code := range map[uint16]byte{33: 0x94, 0: 0x94, 7: 0x82} { // too high, zero, never set
		r := guest(t, b, fmt.Sprint("bad", n))
		if n == 0 { // the encoder leaves a zero out
			if _, err := r.conn.Write([]byte{0x32, 11, 0, 1, 't', 0, 1, 3, 0x23, 0, 0, 'x', 'y'}); err != nil {
				t.Fatal(err)
			}
		} else {
			alias(r, "", n)
		}
		r.wantCode(packets.Disconnect, code)
		r.wantEnd()
	}
}

// [MQTT-3.3.4-3] [MQTT-3.3.4-4]: subscription identifiers, also of two subscriptions that both match; the
// message comes once, with the higher QoS. [MQTT-3.3.4-2]
func TestSubscriptionIdentifiers(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	put(t, b, broker.Message{Topic: "t/1", Payload: []byte("kept"), Retain: true})
	r := guest(t, b, "c")
	r.subscribeAs(packets.Subscription{Filter: "t/+", Qos: 0, Identifier: 7})
	if p := r.want(packets.Publish); !cmp.Equal(p.Properties.SubscriptionIdentifier, []int{7}) {
		t.Errorf("retained: identifiers %v", p.Properties.SubscriptionIdentifier)
	}
	r.subscribeAs(packets.Subscription{Filter: "t/#", Qos: 1, Identifier: 268_435_455, RetainHandling: 2})
	r.subscribeAs(packets.Subscription{Filter: "t/1", Qos: 0, RetainHandling: 2})
	put(t, b, broker.Message{Topic: "t/1", QoS: 2})
	p := r.want(packets.Publish)
	if !cmp.Equal(p.Properties.SubscriptionIdentifier, []int{7, 268_435_455}) || p.FixedHeader.Qos != 1 {
		t.Errorf("identifiers %v, QoS %d", p.Properties.SubscriptionIdentifier, p.FixedHeader.Qos)
	}
	r.ping()
	r.subscribeAs(packets.Subscription{Filter: "t/#", Qos: 1, Identifier: 9, RetainHandling: 2}) // replaces. [MQTT-3.8.4-3]
	put(t, b, broker.Message{Topic: "t/2", QoS: 1})
	if p := r.want(packets.Publish); !cmp.Equal(p.Properties.SubscriptionIdentifier, []int{7, 9}) {
		t.Errorf("identifiers %v", p.Properties.SubscriptionIdentifier)
	}
}

// [MQTT-3.1.3-6] [MQTT-3.2.2-16]: a client without an id is given one, of its own identity's. [MQTT-3.1.1, 3.1.3-8]
func TestAssignedClientID(t *testing.T) {
	t.Parallel()
	b, _ := start(t, access.Site("plant1"), nil)
	nameless := func(p *packets.Packet) { p.Connect.ClientIdentifier = "" }
	seen := map[string]bool{}
	for range 3 {
		ack := dialRaw(t, b.Addr("main")).mustConnect("mes@plant1", nameless)
		if id := ack.Properties.AssignedClientID; !strings.HasPrefix(id, "mes@plant1/") || seen[id] {
			t.Errorf("assigned client id %q", id)
		} else {
			seen[id] = true
		}
	}
	if ack := dialRaw(t, b.Addr("main")).mustConnect("mes@plant1", nil); ack.Properties.AssignedClientID != "" {
		t.Errorf("a client with an id is given %q", ack.Properties.AssignedClientID)
	}
	old := dialRaw(t, b.Addr("main"))
	old.version = 4
	old.mustConnect("mes@plant1", nameless)
	old = dialRaw(t, b.Addr("main"))
	old.version = 4
	if ack := old.connect("mes@plant1", func(p *packets.Packet) { nameless(p); p.Connect.Clean = false }); ack.ReasonCode != 2 {
		t.Errorf("MQTT 3.1.1 without id and clean session: CONNACK %d, want 2", ack.ReasonCode)
	}
}

// [MQTT-3.1.2-29]: no reason strings for a client that wants none.
func TestNoProblemInformation(t *testing.T) {
	t.Parallel()
	b, _ := start(t, access.Site("plant1"), nil)
	for _, terse := range []bool{false, true} {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("n1.plant1", func(p *packets.Packet) {
			p.Properties.RequestProblemInfoFlag = terse // with the value 0
		})
		ack := r.subscribeAs(packets.Subscription{Filter: "+/x"})
		if got := ack.Properties.ReasonString; (got == "") != terse || !terse && !strings.Contains(got, "covers colony/") {
			t.Errorf("terse %v: reason %q", terse, got)
		}
		if ack.ReasonCodes[0] != 0x87 {
			t.Errorf("SUBACK with 0x%02x, want 0x87", ack.ReasonCodes[0])
		}
		r.publish("colony/x", "x", 1, 1)
		if p := r.wantCode(packets.Puback, 0x87); (p.Properties.ReasonString == "") != terse {
			t.Errorf("terse %v: reason %q", terse, p.Properties.ReasonString)
		}
	}
}

// [MQTT-4.3.3-2] to [MQTT-4.3.3-13]: QoS 2 both ways; a message sent twice before PUBREL is delivered once.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	sub, pub := guest(t, b, "sub"), guest(t, b, "pub")
	sub.subscribe("t", 2)
	for _, payload := range []string{"1", "2"} {
		for range 2 {
			pub.publish("t", payload, 2, 9)
			pub.wantCode(packets.Pubrec, 0)
		}
		pub.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pubrel, Qos: 1}, PacketID: 9})
		pub.wantCode(packets.Pubcomp, 0)
	}
	var got []string
	for done := 0; done < 2; {
		p, err := sub.next()
		if err != nil {
			t.Fatal(err)
		}
		answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pubrec}, PacketID: p.PacketID}
		if p.FixedHeader.Type == packets.Publish {
			got = append(got, fmt.Sprintf("%s with QoS %d", p.Payload, p.FixedHeader.Qos))
		} else {
			answer.FixedHeader.Type = packets.Pubcomp
			done++
		}
		sub.send(answer)
	}
	if diff := cmp.Diff([]string{"1 with QoS 2", "2 with QoS 2"}, got); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
	sub.ping() // and nothing more
	pub.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pubrel, Qos: 1}, PacketID: 77})
	pub.wantCode(packets.Pubcomp, 0x92) // unknown
	pub.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pubrec}, PacketID: 77})
	pub.wantCode(packets.Pubrel, 0x92)
	if n := metric(t, reg, "messages_received_total", "2"); n != 4 {
		t.Errorf("%v messages of QoS 2 counted, want 4", n)
	}
}

// [MQTT-3.3.4-7] [MQTT-3.3.4-8]: the broker's own Receive Maximum.
func TestBrokersReceiveMaximum(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := dialRaw(t, b.Addr("main"))
	limit := r.mustConnect("c", nil).Properties.ReceiveMaximum
	for id := uint16(1); id <= limit; id++ {
		r.publish("t", "x", 2, id)
		r.wantCode(packets.Pubrec, 0)
	}
	r.publish("t", "x", 2, limit+1)
	r.wantCode(packets.Disconnect, 0x93)
	r.wantEnd()
}

// [MQTT-4.13.1-1]: an error in the protocol ends the connection, and the client gets the reason code.
func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	subscribe := func(sub packets.Subscription) packets.Packet {
		return packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{sub}}
	}
	for what, c := range map[string]struct {
		packet packets.Packet
		bytes  []byte
		code   byte
	}{
		"a second CONNECT [MQTT-3.1.0-2]":                     {packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect}, Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), ClientIdentifier: "x"}}, nil, 0x82},
		"a topic with a wildcard [MQTT-3.3.2-2]":              {packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish}, TopicName: "a/+"}, nil, 0x82},
		"SUBSCRIBE without filters [MQTT-3.8.3-2]":            {packet: packets.Packet{}, bytes: []byte{0x82, 3, 0, 1, 0}, code: 0x82},
		"QoS 3 [MQTT-3.3.1-4]":                                {bytes: []byte{0x36, 7, 0, 1, 't', 0, 1, 0, 'x'}, code: 0x81},
		"a subscription with QoS 3 [3.8.3.1]":                 {bytes: []byte{0x82, 7, 0, 1, 0, 0, 1, 't', 3}, code: 0x82},
		"retain handling 3 [3.8.3.1]":                         {subscribe(packets.Subscription{Filter: "t", RetainHandling: 3}), nil, 0x82},
		"AUTH without a method [MQTT-4.12.0-6]":               {bytes: []byte{0xf0, 0}, code: 0x82},
		"a packet for clients [MQTT-4.13.1-1]":                {bytes: []byte{0x20, 3, 0, 0, 0}, code: 0x82},
		"a session expiry after none [MQTT-3.14.2-2]":         {packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, Properties: packets.Properties{SessionExpiryInterval: 10, SessionExpiryIntervalFlag: true}}, nil, 0x82},
		"a topic that is no UTF-8 [MQTT-1.5.4-1]":             {bytes: []byte{0x30, 5, 0, 2, 0xff, 0xfe, 0}, code: 0x81},
		"a packet id of 0 [MQTT-2.2.1-3]":                     {bytes: []byte{0x32, 6, 0, 1, 't', 0, 0, 0}, code: 0x82},
		"a subscription identifier of 0 [MQTT-3.8.2.1.2]":     {bytes: []byte{0x82, 9, 0, 1, 2, 0x0b, 0, 0, 1, 't', 0}, code: 0x82},
		"a subscription identifier in PUBLISH [MQTT-3.3.4-6]": {bytes: []byte{0x30, 6, 0, 1, 't', 2, 0x0b, 1}, code: 0x82},
	} {
		r := guest(t, b, what)
		if c.bytes == nil {
			r.send(c.packet)
		} else if _, err := r.conn.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		if p, err := r.next(); err != nil || p.FixedHeader.Type != packets.Disconnect || p.ReasonCode != c.code {
			t.Errorf("%s: got %s 0x%02x, %v, want DISCONNECT 0x%02x", what, packets.PacketNames[p.FixedHeader.Type], p.ReasonCode, err, c.code)
		}
		r.wantEnd()
	}
	if n := metric(t, reg, "disconnects_total", "0x82"); n < 5 {
		t.Errorf("%v disconnects with 0x82 counted", n)
	}
	for name, edit := range map[string]func(*packets.Packet){ // CONNACK: [MQTT-4.12.0-1] [MQTT-3.1.2-2]
		"0x8c": func(p *packets.Packet) { p.Properties.AuthenticationMethod = "SCRAM-SHA-1" },
		"0x84": func(p *packets.Packet) { p.ProtocolVersion = 6 },
	} {
		r := dialRaw(t, b.Addr("main"))
		if name == "0x84" {
			if _, err := r.conn.Write([]byte("\x10\x0d\x00\x04MQTT\x06\x02\x00\x3c\x00\x01c")); err != nil {
				t.Fatal(err)
			}
			r.version = 4 // the answer to a version that is not known is one that all can read
			if ack := r.want(packets.Connack); ack.ReasonCode != 1 {
				t.Errorf("protocol version 6: CONNACK %d, want 1", ack.ReasonCode)
			}
		} else if ack := r.connect("c", edit); fmt.Sprintf("0x%02x", ack.ReasonCode) != name {
			t.Errorf("CONNACK 0x%02x, want %s", ack.ReasonCode, name)
		}
		r.wantEnd()
	}
}

// [MQTT-3.10.4-1] [MQTT-3.11.3-1] [MQTT-3.11.3-2]: UNSUBACK says which subscription there was; filters that are none get
// 0x8f in SUBACK. [MQTT-3.9.3-1]
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	r := guest(t, b, "c")
	other := guest(t, b, "other")
	other.subscribe("b", 0)
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 5,
		Filters: packets.Subscriptions{{Filter: "a", Qos: 2}, {Filter: "a/#/b"}, {Filter: "a#"}, {Filter: "a"}, {Filter: "$share/g"}},
	})
	if diff := cmp.Diff([]byte{2, 0x8f, 0x8f, 0, 0x8f}, r.want(packets.Suback).ReasonCodes); diff != "" {
		t.Errorf("SUBACK (-want +got):\n%s", diff)
	}
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 6,
		Filters: packets.Subscriptions{{Filter: "a"}, {Filter: "b"}, {Filter: "a"}}, // b is another's
	})
	if diff := cmp.Diff([]byte{0, 0x11, 0x11}, r.want(packets.Unsuback).ReasonCodes); diff != "" {
		t.Errorf("UNSUBACK (-want +got):\n%s", diff)
	}
	put(t, b, broker.Message{Topic: "a"})
	r.ping()
	if n := metric(t, reg, "subscriptions"); n != 1 {
		t.Errorf("%v subscriptions counted, want 1", n)
	}
}
