package inflight

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWindow(t *testing.T) {
	t.Parallel()
	q1 := func(n byte) []byte { return []byte{0x32, 2, 0, n} }
	q0, ping, bye := []byte{0x30, 1, 'x'}, []byte{0xd0, 0}, []byte{0xe0, 0}
	join := func(ps ...[]byte) (out []byte) {
		for _, p := range ps {
			out = append(out, p...)
		}
		return out
	}
	w := Window{limit: 2}
	w.Add(join(q1(1), q1(2), q1(3), q0, ping, q1(4)))
	if diff := cmp.Diff(join(q1(1), q1(2), q0, ping), w.Acquire()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	w.Release()
	w.Add(q1(5))
	if diff := cmp.Diff(q1(3), w.Acquire()); diff != "" {
		t.Errorf("after one acknowledgement (-want +got):\n%s", diff)
	}
	for range 5 {
		w.Release()
	}
	if diff := cmp.Diff(join(q1(4), q1(5)), w.Acquire()); diff != "" {
		t.Errorf("after all (-want +got):\n%s", diff)
	}
	if w.unacked != 0 || w.size != 0 {
		t.Errorf("unacked %d, size %d, want none", w.unacked, w.size)
	}
	w.Add(join(q1(6), q1(7), q1(8)))
	if n := w.DropHeld(); n != 4 || w.size != 8 {
		t.Errorf("dropped %d, %d left, want 4 and 8", n, w.size)
	}
	if n := w.Drop(); n != 8 || w.size != 0 || w.Acquire() != nil {
		t.Errorf("dropped %d, want 8 and nothing left", n)
	}
	v3 := Window{v3: true}
	v3.Add(join(q1(1), bye, ping))
	if diff := cmp.Diff(join(q1(1), ping), v3.Acquire()); diff != "" {
		t.Errorf("MQTT 3 (-want +got):\n%s", diff)
	}
	big := append([]byte{0x30, 0x80, 0x80, 0x01}, make([]byte, 1<<14)...)
	if n := packetLen(append(big, 0xd0, 0)); n != len(big) {
		t.Errorf("length %d, want %d", n, len(big))
	}
}

// Packet ids are never 0 and never used twice at once. [MQTT-2.2.1-3] [MQTT-2.2.1-4]
func TestIDs(t *testing.T) {
	t.Parallel()
	var f IDs
	first := f.Acquire(1)
	for i := range 70_000 {
		id := f.Acquire(byte(1 + i%2))
		if id == 0 || id == first {
			t.Fatalf("message %d got the id %d", i, id)
		}
		by := Puback
		if i%2 == 1 {
			if f.End(id, Puback) {
				t.Fatal("PUBACK ended a message of QoS 2")
			}
			for range 2 { // it may come again
				if !f.Recorded(id) {
					t.Fatal("PUBREC for an unknown id")
				}
			}
			by = Pubcomp
		}
		if first, again := f.End(id, by), f.End(id, by); !first || again {
			t.Fatalf("message %d did not end once", i)
		}
	}
	if f.Recorded(first) || f.End(9, Puback) || len(f.open) != 1 {
		t.Error(fmt.Sprint("left: ", f.open))
	}
}
