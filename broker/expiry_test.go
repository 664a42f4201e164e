package broker_test

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/internal/memnet"
)

// inBubble starts a broker with sessions in a bubble of synctest. open connects to it, and says nothing.
func inBubble(t *testing.T, dir string) (b *broker.Broker, open func(host string) *raw) {
	t.Helper()
	n := memnet.New(1)
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "broker:1883"}}, Listen: n.Host("broker").Listen,
		Access: free{}, Logger: slog.New(slog.DiscardHandler), Sessions: broker.Sessions{Dir: dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, func(host string) *raw {
		c, err := n.Host(host).DialContext(t.Context(), "tcp", "broker:1883")
		if err != nil {
			t.Fatal(err)
		}
		return rawOver(t, c)
	}
}

// A message with an expiry of 0 is in its last moment; it is not one without an expiry. A client that takes it at
// once gets it, with 0; no client gets it later, from a session or retained. A client forwards such a message if it
// got it with 0, or sends it again after its time. [MQTT-3.3.2-5] [MQTT-3.3.2-6]
func TestExpiryOfZero(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b, open := inBubble(t, dir)
		dial := func(id string, edit func(*packets.Packet)) *raw {
			r := open(id)
			r.mustConnect(id, edit)
			return r
		}
		away, online := dial("away", lasting(3600)), dial("online", nil)
		away.subscribe("t/#", 1)
		online.subscribe("t/#", 1)
		_ = away.conn.Close()
		synctest.Wait()
		publisher := dial("publisher", nil)
		for i, properties := range []string{"\x00", "\x05\x02\x00\x00\x00\x00", "\x05\x02\x00\x00\x00\x3c"} {
			publisher.write(wire(0x33, text(fmt.Sprint("t/", i))+"\x00\x01"+properties+"x")) // retained
			publisher.wantCode(packets.Puback, 0)
			p := online.want(packets.Publish)
			if want := len(text("t/0")) + 2 + len(properties) + 1; p.FixedHeader.Remaining != want || p.Properties.MessageExpiryInterval != [3]uint32{0, 0, 60}[i] {
				t.Errorf("message %d comes with %d bytes and an expiry of %d, want %d bytes: the properties as they were", i, p.FixedHeader.Remaining, p.Properties.MessageExpiryInterval, want)
			}
			online.ack(packets.Puback, p.PacketID)
		}
		<-time.After(time.Second)
		away = dial("away", lasting(3600))
		late := dial("late", nil)
		late.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "t/#"}}})
		late.want(packets.Suback)
		for who, r := range map[string]*raw{"a session": away, "a new subscription": late} {
			for _, want := range []string{"t/0", "t/2"} {
				if p := r.want(packets.Publish); p.TopicName != want {
					t.Errorf("%s gets %s, want %s", who, p.TopicName, want)
				}
			}
			r.ping() // and nothing before its answer
		}
		for _, r := range []*raw{away, online, publisher, late} {
			_ = r.conn.Close()
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// So it is in a last will, also in one that waits for its delay in a session. One of the most that there can be is not
// taken for it.
func TestWillWithExpiryOfZero(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b, open := inBubble(t, dir)
		online := open("online")
		online.mustConnect("online", nil)
		online.subscribe("w/#", 1)
		wills := []string{
			"\x00", "\x05\x02\x00\x00\x00\x00", "\x05\x02\x00\x00\x00\x3c", "\x05\x02\xff\xff\xff\xff",
			"\x0a\x18\x00\x00\x00\x02\x02\x00\x00\x00\x00", // after 2 s
		}
		for i, properties := range wills {
			id := fmt.Sprint("dies-", i)
			r := open(id)
			r.write(wire(0x10, text("MQTT")+"\x05\x2e\x00\x3c\x05\x11\x00\x00\x0e\x10"+text(id)+properties+text(fmt.Sprint("w/", i))+text("x"))) // retained
			r.wantCode(packets.Connack, 0)
			_ = r.conn.Close()
			p := online.want(packets.Publish)
			if want := [5]uint32{0, 0, 60, 1<<32 - 2, 0}[i]; p.TopicName != fmt.Sprint("w/", i) || p.Properties.MessageExpiryInterval != want {
				t.Errorf("last will %d: %s with an expiry of %d, want %d", i, p.TopicName, p.Properties.MessageExpiryInterval, want)
			}
			online.ack(packets.Puback, p.PacketID)
		}
		<-time.After(time.Second)
		late := open("late")
		late.mustConnect("late", nil)
		late.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "w/#"}}})
		late.want(packets.Suback)
		got := map[string]bool{}
		for range 3 {
			got[late.want(packets.Publish).TopicName] = true
		}
		late.ping() // and nothing before its answer
		if !got["w/0"] || !got["w/2"] || !got["w/3"] {
			t.Errorf("retained are %v, want w/0, w/2 and w/3", got)
		}
		for _, r := range []*raw{online, late} {
			_ = r.conn.Close()
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
