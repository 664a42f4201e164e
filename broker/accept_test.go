package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
)

// refuse is an Accept that refuses a message by the kind that its payload names.
func refuse(_ context.Context, _ access.Identity, m broker.Message) error {
	if kind, ok := strings.CutPrefix(string(m.Payload), "refuse "); ok {
		return protocol.Errorf(protocol.Kind(kind), "refused\nas asked")
	}
	return nil
}

// watch subscribes to everything, and returns what arrives.
func watch(t *testing.T, b *broker.Broker) *box {
	got := newBox()
	join(t, client.Options{URLs: tcpURL(b), Username: "watcher", Handle: got.accept, Subscriptions: []client.Subscription{{Filter: "#", QoS: 1}}})
	return got
}

// wantOnly publishes a last message and expects that nothing came before it.
func wantOnly(t *testing.T, b *broker.Broker, got *box) {
	t.Helper()
	if err := b.Publish(t.Context(), broker.Message{Topic: "end", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if m := got.next(t); m.Topic != "end" {
		t.Errorf("a refused message was delivered: %s %q", m.Topic, m.Payload)
	}
	for _, m := range b.Retained("t") {
		t.Errorf("a refused message was retained: %q", m.Payload)
	}
}

func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	codes := map[protocol.Kind]byte{
		protocol.Invalid: 0x99, protocol.Denied: 0x87, protocol.NotFound: 0x90,
		protocol.Unavailable: 0x97, protocol.Conflict: 0x83, protocol.Internal: 0x83,
	}
	for qos := range byte(3) {
		t.Run(fmt.Sprint("qos ", qos), func(t *testing.T) {
			t.Parallel()
			b, reg := start(t, free{}, func(o *broker.Options) { o.Accept = refuse })
			got := watch(t, b)
			r := dialRaw(t, b.Addr("main"))
			r.mustConnect("c", nil)
			for kind, code := range codes {
				r.send(packets.Packet{
					FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos, Retain: true},
					TopicName:   "t", Payload: []byte("refuse " + kind), PacketID: uint16(qos),
				})
				switch qos {
				case 0:
					r.ping()
					continue
				case 1:
					p := r.want(packets.Puback)
					if p.ReasonCode != code || p.Properties.ReasonString != "refused as asked" {
						t.Errorf("%s: PUBACK with 0x%02x %q, want 0x%02x", kind, p.ReasonCode, p.Properties.ReasonString, code)
					}
				case 2:
					if p := r.want(packets.Pubrec); p.ReasonCode != code {
						t.Errorf("%s: PUBREC with 0x%02x, want 0x%02x", kind, p.ReasonCode, code)
					}
				}
			}
			wantOnly(t, b, got)
			if n := metric(t, reg, "refused_total", "publish"); n != float64(len(codes)) {
				t.Errorf("%v refusals counted, want %d", n, len(codes))
			}
		})
	}
}

// MQTT 3.1.1 has no way to refuse: no acknowledgement, and the connection ends.
func TestRefusedMessageOfMQTT3(t *testing.T) {
	t.Parallel()
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprint("qos ", qos), func(t *testing.T) {
			t.Parallel()
			b, _ := start(t, free{}, func(o *broker.Options) { o.Accept = refuse })
			got := watch(t, b)
			r := dialRaw(t, b.Addr("main"))
			r.version = 4
			r.mustConnect("c", nil)
			r.publish("t", "refuse unavailable", qos, 1)
			r.wantEnd()
			wantOnly(t, b, got)
		})
	}
}

// Accept has returned before the acknowledgement, and before any delivery.
func TestAcceptComesFirst(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan access.Identity, 1), make(chan struct{})
	b, _ := start(t, access.Site("plant1"), func(o *broker.Options) {
		o.Accept = func(_ context.Context, from access.Identity, _ broker.Message) error {
			entered <- from
			<-leave
			return nil
		}
	})
	c := join(t, client.Options{URLs: tcpURL(b), Username: "n1.plant1"})
	done := make(chan error, 1)
	go func() {
		done <- c.Publish(t.Context(), broker.Message{Topic: "colony/v1/plant1/node/n1/inventory", Payload: []byte("x"), QoS: 1, Retain: true})
	}()
	if from := <-entered; from != (access.Identity{Name: "n1.plant1", Site: "plant1", Node: "n1"}) {
		t.Errorf("accepted from %+v", from)
	}
	select {
	case err := <-done:
		t.Fatalf("acknowledged (%v) while Accept was running", err)
	default:
	}
	if m := b.Retained("#"); len(m) != 0 {
		t.Errorf("%v retained while Accept was running", m)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func withWill(topic, payload string) func(*packets.Packet) {
	return func(p *packets.Packet) {
		p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload, p.Connect.WillQos = true, topic, []byte(payload), 1
		p.Connect.WillRetain = true
		p.Connect.WillProperties = packets.Properties{
			ContentType: "application/cbor", CorrelationData: []byte("c"), ResponseTopic: "r",
			User: []packets.UserProperty{{Key: "k", Val: "v"}},
		}
	}
}

func TestWill(t *testing.T) {
	t.Parallel()
	accepted := newBox()
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Accept = func(ctx context.Context, id access.Identity, m broker.Message) error {
			if err := refuse(ctx, id, m); err != nil {
				return err
			}
			return accepted.accept(ctx, m)
		}
	})
	got := watch(t, b)
	want := broker.Message{
		Topic: "t/will", Payload: []byte("offline"), QoS: 1, Retain: true, ContentType: "application/cbor",
		CorrelationData: []byte("c"), ResponseTopic: "r", Properties: []broker.Property{{Key: "k", Value: "v"}},
	}
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("t/will", "offline"))
	_ = r.conn.Close()
	if diff := cmp.Diff(want, accepted.next(t)); diff != "" {
		t.Errorf("accepted (-want +got):\n%s", diff)
	}
	delivered := want
	delivered.Retain = true // our clients subscribe with "retain as published"
	if diff := cmp.Diff(delivered, got.next(t)); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
	if len(b.Retained("t/will")) != 1 {
		t.Error("the will is not retained")
	}

	// Not after a good-bye, and not if Accept refuses it.
	r = dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("t", "bye"))
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	r.wantEnd()
	r = dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("t", "refuse denied")) // waits for the former session to end
	_ = r.conn.Close()
	r = dialRaw(t, b.Addr("main"))
	r.mustConnect("c", nil)
	wantOnly(t, b, got)
	if n := metric(t, reg, "wills_total"); n != 1 {
		t.Errorf("%v wills counted, want 1", n)
	}

	// But after a DISCONNECT that asks for it.
	r = dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("t/will", "offline"))
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: 0x04})
	if m := got.next(t); m.Topic != "t/will" {
		t.Errorf("got %s, want the will", m.Topic)
	}
}

// A client that says DISCONNECT and connects anew at once has said it: its will is not sent, and what it had
// published is. [MQTT-3.14.4-3]
func TestDisconnectBeforeTakeover(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	got := watch(t, b)
	for i := range 200 {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("c", withWill("t/online", "0"))
		r.write(wire(0x30, text("t/last")+"\x00x"), "\xe0\x00")
		next := dialRaw(t, b.Addr("main"))
		next.mustConnect("c", nil)
		next.publish("t/online", "1", 1, 1)
		next.want(packets.Puback)
		for _, want := range []string{"x", "1"} {
			if m := got.next(t); string(m.Payload) != want {
				t.Fatalf("round %d: got %q on %s, want %q", i, m.Payload, m.Topic, want)
			}
		}
		next.write("\xe0\x00")
		next.wantEnd()
	}
}

// The will of a connection that is taken over comes before the first message of
// the connection that takes over: a node that reconnects does not end as offline.
func TestWillBeforeTakeover(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	got := watch(t, b)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", withWill("t/online", "0"))
	for i := range 50 {
		next := dialRaw(t, b.Addr("main"))
		next.mustConnect("c", withWill("t/online", "0"))
		if p := r.want(packets.Disconnect); p.ReasonCode != packets.ErrSessionTakenOver.Code {
			t.Fatalf("round %d: DISCONNECT with 0x%02x, want 0x8e", i, p.ReasonCode)
		}
		next.publish("t/online", "1", 1, 1)
		next.want(packets.Puback)
		if m := got.next(t); string(m.Payload) != "0" {
			t.Fatalf("round %d: got %q first, want the will", i, m.Payload)
		}
		if m := got.next(t); string(m.Payload) != "1" {
			t.Fatalf("round %d: got %q, want the new connection's message", i, m.Payload)
		}
		r = next
	}
}
