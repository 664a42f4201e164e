package broker_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// ackLate reads n messages of QoS 1 and acknowledges each when the next ten have
// come, or at the end. It returns their payloads' count by topic.
func ackLate(t *testing.T, r *raw, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	var unacked []uint16
	for range n {
		p := r.want(packets.Publish)
		got[p.TopicName]++
		unacked = append(unacked, p.PacketID)
		if len(unacked) == 10 || len(got) == n {
			for _, id := range unacked {
				r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: id})
			}
			unacked = nil
		}
	}
	return got
}

// Publishers are slowed to the speed of a subscriber that acknowledges in time: it
// loses nothing and stays connected, however small the limits are.
func TestPublishersAreSlowed(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{Unacknowledged: 64, WriteBuffer: 16 << 10}))
	r := guest(t, b, "sub")
	r.subscribe("t/#", 1)
	const publishers, each = 8, 1000
	done := make(chan error, publishers)
	for p := range publishers {
		go func() {
			for range each {
				if err := b.Publish(t.Context(), broker.Message{Topic: fmt.Sprint("t/", p), Payload: make([]byte, 200), QoS: 1}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for topic, n := range ackLate(t, r, publishers*each) {
		if n != each {
			t.Errorf("%d of %d on %s", n, each, topic)
		}
	}
	for range publishers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if d := metric(t, reg, "dropped_total"); d != 0 {
		t.Errorf("%v dropped, want none", d)
	}
}

// [MQTT-3.8.4-4]: the replay of retained messages goes at the speed of the client.
func TestReplayHasFlowControl(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{Unacknowledged: 64, WriteBuffer: 16 << 10}))
	const n = 20_000
	for i := range n {
		put(t, b, broker.Message{Topic: fmt.Sprint("r/", i), Payload: make([]byte, 200), Retain: true, QoS: 1})
	}
	r := guest(t, b, "sub")
	r.subscribe("r/#", 1)
	if got := ackLate(t, r, n); len(got) != n {
		t.Errorf("%d of %d topics came", len(got), n)
	}
	if d := metric(t, reg, "dropped_total"); d != 0 {
		t.Errorf("%v dropped, want none", d)
	}
	// A client that leaves in the middle of it ends the replay.
	r = guest(t, b, "left")
	r.subscribe("r/#", 1)
	r.want(packets.Publish)
	_ = r.conn.Close()
	deadline := time.After(patience)
	for metric(t, reg, "inflight_messages") > 0 || metric(t, reg, "clients_connected") > 1 {
		select {
		case <-deadline:
			t.Fatal("the messages under way to a client that has disconnected are still counted")
		case <-time.After(time.Millisecond):
		}
	}
}

// A message that changes while it is replayed ends as its newest self at the
// subscriber, deletions included.
func TestReplayAndChange(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	const topics, rounds = 50, 40
	for round := range rounds {
		for i := range topics {
			put(t, b, broker.Message{Topic: fmt.Sprint("r/", i), Payload: []byte("old"), Retain: true, QoS: 1})
		}
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			for i := range topics {
				m := broker.Message{Topic: fmt.Sprint("r/", i), Payload: []byte("new"), Retain: true, QoS: 1}
				if i%2 == 0 {
					m.Payload = nil
				}
				_ = b.Publish(t.Context(), m)
			}
		}()
		r := guest(t, b, fmt.Sprint("c", round))
		last := map[string]string{}
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "r/#"}},
		})
		for { // messages may come before the SUBACK. [MQTT-3.8.4]
			p, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			if p.FixedHeader.Type == packets.Suback {
				break
			}
			last[p.TopicName] = string(p.Payload)
		}
		<-changed
		put(t, b, broker.Message{Topic: "r/end", Payload: []byte("x")})
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		// An old self may come, but not as the last: then nothing follows, and next fails.
		for ended, ponged := false, false; !ended || !ponged || has(last, "old"); {
			p, err := r.next()
			if err != nil {
				t.Fatalf("round %d: %v, and an old self was the last of its topic: %v", round, err, has(last, "old"))
			}
			ponged = ponged || p.FixedHeader.Type == packets.Pingresp
			ended = ended || p.TopicName == "r/end"
			last[p.TopicName] = string(p.Payload)
		}
		_ = r.conn.Close()
	}
}

func has(m map[string]string, value string) bool {
	for _, v := range m {
		if v == value {
			return true
		}
	}
	return false
}

// A list of messages waits for a subscriber that takes them slowly for half a second in all: its
// publisher holds a transaction meanwhile.
func TestListsDoNotWaitLong(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, limited(limits.Limits{Unacknowledged: 64, WriteBuffer: 32 << 10}))
	slow, quick := guest(t, b, "slow"), guest(t, b, "quick")
	slow.subscribe("t", 1)
	quick.subscribe("t", 0)
	list := make([]broker.Message, 2000)
	for i := range list {
		list[i] = broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1}
	}
	list[1000].Topic = "no/#"
	ended := make(chan struct{})
	go func() { // one message in 20 ms, as long as it is let
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			p, err := slow.within(5 * time.Second)
			if err != nil || p.FixedHeader.Type != packets.Publish {
				return
			}
			<-tick.C
			if _, err := slow.conn.Write([]byte{packets.Puback << 4, 2, byte(p.PacketID >> 8), byte(p.PacketID)}); err != nil {
				return
			}
		}
	}()
	var refused []int
	done := make(chan error, 1)
	began := time.Now()
	var took time.Duration
	go func() {
		err := b.PublishAll(t.Context(), list, func(i int, _ error) { refused = append(refused, i) })
		took = time.Since(began)
		done <- err
	}()
	for i := range list {
		if i == 1000 {
			continue
		}
		if p := quick.want(packets.Publish); string(p.Payload) != fmt.Sprint(i) {
			t.Fatalf("message %s, want %d", p.Payload, i)
		}
	}
	if err := <-done; err != nil || took > 2*time.Second || len(refused) != 1 || refused[0] != 1000 {
		t.Errorf("took %s, refused %v: %v", took, refused, err)
	}
	<-ended
}

// ackEach acknowledges each message when tick says so, until the connection ends, and returns how many.
func ackEach(r *raw, tick <-chan time.Time) (n int) {
	for ; ; n++ {
		p, err := r.within(time.Minute)
		if err != nil || p.FixedHeader.Type != packets.Publish {
			return n
		}
		if tick != nil {
			<-tick
		}
		if _, err := r.conn.Write([]byte{packets.Puback << 4, 2, byte(p.PacketID >> 8), byte(p.PacketID)}); err != nil {
			return n
		}
	}
}

// A subscriber that takes one message at a time, and acknowledges it late, does not hold up a
// publisher that serves others too: that goes on many messages for each that the slow one has.
// How much of its time it may wait is TestPace.
func TestSickSubscriberSlowsNobody(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{WriteBuffer: 256 << 10}))
	const messages = 5000
	healthy, sick := guest(t, b, "healthy"), dialRaw(t, b.Addr("main"))
	sick.mustConnect("sick", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 })
	healthy.subscribe("t", 1)
	sick.subscribe("t", 1)
	tick := time.NewTicker(700 * time.Millisecond)
	defer tick.Stop()
	ended := make(chan struct{})
	var acknowledged atomic.Int64
	go func() { acknowledged.Store(int64(ackEach(sick, tick.C))); close(ended) }()
	published := make(chan error, 1)
	go func() {
		for i := range messages {
			if err := b.Publish(t.Context(), broker.Message{Topic: "t", Payload: fmt.Append(make([]byte, 200), i), QoS: 1}); err != nil {
				published <- err
				return
			}
		}
		published <- nil
	}()
	for range messages { // the rate of the healthy one
		p := healthy.want(packets.Publish)
		healthy.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: p.PacketID})
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	until(t, "the sick one is disconnected when its queue is full", func() bool { return metric(t, reg, "dropped_total", "unacknowledged") == 1 })
	_ = sick.conn.Close()
	<-ended
	if n := acknowledged.Load(); n > messages/10 {
		t.Errorf("the slow one acknowledged %d of %d messages: the publisher waited for it", n, messages)
	}
}

// Many subscribers that do not read hold one message up together, not one after the other.
func TestSlowReadersAreAwaitedTogether(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{WriteBuffer: 1 << 20}))
	const readers = 30
	for i := range readers {
		guest(t, b, fmt.Sprint("slow", i)).subscribe("t", 0)
	}
	until(t, "the readers are disconnected", func() bool {
		put(t, b, broker.Message{Topic: "t", Payload: make([]byte, 128<<10)})
		return metric(t, reg, "dropped_total", "slow_client") == readers
	})
	// They take nothing: after a second no publisher waits for them any more.
	if waited := metric(t, reg, "publish_wait_seconds_total"); waited > 8 {
		t.Errorf("publishers were held up for %.1f s by %d readers", waited, readers)
	}
}

// When the memory of the broker is short, the address pays that most waits for in all, and not the one connection that
// most waits for: many small ones of one address would outlive the only one of another.
func TestMemoryIsTakenFromTheGuilty(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{TotalWriteBuffer: 4 << 20}))
	one := func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 }
	const crowd = 60
	for i := range crowd {
		r := dialFrom(t, "127.0.0.2", b.Addr("main"))
		r.mustConnect(fmt.Sprint("crowd", i), one)
		r.subscribe("crowd", 1)
	}
	slow := dialRaw(t, b.Addr("main"))
	slow.mustConnect("slow", one)
	slow.subscribe("slow", 1)
	for range 33 {
		put(t, b, broker.Message{Topic: "slow", Payload: make([]byte, 16<<10), QoS: 1})
	}
	for range 10 { // 60 times 9 messages are twice what may wait; each is smaller than the one of slow
		put(t, b, broker.Message{Topic: "crowd", Payload: make([]byte, 16<<10), QoS: 1})
	}
	until(t, "what waits is within the limit", func() bool { return metric(t, reg, "write_buffer_bytes") <= 4<<20 })
	if metric(t, reg, "dropped_total", "memory") == 0 {
		t.Error("nobody was disconnected: the test shows nothing")
	}
	for i := range 33 {
		p := slow.want(packets.Publish)
		slow.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: p.PacketID})
		if len(p.Payload) != 16<<10 {
			t.Errorf("message %d has %d bytes", i, len(p.Payload))
		}
	}
	slow.ping()
}
