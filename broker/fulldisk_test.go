package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
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
	u := dialStored(t, b, "u", false, lasting(3600))
	const filters = 1000 // likewise
	for i := range filters {
		u.subscribe(fmt.Sprint("other/", i), 1)
	}
	const messages = 500 // so that the records of all their PUBREC find no room in what is left of a block
	var ids []uint16
	for range messages {
		put(t, b, broker.Message{Topic: "t", Payload: []byte("x"), QoS: 2})
		ids = append(ids, r.want(packets.Publish).PacketID)
	}
	if err := os.Remove(filepath.Join(dir, "reserve")); err != nil { // it would have room for them
		t.Fatal(err)
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
	for i := 0; ; i++ {
		if i == filters {
			t.Fatal("each UNSUBSCRIBE was stored on a full disk")
		}
		u.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 9, Filters: packets.Subscriptions{{Filter: fmt.Sprint("other/", i)}}})
		p := u.want(packets.Unsuback)
		if code := p.ReasonCodes[0]; code == packets.ErrUnspecifiedError.Code {
			plain(p)
			break
		} else if code != packets.CodeSuccess.Code {
			t.Fatalf("UNSUBACK with 0x%02x, want 0x80", code)
		}
	}
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

// A session that ends on a full disk is there again after a crash. A client that begins anew reads that in CONNACK, and the log names the
// clients that leave.
func TestSessionEndsOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 1<<20)
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Sessions.Dir = disk.Path("sessions")
	})
	leave(t, reg, dialStored(t, b, "anew", false, lasting(3600)))
	leaves := dialStored(t, b, "leaves", false, lasting(3600))
	disk.Fill()
	for i := 0; hasRoom(leaves, fmt.Sprint(i)); i++ { // until the last block is full, too
	}
	again := func(p *packets.Packet) {
		lasting(3600)(p)
		p.Connect.Clean = true
	}
	ack := dialRaw(t, b.Addr("main")).mustConnect("anew", again)
	if s := ack.Properties.ReasonString; ack.SessionPresent || !strings.Contains(s, "after a crash") {
		t.Errorf("session present %v, reason %q, want a new one, and what a crash does", ack.SessionPresent, s)
	}
	ack = dialRaw(t, b.Addr("main")).mustConnect("terse", func(p *packets.Packet) {
		again(p)
		p.Properties.RequestProblemInfoFlag, p.Properties.RequestProblemInfo = true, 0
	})
	if s := ack.Properties.ReasonString; s != "" {
		t.Errorf("a client that wants no reasons gets %q", s)
	}
	leaves.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, Properties: packets.Properties{SessionExpiryIntervalFlag: true}})
	until(t, "the log says that the end is not stored", func() bool { return log.has("the end of a session is not stored", "client=leaves") })
}

// hasRoom reports whether there is room to store a subscription of r.
func hasRoom(r *raw, filter string) bool {
	r.t.Helper()
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: filter, Qos: 1}},
	})
	return r.want(packets.Suback).ReasonCodes[0] < packets.ErrUnspecifiedError.Code
}
