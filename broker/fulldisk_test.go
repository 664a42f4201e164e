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

// What clients read on a full disk is that it is full, with the code for that, and nothing of the machine of the broker.
func TestReasonsOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 4<<20)
	dir := disk.Path("sessions")
	b, _ := start(t, free{}, func(o *broker.Options) { o.Sessions.Dir = dir })
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("t", 2)
	const messages = 500 // so that the records of all their PUBREC find no room in what is left of a block
	var ids []uint16
	for range messages {
		put(t, b, broker.Message{Topic: "t", Payload: []byte("x"), QoS: 2})
		ids = append(ids, r.want(packets.Publish).PacketID)
	}
	disk.Fill()
	plain := func(p packets.Packet) {
		if s := p.Properties.ReasonString; !strings.Contains(s, "its disk is full") || strings.Contains(s, dir) {
			t.Errorf("the reason is %q", s)
		}
	}
	w := guest(t, b, "publisher")
	w.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, TopicName: "t", PacketID: 1, Payload: []byte(strings.Repeat("x", 60_000))})
	plain(w.wantCode(packets.Puback, packets.ErrQuotaExceeded.Code))
	for _, id := range ids {
		r.ack(packets.Pubrec, id)
	}
	for {
		p, err := r.next()
		if err != nil {
			t.Fatalf("no DISCONNECT: %v", err)
		}
		if p.FixedHeader.Type == packets.Pubrel {
			continue // there was room for it
		}
		if p.FixedHeader.Type != packets.Disconnect || p.ReasonCode != packets.ErrQuotaExceeded.Code {
			t.Fatalf("%s with 0x%02x, want DISCONNECT with 0x97", packets.PacketNames[p.FixedHeader.Type], p.ReasonCode)
		}
		plain(p)
		return
	}
}
