package broker_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// Each test here attacks the memory of the broker, and shows the bound. Those that
// measure the heap of the test program do not run beside others.

// write sends bytes as they are. A broker that has had enough closes, which is no fault.
func (r *raw) write(parts ...string) {
	for _, p := range parts {
		if _, err := r.conn.Write([]byte(p)); err != nil {
			return
		}
	}
}

// wire is a packet: its first byte, and its body behind the length.
func wire(first byte, body string) string {
	return string(binary.AppendUvarint([]byte{first}, uint64(len(body)))) + body
}

func text(s string) string { return string(binary.BigEndian.AppendUint16(nil, uint16(len(s)))) + s }

// subscribeWire is a SUBSCRIBE of MQTT 5 with filters.
func subscribeWire(filters ...string) string {
	var b strings.Builder
	b.WriteString("\x00\x01\x00")
	for _, f := range filters {
		b.WriteString(text(f) + "\x00")
	}
	return wire(0x82, b.String())
}

// heap is how much of the heap is in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// grows expects that do adds at most so much to the heap.
func grows(t *testing.T, most int64, do func()) {
	t.Helper()
	before := heap()
	do()
	if grown := heap() - before; grown > most {
		t.Errorf("the heap grows by %d kB, want at most %d", grown>>10, most>>10)
	} else {
		t.Logf("the heap grows by %d kB", grown>>10)
	}
}

// Filters of many levels count for what they take, also those of many clients at one address.
func TestDeepFiltersOfManyClients(t *testing.T) {
	b, _ := start(t, free{}, func(o *broker.Options) { o.Limits.StatePerAddress = 4 << 20 })
	grows(t, 16<<20, func() { // 70 MB for all of them
		refused := 0
		for client := range 20 {
			r := guest(t, b, fmt.Sprint("deep", client))
			var filters []string
			for i := range 50 {
				filters = append(filters, fmt.Sprint(client, "-", i)+strings.Repeat("/", 198))
			}
			r.write(subscribeWire(filters...))
			refused += bytes.Count(r.want(packets.Suback).ReasonCodes, []byte{0x97})
		}
		if refused < 800 || refused > 980 {
			t.Errorf("%d of 1,000 subscriptions refused, want those above 4 MiB", refused)
		}
	})
}

// A client that subscribes to one filter again and again has one replay that waits, takes
// next to no memory, and its replay ends with it.
func TestRepeatedSubscriptions(t *testing.T) {
	b, reg := start(t, free{}, nil)
	const topics = 15_000
	for i := range topics {
		put(t, b, broker.Message{Topic: fmt.Sprint("r/", i), Payload: make([]byte, 500), Retain: true})
	}
	goroutines := runtime.NumGoroutine()
	filters := make([]string, 1000)
	for i := range filters {
		filters[i] = "#"
	}
	grows(t, 32<<20, func() {
		r := guest(t, b, "greedy")
		for range 20 {
			r.write(subscribeWire(filters...)) // and reads nothing
		}
		other := guest(t, b, "other")
		other.subscribe("none", 0) // served meanwhile
		for metric(t, reg, "subscriptions") < 2 {
			other.ping()
		}
		if waiting := metric(t, reg, "write_buffer_bytes"); waiting > 9<<20 {
			t.Errorf("%v bytes wait for a client", waiting)
		}
		_ = r.conn.Close()
		until(t, "the replay ends with its client", func() bool {
			return metric(t, reg, "clients_connected") == 1 && metric(t, reg, "write_buffer_bytes") == 0
		})
		_ = other.conn.Close()
		until(t, "goroutines are back", func() bool { return runtime.NumGoroutine() <= goroutines })
	})
	r := guest(t, b, "late")
	r.write(subscribeWire(make([]string, 1001)...))
	r.wantCode(packets.Disconnect, 0x97)
}

// Filters of many levels: each is bounded, and all of a client together.
func TestDeepFilters(t *testing.T) {
	b, reg := start(t, free{}, limited(limits.Limits{Filters: 1000}))
	r := guest(t, b, "deep")
	grows(t, 8<<20, func() {
		r.write(subscribeWire(strings.Repeat("/", 65_535)))
		if got := r.want(packets.Suback).ReasonCodes; !bytes.Equal(got, []byte{0x8f}) {
			t.Errorf("65,536 levels: %x, want 8f", got)
		}
		var filters []string
		for i := range 60 {
			filters = append(filters, fmt.Sprint(i)+strings.Repeat("/x", 199))
		}
		r.write(subscribeWire(filters...))
		if got := r.want(packets.Suback).ReasonCodes; !bytes.Equal(got[49:51], []byte{0, 0x97}) {
			t.Errorf("filters 50 and 51 of 200 levels: %x, want 0097", got[49:51])
		}
	})
	flat := guest(t, b, "flat")
	for round := range 2 {
		filters := make([]string, 600)
		for i := range filters {
			filters[i] = fmt.Sprint(round, "/", i)
		}
		flat.write(subscribeWire(filters...))
		got := flat.want(packets.Suback).ReasonCodes
		if refused := bytes.Count(got, []byte{0x97}); refused != 200*round {
			t.Errorf("round %d: %d of %d subscriptions refused, want %d", round, refused, len(got), 200*round)
		}
	}
	// What is there already may be made again, and what is given up makes room.
	if got := flat.subscribe("0/1", 1); got != 1 {
		t.Errorf("subscribe again at the limit: 0x%02x", got)
	}
	flat.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 6, Filters: packets.Subscriptions{{Filter: "0/1"}}})
	flat.want(packets.Unsuback)
	if got := flat.subscribe("new", 0); got != 0 {
		t.Errorf("subscribe after unsubscribe at the limit: 0x%02x", got)
	}
	if n := metric(t, reg, "refused_total", "subscribe", "quota"); n != 10+200 {
		t.Errorf("%v refusals counted, want 210", n)
	}
	r.publish(strings.Repeat("/", 200), "x", 1, 1)
	r.wantCode(packets.Disconnect, 0x90)
}

// A header that announces a large body takes 16 kB until the body comes.
func TestAnnouncedBodies(t *testing.T) {
	b, reg := start(t, free{}, nil)
	const clients = 300
	all := make([]*raw, clients)
	for i := range all {
		all[i] = guest(t, b, fmt.Sprint("c", i))
	}
	received := metric(t, reg, "packets_received_total")
	grows(t, clients*20<<10, func() {
		for _, r := range all {
			r.write("\x30\x80\x80\x80\x02", "x") // 4 MiB
		}
		until(t, "all headers are read", func() bool { return metric(t, reg, "packets_received_total") == received+clients })
	})
	for _, r := range all {
		_ = r.conn.Close()
	}
	until(t, "all have disconnected", func() bool { return metric(t, reg, "clients_connected") == 0 })
}

// Bodies that never end are bounded for all connections of an identity, and those that are too much
// are cut off with a reason. No other connection is.
func TestUnfinishedBodies(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{UnreadPerIdentity: 1 << 20}))
	canary := guest(t, b, "canary")
	as := func(p *packets.Packet) { p.Connect.Username = []byte("greedy") }
	var all []*raw
	for i := range 8 {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect(fmt.Sprint("greedy", i), as)
		r.write("\x30\x80\x80\x80\x02", string(make([]byte, 300<<10)))
		all = append(all, r)
	}
	until(t, "some are cut off", func() bool { return metric(t, reg, "disconnects_total", "0x97") > 0 })
	canary.ping()
	large := strings.Repeat("x", 900<<10)
	canary.subscribe("t", 0)
	canary.publish("t", large, 1, 1)
	if p := canary.want(packets.Publish); string(p.Payload) != large {
		t.Errorf("got %d bytes", len(p.Payload))
	}
	canary.wantCode(packets.Puback, 0)
	for _, r := range all {
		_ = r.conn.Close()
	}
	until(t, "nothing is counted any more", func() bool {
		return metric(t, reg, "clients_connected") == 1 && metric(t, reg, "write_buffer_bytes") == 0
	})
}

// Small bodies that never end are counted too, those of CONNECT among them, and the account that has most of them
// under way pays for it.
func TestUnfinishedSmallBodies(t *testing.T) {
	t.Parallel()
	const clients, limit = 40, 512 << 10
	b, reg := start(t, free{}, limited(limits.Limits{TotalWriteBuffer: limit}))
	canary := guest(t, b, "canary")
	canary.write("\x30\x80\x80\x01", "\x00") // 16 KiB
	for name, begin := range map[string]func(i int) *raw{
		"CONNECT": func(int) *raw {
			r := dialFrom(t, "127.0.0.2", b.Addr("main"))
			r.write("\x10\x80\x80\x01", "\x00")
			return r
		},
		"PUBLISH": func(i int) *raw {
			r := dialFrom(t, "127.0.0.3", b.Addr("main"))
			r.mustConnect(fmt.Sprint("c", i), nil)
			r.write("\x30\x80\x80\x01", "x")
			return r
		},
	} {
		before, all := metric(t, reg, "dropped_total", "memory"), []*raw{}
		for i := range clients {
			all = append(all, begin(i))
		}
		until(t, name+": those are cut off that are too many", func() bool {
			cut := metric(t, reg, "dropped_total", "memory") - before
			return cut >= clients+1-limit>>14 && metric(t, reg, "write_buffer_bytes") <= limit
		})
		for _, r := range all {
			_ = r.conn.Close()
		}
		until(t, name+": nothing of them is counted any more", func() bool { return metric(t, reg, "write_buffer_bytes") == 16<<10 })
	}
	canary.write(text("t")[1:] + "\x00" + strings.Repeat("x", 16<<10-4))
	canary.ping()
}

// What is retained is bounded for each address, whatever names its clients use, and for all; properties
// count.
func TestRetainedIsBounded(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{RetainedPerIdentity: 100 << 10, RetainedBytes: 150 << 10}))
	retain := func(r *raw, topic string, props int, payload string) byte {
		p := packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1, Retain: true}, PacketID: 1, TopicName: topic, Payload: []byte(payload),
		}
		for range props {
			p.Properties.User = append(p.Properties.User, packets.UserProperty{Key: strings.Repeat("k", 100)})
		}
		r.send(p)
		return r.want(packets.Puback).ReasonCode
	}
	one, two, other := guest(t, b, "one"), dialFrom(t, "127.0.0.2", b.Addr("main")), guest(t, b, "other")
	two.mustConnect("two", nil)
	for i, c := range []struct {
		r    *raw
		size int
		n    int // properties of 105 bytes
		want byte
	}{
		{one, 60 << 10, 0, 0},
		{one, 30 << 10, 0, 0},
		{one, 20 << 10, 0, 0x97},
		{one, 1, 200, 0x97},
		{other, 20 << 10, 0, 0x97},
		{two, 50 << 10, 0, 0},
		{two, 20 << 10, 0, 0x97}, // of all
	} {
		if got := retain(c.r, fmt.Sprint("t/", i), c.n, strings.Repeat("x", c.size)); got != c.want {
			t.Errorf("step %d: PUBACK 0x%02x, want 0x%02x", i, got, c.want)
		}
	}
	if got := retain(one, "t/0", 0, "small"); got != 0 { // in its place
		t.Errorf("a smaller message in the place of a larger: PUBACK 0x%02x", got)
	}
	if got := retain(two, "t/9", 100, strings.Repeat("x", 20<<10)); got != 0 {
		t.Errorf("after room was made: PUBACK 0x%02x", got)
	}
	want := 30<<10 + 50<<10 + 20<<10 + 100*105 + len("small") + 4*3 + 4*256
	if n := metric(t, reg, "retained_bytes"); int(n) < want {
		t.Errorf("%v bytes retained, want %d and $SYS", n, want)
	}
	if n := metric(t, reg, "refused_total", "publish", "retained_bytes"); n != 4 {
		t.Errorf("%v refusals counted, want 4", n)
	}
	one.write(wire(0x30, text("t")+"\x8d\x27"+strings.Repeat("\x26\x00\x00\x00\x00", 1001))) // 5,005 bytes of empty ones
	one.wantCode(packets.Disconnect, 0x97)
}

// A topic alias keeps its topic, not the packet that it came in.
func TestAliasesKeepNoPackets(t *testing.T) {
	b, _ := start(t, free{}, nil)
	r := guest(t, b, "c")
	grows(t, 8<<20, func() {
		for alias := range uint16(32) {
			r.send(packets.Packet{
				FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, PacketID: 1, TopicName: fmt.Sprint("t/", alias), Payload: make([]byte, 4<<20),
				Properties: packets.Properties{TopicAlias: alias + 1, TopicAliasFlag: true},
			})
			r.wantCode(packets.Puback, 0)
		}
	})
}

// Topics that aliases stand for count for the address of the client, as its filters do, until its connection ends.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, func(o *broker.Options) { o.Limits.StatePerAddress = 4 << 20 })
	alias := func(r *raw, n uint16, length int) {
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, PacketID: 1, TopicName: strings.Repeat("t", length),
			Properties: packets.Properties{TopicAlias: n, TopicAliasFlag: true},
		})
	}
	for round := range 2 { // what was disconnected does not count
		var all []*raw
		for i := range 2 {
			r := guest(t, b, fmt.Sprint("c", i))
			for n := range uint16(32) {
				for _, length := range []int{60_000, 10, 60_000} { // another topic for an alias takes the place of the first
					alias(r, n+1, length)
					r.wantCode(packets.Puback, 0)
				}
			}
			all = append(all, r)
		}
		greedy, other := guest(t, b, "greedy"), dialFrom(t, "127.0.0.2", b.Addr("main"))
		for n := range uint16(6) {
			alias(greedy, n+1, 60_000)
			if n < 5 {
				greedy.wantCode(packets.Puback, 0)
			}
		}
		if p := greedy.wantCode(packets.Disconnect, 0x97); !strings.Contains(p.Properties.ReasonString, "topic alias") {
			t.Errorf("round %d: reason %q", round, p.Properties.ReasonString)
		}
		other.mustConnect("other", nil)
		alias(other, 1, 60_000)
		other.wantCode(packets.Puback, 0)
		for _, r := range append(all, other) {
			_ = r.conn.Close()
		}
		until(t, "all are disconnected", func() bool { return metric(t, reg, "clients_connected") == 0 })
	}
}

// A client id has a bound, as it stays in memory and on disk with its session; the log shows the begin of a longer one.
func TestLongClientIDs(t *testing.T) {
	t.Parallel()
	var log lines
	b, _ := start(t, free{}, log.logged)
	long := strings.Repeat("c", 30_000)
	for _, version := range []byte{4, 5} {
		for length, want := range map[int]byte{1024: 0, 1025: 0x85, len(long): 0x85} {
			r := dialRaw(t, b.Addr("main"))
			if r.version = version; version == 4 && want > 0 {
				want = 2
			}
			ack := r.connect(long[:length], func(p *packets.Packet) { p.Connect.Username = []byte(long[:length/2]) })
			if ack.ReasonCode != want {
				t.Errorf("MQTT %d, client id of %d bytes: CONNACK 0x%02x, want 0x%02x", version, length, ack.ReasonCode, want)
			}
			_ = r.conn.Close()
		}
	}
	if !log.has("connect refused", "client id of 30000 bytes", "limits.clientIDBytes") {
		t.Error("the log does not say why a client was refused")
	}
	if n := log.longest(); n > 2000 {
		t.Errorf("a line of the log has %d bytes", n)
	}
}

// What waits for a client of MQTT 3.1.1, which gets no properties, keeps none in memory: they do not count for it.
func TestWaitingMessagesKeepNoProperties(t *testing.T) {
	b, reg := start(t, free{}, limited(limits.Limits{Unacknowledged: 1, WriteBuffer: 64 << 10}))
	old := dialRaw(t, b.Addr("main"))
	old.version = 4
	old.mustConnect("old", nil)
	old.subscribe("t", 1)
	pub := guest(t, b, "pub")
	const messages = 100
	properties := strings.Repeat("\x26\x00\x00"+text(strings.Repeat("x", 1<<10)), 1000)
	packet := wire(0x32, text("t")+"\x00\x01"+string(binary.AppendUvarint(nil, uint64(len(properties))))+properties+"x")
	grows(t, 8<<20, func() {
		for range messages {
			pub.write(packet)
			pub.wantCode(packets.Puback, 0)
		}
		if n := metric(t, reg, "inflight_messages"); n != 1 {
			t.Fatalf("%v messages are sent, want one: the others are to wait", n)
		}
	})
	for range messages {
		old.ack(packets.Puback, old.want(packets.Publish).PacketID)
	}
}

// When too much waits in memory, the client that most waits for goes, and no other.
func TestTheGuiltyPayFirst(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{TotalWriteBuffer: 4 << 20}))
	stuck, slow := guest(t, b, "stuck"), guest(t, b, "slow")
	stuck.subscribe("t/#", 0)
	slow.subscribe("t/1", 0)
	for i := range 400 { // more than what the kernel takes for them
		put(t, b, broker.Message{Topic: fmt.Sprint("t/", i%40), Payload: make([]byte, 64<<10)})
		if metric(t, reg, "dropped_total", "memory") > 0 {
			break
		}
	}
	if n := metric(t, reg, "dropped_total"); n != 1 {
		t.Errorf("%v drops counted, want 1", n)
	}
	if n := metric(t, reg, "disconnects_total", "0x97") + metric(t, reg, "clients_connected"); n < 2 {
		t.Errorf("%v clients disconnected", n)
	}
	slow.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for { // it gets all that is its own
		p, err := slow.next()
		if err != nil {
			t.Fatal(err)
		}
		if p.FixedHeader.Type == packets.Pingresp {
			break
		}
	}
}

// A message that waits for the client's acknowledgements ages, and is dropped when its
// time is up. [MQTT-3.3.2-5] [MQTT-3.3.2-6]
func TestExpiryWhileHeld(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 })
	r.subscribe("t", 1)
	for i, life := range []time.Duration{time.Hour, time.Second, time.Hour} {
		put(t, b, broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1, Expiry: life})
	}
	first := r.want(packets.Publish)
	<-time.After(1100 * time.Millisecond) // the second one's time passes
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: first.PacketID})
	p := r.want(packets.Publish)
	if left := p.Properties.MessageExpiryInterval; string(p.Payload) != "2" || left > 3599 {
		t.Errorf("got message %s with %d s left, want 2 with less than an hour", p.Payload, left)
	}
	if n := metric(t, reg, "dropped_total", "expired"); n != 1 {
		t.Errorf("%v expired messages counted, want 1", n)
	}
}

// A client that asks for a session that outlives its connection where there are none reads so, and so
// does the log with what to do.
func TestNotKeptIsSaid(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, log.logged)
	for i, c := range []struct {
		version  byte
		edit     func(*packets.Packet)
		notified bool
	}{
		{5, nil, false},
		{5, func(p *packets.Packet) { p.Connect.Clean = false }, false}, // resumes nothing, and leaves nothing
		{5, func(p *packets.Packet) {
			p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 60, true
		}, true},
		{4, nil, false},
		{4, func(p *packets.Packet) { p.Connect.Clean = false }, true},
	} {
		r := dialRaw(t, b.Addr("main"))
		r.version = c.version
		before := metric(t, reg, "sessions_not_stored_total")
		ack := r.mustConnect(fmt.Sprint("c", i), c.edit)
		counted := metric(t, reg, "sessions_not_stored_total") > before
		if logged := log.has("level=WARN", "sessions are off: turn them on", fmt.Sprint("client=c", i)); logged != c.notified || counted != c.notified {
			t.Errorf("connect %d: logged %v, counted %v, want %v", i, logged, counted, c.notified)
		}
		if c.version == 5 && (ack.Properties.ReasonString != "") != c.notified {
			t.Errorf("connect %d: CONNACK says %q", i, ack.Properties.ReasonString)
		}
	}
}

// UNSUBSCRIBE ends the replay of what is retained, whether it runs or waits: nothing more
// comes after its answer but what was on its way. [MQTT-3.10.4-2] Another one goes on.
func TestUnsubscribeEndsReplay(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, limited(limits.Limits{WriteBuffer: 16 << 10, Unacknowledged: 10}))
	const topics = 2000
	for i := range topics {
		put(t, b, broker.Message{Topic: fmt.Sprint("r/", i), Payload: make([]byte, 100), Retain: true, QoS: 1})
	}
	put(t, b, broker.Message{Topic: "last", Payload: []byte("x"), Retain: true})
	r := guest(t, b, "c")
	for i, f := range []string{"r/#", "r/+", "last"} {
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: uint16(i + 1), Filters: packets.Subscriptions{{Filter: f, Qos: 1}}})
	}
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 9, Filters: packets.Subscriptions{{Filter: "r/#"}, {Filter: "r/+"}}})
	for got := 0; ; {
		p, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if p.FixedHeader.Type != packets.Publish {
			continue
		}
		if p.TopicName == "last" {
			break
		}
		if got++; got > topics/2 {
			t.Fatalf("%d of %d retained messages came though nobody wants them any more", got, topics)
		}
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: p.PacketID})
	}
}

// A reason string that the client has no room for is left out. [MQTT-3.4.2-2] [MQTT-3.9.2-1]
func TestReasonStringsFit(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, func(o *broker.Options) { o.Accept = refuse })
	for _, largest := range []uint32{24, 1000} {
		r := dialRaw(t, b.Addr("main"))
		r.write(wire(0x10, "\x00\x04MQTT\x05\x82\x00\x3c\x05\x27"+string(binary.BigEndian.AppendUint32(nil, largest))+text("c")+text("c")))
		r.want(packets.Connack)
		r.publish("t", "refuse invalid", 1, 1)
		p := r.wantCode(packets.Puback, 0x99)
		if said := p.Properties.ReasonString != ""; said != (largest == 1000) {
			t.Errorf("maximum packet size %d: reason %q", largest, p.Properties.ReasonString)
		}
		_ = r.conn.Close()
	}
}
