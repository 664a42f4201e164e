package broker_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
)

// wantQuota expects SUBACK with 0x97 and the reason, or success where reason is "".
func (r *raw) wantQuota(filter, reason string) {
	r.t.Helper()
	ack := r.subscribeAs(packets.Subscription{Filter: filter})
	if want := packets.ErrQuotaExceeded.Code; reason != "" && (ack.ReasonCodes[0] != want || !strings.Contains(ack.Properties.ReasonString, reason)) || reason == "" && ack.ReasonCodes[0] != 0 {
		r.t.Errorf("subscribe to %d bytes: %x %q, want 0x97 for %q", len(filter), ack.ReasonCodes, ack.Properties.ReasonString, reason)
	}
}

// The bytes of filters and last wills are bounded: of a client, and of all clients at one address, whatever
// names they use; with and without a connection, and over a restart. What ends makes room.
func TestStateBytes(t *testing.T) {
	t.Parallel()
	keep := stored(t, sessions.Limits{})
	edit := func(o *broker.Options) {
		keep(o)
		o.Limits.FilterBytes, o.Limits.StatePerAddress = 10_000, 20_000
	}
	b, reg := start(t, free{}, edit)
	filter := func(n int) string { return strings.Repeat("x", n) }
	a := guest(t, b, "a")
	a.wantQuota(filter(6000), "")
	a.wantQuota(filter(6000), "") // the same again takes nothing
	a.wantQuota(filter(4001), "filters of 10001 bytes")
	a.wantQuota(filter(2000), "")
	c := dialStored(t, b, "c", false, func(p *packets.Packet) {
		lasting(3600)(p)
		withWill("w", filter(3000))(p)
		p.Connect.WillProperties.WillDelayInterval = 3600
	})
	c.wantQuota(filter(4000), "")
	c.wantQuota(filter(5000), "no room for a subscription")
	_ = c.conn.Close()
	until(t, "it is away", func() bool { return metric(t, reg, "clients_connected") == 1 })
	refused := dialRaw(t, b.Addr("main"))
	if ack := refused.connect("d", withWill("w", filter(5000))); ack.ReasonCode != packets.ErrQuotaExceeded.Code || !strings.Contains(ack.Properties.ReasonString, "last will") {
		t.Errorf("a last will too many: 0x%02x %q", ack.ReasonCode, ack.Properties.ReasonString)
	}
	b, reg = restart(t, b, edit)
	a = guest(t, b, "a")
	a.wantQuota(filter(9000), "")
	e := guest(t, b, "e")
	e.wantQuota(filter(4000), "no room") // the session without a connection has 7,000 and more
	_ = a.conn.Close()
	until(t, "a has ended", func() bool { return metric(t, reg, "clients_connected") == 1 })
	e.wantQuota(filter(4000), "")
	c = dialStored(t, b, "c", true, lasting(3600)) // its last will is not to be sent any more
	until(t, "it is back", func() bool { return metric(t, reg, "clients_connected") == 2 })
	c.wantQuota(filter(5900), "")
	e.wantQuota(filter(4001), "")
	e.wantQuota(filter(1900), "no room")
	if err := b.Disconnect("c", true); err != nil {
		t.Fatal(err)
	}
	e.wantQuota(filter(1900), "")
}

// Sessions that hold nothing make room for others, from any client.
func TestIdleSessionsMakeRoom(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{Sessions: 3}))
	for i := range 20 {
		leave(t, reg, dialStored(t, b, fmt.Sprint("made-up-", i), false, lasting(3600)))
	}
	if n := metric(t, reg, "sessions_evicted_total"); n != 17 {
		t.Errorf("%v sessions ended for others, want 17", n)
	}
	for i := range 3 {
		r := dialStored(t, b, fmt.Sprint("real-", i), false, lasting(3600))
		r.subscribe("t", 1)
		leave(t, reg, r)
	}
	refused := dialRaw(t, b.Addr("main"))
	if ack := refused.connect("one-more", lasting(3600)); ack.ReasonCode != packets.ErrQuotaExceeded.Code {
		t.Errorf("a session too many: 0x%02x, want 0x97", ack.ReasonCode)
	}
	dialStored(t, b, "real-0", true, lasting(3600))
}

// A message that cannot be stored for a session is refused before the owner of the broker gets it, and costs
// the messages beside it nothing.
func TestRefusedBeforeAccept(t *testing.T) {
	t.Parallel()
	keep := stored(t, sessions.Limits{})
	var accepted atomic.Int64
	b, reg := start(t, free{}, func(o *broker.Options) {
		keep(o)
		o.Limits.PacketBytes, o.Limits.WriteBuffer = 20<<20, 64<<20
		o.Accept = func(context.Context, access.Identity, broker.Message) error {
			accepted.Add(1)
			return nil
		}
	})
	sub := dialStored(t, b, "sub", false, lasting(3600))
	sub.subscribe("t", 1)
	leave(t, reg, sub)
	pub := guest(t, b, "pub")
	large := strings.Repeat("x", 17<<20)
	pub.publish("t", "before", 1, 1)
	pub.publish("t", large, 1, 2)
	pub.publish("t", "behind", 1, 3)
	for id, code := range []byte{0, packets.ErrQuotaExceeded.Code, 0} {
		if p := pub.wantCode(packets.Puback, code); int(p.PacketID) != id+1 {
			t.Fatalf("PUBACK of %d, want %d", p.PacketID, id+1)
		}
	}
	if n := accepted.Load(); n != 2 {
		t.Errorf("the owner got %d messages, want 2", n)
	}
	pub.publish("u", large, 1, 4) // no session must get it
	pub.wantCode(packets.Puback, 0)
	sub = dialStored(t, b, "sub", true, lasting(3600))
	sub.wantMessage("before", false)
	sub.wantMessage("behind", false)
}
