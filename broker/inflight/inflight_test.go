package inflight

import (
	"bytes"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/packet"
)

// q1 is a message of QoS 1 of MQTT 3.1.1 whose payload is n.
func q1(n byte) *packet.Frame {
	return packet.NewFrame(packet.Outgoing{Topic: "t", Payload: []byte{n}, QoS: 1})
}

// wire is q1 as written with a packet id.
func wire(id, n byte) []byte { return []byte{0x32, 6, 0, 1, 't', 0, id, n} }

// takeAll takes until nothing is ready.
func takeAll(q *Queue, now time.Time) (out []byte, expired int) {
	for q.Ready() {
		t := q.Take(nil, now)
		out = append(append(out, t.Head...), t.Payload...)
		expired += t.Expired
	}
	return out, expired
}

func TestQueue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	want := func(what string, q *Queue, parts ...[]byte) {
		t.Helper()
		got, _ := takeAll(q, now)
		if diff := cmp.Diff(bytes.Join(parts, nil), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	q0 := packet.NewFrame(packet.Outgoing{Topic: "t"})
	ping, long := []byte{0xd0, 0}, append([]byte{0x90, 10}, make([]byte, 10)...)
	var q Queue
	q.Limit(2)
	for n := range byte(3) {
		q.AddMessage(q1(n))
	}
	q.AddMessage(q0)
	q.AddPacket(ping)
	q.AddPacket(long)
	q.AddMessage(q1(3))
	want("at first", &q, wire(1, 0), wire(2, 1), []byte{0x30, 3, 0, 1, 't'}, ping, long)
	if !q.Held() || q.Unacknowledged() != 2 {
		t.Errorf("held %v, %d unacknowledged, want true and 2", q.Held(), q.Unacknowledged())
	}
	if q.Acknowledged(1, Pubrec) || !q.Acknowledged(1, Puback) || q.Acknowledged(1, Puback) {
		t.Error("an id is freed by the packet that it waits for, and once")
	}
	q.AddMessage(q1(4))
	want("after one acknowledgement", &q, wire(3, 2))
	q.Acknowledged(2, Puback)
	q.Acknowledged(3, Puback)
	want("after two more", &q, wire(4, 3), wire(5, 4))
	if q.Size() != 0 || q.Held() {
		t.Errorf("size %d, held %v, want nothing", q.Size(), q.Held())
	}
	for n := range byte(3) {
		q.AddMessage(q1(n))
	}
	q.AddPacket(ping)
	q.AddPacket(long)
	if before := q.Size(); q.DropMessages() != before-len(long)-2*itemBytes-ownBytes {
		t.Errorf("%d bytes of %d left after the messages were dropped", q.Size(), before)
	}
	want("without messages", &q, ping, long)
	q.AddMessage(q0)
	if q.Drop(); q.Size() != 0 || q.Ready() {
		t.Errorf("size %d after Drop", q.Size())
	}
	if n := q.Forget(); n != 2 || q.Unacknowledged() != 0 {
		t.Errorf("%d ids forgotten, want 2", n)
	}
}

// A message that finds the limit reached waits for an acknowledgement, and leaves nothing to be taken; what came before it and
// does not wait, it does not pass.
func TestHeldAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var q Queue
	q.Limit(1)
	q.AddMessage(q1(0))
	takeAll(&q, now)
	q.AddMessage(q1(1))
	q.AddMessage(q1(2))
	if q.Ready() || !q.Held() || q.Size() != 2*(q1(1).Size()+itemBytes) {
		t.Errorf("ready %v, held %v, %d bytes, want two messages that wait", q.Ready(), q.Held(), q.Size())
	}
	q.AddPacket([]byte{0xd0, 0})
	q.Acknowledged(1, Puback)
	q.AddMessage(q1(3)) // while one may be sent again, and two wait for that
	q.AddMessage(q1(4))
	got, _ := takeAll(&q, now)
	for id := range uint16(4) {
		q.Acknowledged(id+2, Puback)
		more, _ := takeAll(&q, now)
		got = append(got, more...)
	}
	if want := bytes.Join([][]byte{wire(2, 1), {0xd0, 0}, wire(3, 2), wire(4, 3), wire(5, 4)}, nil); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if q.Size() != 0 {
		t.Errorf("%d bytes are left", q.Size())
	}
}

// A message that waits ages, and is dropped when its time is up: it takes no packet
// id and no place of the Receive Maximum. [MQTT-3.3.2-5] [MQTT-3.3.2-6]
func TestExpiryWhileHeld(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	var q Queue
	q.Limit(1)
	for _, seconds := range []int{100, 2, 10} {
		q.AddMessage(packet.NewFrame(packet.Outgoing{Topic: "t", QoS: 1, V5: true, Expires: begun.Add(time.Duration(seconds) * time.Second)}))
	}
	takeAll(&q, begun)
	q.Acknowledged(1, Puback)
	got, expired := takeAll(&q, begun.Add(4*time.Second))
	if want := []byte{0x32, 11, 0, 1, 't', 0, 2, 5, 2, 0, 0, 0, 6}; !bytes.Equal(got, want) || expired != 1 {
		t.Errorf("after 4 s: %x and %d expired, want %x and 1", got, expired, want)
	}
	if q.Size() != 0 {
		t.Errorf("size %d, want 0", q.Size())
	}
}

// A large payload is not copied, and what is taken at once is bounded.
func TestTakeIsBounded(t *testing.T) {
	t.Parallel()
	payload := make([]byte, 1<<20)
	var q Queue
	q.Limit(10)
	q.AddMessage(packet.NewFrame(packet.Outgoing{Topic: "t", Payload: payload}))
	for range 100 {
		q.AddMessage(packet.NewFrame(packet.Outgoing{Topic: "t", Payload: payload[:1000]}))
	}
	first := q.Take(nil, time.Now())
	if len(first.Head) > 10 || len(first.Payload) != len(payload) || &first.Payload[0] != &payload[0] {
		t.Errorf("head of %d bytes, payload of %d, want the payload itself", len(first.Head), len(first.Payload))
	}
	for q.Ready() {
		if got := q.Take(nil, time.Now()); len(got.Head) > chunk+large+100 || got.Payload != nil {
			t.Fatalf("%d bytes at once, want about %d", len(got.Head), chunk)
		}
	}
}

// Packet ids are never 0 and never used twice at once. [MQTT-2.2.1-3] [MQTT-2.2.1-4]
// What waits counts with the memory that it takes: answers of two bytes, asked for without end, would else take eight
// times their bound.
func TestShortPacketsCount(t *testing.T) {
	t.Parallel()
	var q Queue
	const n = 1000
	for range n {
		q.AddPacket([]byte{0xd0, 0})
	}
	if want := n * int(unsafe.Sizeof(item{})); q.Size() < want {
		t.Errorf("%d packets count for %d bytes: they take %d", n, q.Size(), want)
	}
	for q.Ready() {
		q.Take(nil, time.Time{})
	}
	if q.Size() != 0 {
		t.Errorf("size %d, want 0", q.Size())
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	var f ids
	first := f.take(1)
	for i := range 70_000 {
		id := f.take(byte(1 + i%2))
		if id == 0 || id == first {
			t.Fatalf("message %d got the id %d", i, id)
		}
		by := Puback
		if i%2 == 1 {
			if f.end(id, Puback) {
				t.Fatal("PUBACK ended a message of QoS 2")
			}
			for range 2 { // it may come again
				if !f.recorded(id) {
					t.Fatal("PUBREC for an unknown id")
				}
			}
			by = Pubcomp
		}
		if first, again := f.end(id, by), f.end(id, by); !first || again {
			t.Fatalf("message %d did not end once", i)
		}
	}
	if f.recorded(first) || f.end(9, Puback) || len(f.open) != 1 {
		t.Error(fmt.Sprint("left: ", f.open))
	}
}
