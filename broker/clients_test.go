package broker_test

import (
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/protocol"
)

// The list of clients shows connections and sessions, and a client can be disconnected, its session with it.
func TestClients(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	away := dialStored(t, b, "away", false, lasting(3600))
	away.subscribe("t/#", 1)
	leave(t, reg, away)
	here := dialStored(t, b, "here", false, lasting(60))
	here.subscribe("t/1", 1)
	plain := dialRaw(t, b.Addr("main"))
	plain.version = 4
	plain.mustConnect("plain", nil)
	plain.subscribe("u", 0)
	for i := range 3 {
		plain.publish("t/1", fmt.Sprint(i), 1, uint16(i+1))
		plain.want(packets.Puback)
		here.ack(packets.Puback, here.wantMessage(fmt.Sprint(i), false).PacketID)
	}
	here.ping()
	list := b.Clients()
	var names []string
	for _, c := range list {
		names = append(names, c.Client)
	}
	if got, want := fmt.Sprint(names), "[away here plain]"; got != want {
		t.Fatalf("clients %s, want %s", got, want)
	}
	if c := list[0]; !c.Connected.IsZero() || c.Away.IsZero() || !c.Stored || c.Expiry != 3600 || c.Queued != 3 || c.QueuedBytes == 0 || c.Subscriptions != 1 || c.Identity != "away" {
		t.Errorf("away: %+v", c)
	}
	if c := list[1]; c.Connected.IsZero() || !c.Away.IsZero() || !c.Stored || c.Sent != 3 || c.Queued != 0 || c.MQTT != 5 || c.Listener != "main" || c.Remote == "" {
		t.Errorf("here: %+v", c)
	}
	if c := list[2]; c.Stored || c.Received != 3 || c.MQTT != 4 || c.KeepAlive != 60 || c.Subscriptions != 1 {
		t.Errorf("plain: %+v", c)
	}
	if err := b.Disconnect("here", false); err != nil {
		t.Fatal(err)
	}
	here.wantCode(packets.Disconnect, packets.ErrAdministrativeAction.Code)
	here = dialStored(t, b, "here", true, lasting(60))
	for _, client := range []string{"here", "away", "plain"} {
		if err := b.Disconnect(client, true); err != nil {
			t.Errorf("%s: %v", client, err)
		}
	}
	here.wantCode(packets.Disconnect, packets.ErrAdministrativeAction.Code)
	if left := b.Clients(); len(left) > 0 {
		t.Errorf("%+v is left", left)
	}
	if n := metric(t, reg, "subscriptions"); n != 0 {
		t.Errorf("%v subscriptions are left", n)
	}
	if err := b.Disconnect("here", true); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a client that there is not: %v", err)
	}
	put(t, b, broker.Message{Topic: "t/1", QoS: 1})
}
