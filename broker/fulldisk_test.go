package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/internal/smalldisk"
)

// While the disk is full, what clients do again and again fills the log no more than refusals do: it may be on the same disk.
func TestLogOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 1<<20)
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Sessions.Dir = disk.Path("sessions")
	})
	deep := strings.Repeat("t", 60_000)
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("u", 1)
	disk.Fill()
	const rounds = 30
	for i := range uint16(rounds) {
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: deep, Qos: 1}},
		})
		if code := r.want(packets.Suback).ReasonCodes[0]; code != 0x97 {
			t.Fatalf("SUBSCRIBE on a full disk: 0x%02x", code)
		}
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 2, Filters: packets.Subscriptions{{Filter: fmt.Sprint("t/", i)}},
		})
		r.want(packets.Unsuback)
		w := dialRaw(t, b.Addr("main"))
		w.mustConnect("will", func(p *packets.Packet) { withWill("u", "x")(p); p.Connect.WillQos = 1 })
		leave(t, reg, w)
		leave(t, reg, r)
		r = dialStored(t, b, "c", true, lasting(3600))
	}
	for what, some := range map[string]bool{
		"subscriptions are not stored": true, "unsubscribe not stored": true, "a session is resumed while the disk fails": true, "last will not stored": false,
	} {
		if n := log.count(what); n > 10 || some && n == 0 {
			t.Errorf("%q stands in the log %d times after %d rounds, want 10", what, n, rounds)
		}
	}
	if n := log.longest(); n > 2000 {
		t.Errorf("a line of the log has %d bytes", n)
	}
}
