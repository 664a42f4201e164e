package state

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// A model is a queue without cleverness.
type model struct {
	list []*modelled
	next uint64
	open int
}

type modelled struct {
	seq                  uint64
	m                    *Message
	qos                  byte
	dup, released, under bool
}

func (q *model) at(id uint16) *modelled {
	for _, e := range q.list {
		if e.under && PacketID(e.seq) == id {
			return e
		}
	}
	return nil
}

func (q *model) remove(e *modelled) {
	if e.under && !e.counted() {
		q.open++
	}
	if e.under {
		q.open--
	}
	q.list = slices.DeleteFunc(q.list, func(o *modelled) bool { return o == e })
}

// counted reports whether the entry counts against the window: what was released before this connection
// does not.
func (e *modelled) counted() bool { return !e.wasReleased() }

func (e *modelled) wasReleased() bool { return e.m.Expires == released1 }

// released1 marks in a model what was released when its connection began.
const released1 = 1

// step is Next.
func (q *model) step(window int) (seq uint64, release, dup, ok bool) {
	for _, e := range q.list {
		if e.under {
			continue
		}
		if !e.released && q.open >= window {
			return 0, false, false, false
		}
		dup, release = e.dup, e.released
		if e.under, e.dup = true, true; !release {
			q.open++
		} else {
			e.m.Expires = released1
		}
		return e.seq, release, dup, true
	}
	return 0, false, false, false
}

// TestQueueAgainstModel compares random runs with the model: pushes, sends, acknowledgements in and out of order, new
// connections, drops and restarts.
func TestQueueAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var q Queue
		var want model
		for range 400 {
			window := 1 + rng.IntN(6)
			switch op := rng.IntN(12); op {
			case 0, 1, 2:
				want.next += uint64(rng.IntN(2)) * uint64(rng.IntN(3)) // a gap now and then
				m, qos := &Message{Size: 10}, byte(1+rng.IntN(2))
				if !q.Push(want.next, m, Delivery{QoS: qos}) || q.Push(want.next, m, Delivery{QoS: qos}) {
					t.Fatalf("seed %d: push of %d: want it once", seed, want.next)
				}
				want.list = append(want.list, &modelled{seq: want.next, m: m, qos: qos})
				want.next++
			case 3, 4, 5:
				got, ok := q.Next(window)
				seq, release, dup, wantOK := want.step(window)
				if ok != wantOK || ok && (got.Seq != seq || got.Release != release || !release && got.Dup != dup || got.ID != PacketID(seq)) {
					t.Fatalf("seed %d: next %+v, %v, want %d, release %v, dup %v, %v", seed, got, ok, seq, release, dup, wantOK)
				}
			case 6, 7, 8:
				id, by := uint16(rng.IntN(int(want.next+2))), Ack(rng.IntN(3))
				m, _ := q.Acknowledged(id, by)
				e := want.at(id)
				fits := e != nil && ((e.qos == 1) == (by == Puback)) && (by != Pubcomp || e.released)
				if fits != (m != nil) || fits && !e.released && m != e.m {
					t.Fatalf("seed %d: acknowledgement %d of %d: %v, want %v", seed, by, id, m != nil, fits)
				}
				if fits {
					want.remove(e)
				}
			case 9:
				id := uint16(rng.IntN(int(want.next + 2)))
				e := want.at(id)
				is := Unknown
				switch {
				case e == nil || e.qos != 2:
				case e.released:
					is = Stored
				default:
					is = First
				}
				seq, got := q.Recorded(id)
				if got != is {
					t.Fatalf("seed %d: PUBREC of %d: %v, want %v", seed, id, got, is)
				}
				if is == First {
					if _, again := q.Recorded(id); again != Repeated {
						t.Fatalf("seed %d: PUBREC of %d again: %v, want %v", seed, id, again, Repeated)
					}
					if m := q.Release(seq); m != e.m || q.Release(seq) != nil {
						t.Fatalf("seed %d: the release of %d returns another message, or one twice", seed, seq)
					}
					e.released = true
				}
			case 10:
				q.Rewind()
				want.open = 0
				for _, e := range want.list {
					e.under, e.m.Expires = false, 0
				}
			case 11:
				seq, ok := q.Oldest()
				i := slices.IndexFunc(want.list, func(e *modelled) bool { return !e.dup })
				if ok != (i >= 0) || ok && seq != want.list[i].seq {
					t.Fatalf("seed %d: oldest %d, %v, want index %d", seed, seq, ok, i)
				}
				if ok {
					q.Remove(seq)
					want.remove(want.list[i])
				}
			}
			bytes := int64(0)
			for _, e := range want.list {
				if !e.released {
					bytes += 10
				}
			}
			if q.Len() != len(want.list) || q.Bytes() != bytes || q.open != want.open {
				t.Fatalf("seed %d: %d messages, %d bytes, %d open, want %d and %d open", seed, q.Len(), q.Bytes(), q.open, len(want.list), want.open)
			}
		}
		i := 0
		for item := range q.All {
			if item.Seq != want.list[i].seq || !item.Released && item.Message != want.list[i].m || item.Released != want.list[i].released {
				t.Fatalf("seed %d: item %d is %+v", seed, i, item)
			}
			i++
		}
	}
}

// TestPacketIDsDoNotMeet stops before a message would get the packet id of one that is not acknowledged.
// [MQTT-2.2.1-4]
func TestPacketIDsDoNotMeet(t *testing.T) {
	t.Parallel()
	var q Queue
	q.skip(Ids - 10) // the ids wrap around on the way
	for range 2 * Ids {
		q.Push(q.NextSeq(), &Message{}, Delivery{QoS: 1})
	}
	first, _ := q.Next(2)
	for n := 1; ; n++ {
		s, ok := q.Next(2)
		if !ok {
			if n != Ids {
				t.Errorf("%d messages with one unacknowledged, want %d", n, Ids)
			}
			break
		}
		if s.ID == first.ID || s.ID == 0 {
			t.Fatalf("message %d has the id %d again", n, s.ID)
		}
		if m, _ := q.Acknowledged(s.ID, Puback); m == nil {
			t.Fatalf("id %d is unknown", s.ID)
		}
	}
	q.Acknowledged(first.ID, Puback)
	if s, ok := q.Next(2); !ok || s.ID != first.ID {
		t.Errorf("next %+v, %v: want the id that is free now", s, ok)
	}
}

// TestIdentifiersTakeWhatCounts: subscription identifiers take the memory of their part of the record, which counts for the
// session, and not that of as many numbers.
func TestIdentifiersTakeWhatCounts(t *testing.T) { // not parallel to others: it reads the heap of all
	const messages, identifiers = 1000, 4000
	ids := make([]int, identifiers)
	for i := range ids {
		ids[i] = 1 + i
	}
	size := len((&Delivery{QoS: 1, Identifiers: ids}).append(nil))
	var q Queue
	before := heap()
	for i := range uint64(messages) {
		q.Push(i, NewMessage(Ref{Size: uint32(size)}, 0), Delivery{QoS: 1, Identifiers: slices.Clone(ids)})
	}
	if grown := heap() - before; grown > q.Bytes()+q.Bytes()/4 {
		t.Errorf("%d kB of the heap, %d kB are counted", grown>>10, q.Bytes()>>10)
	}
	for range messages {
		if s, ok := q.Next(MaxWindow); !ok || !slices.Equal(s.Identifiers, ids) {
			t.Fatalf("next %+v, %v: want all identifiers", s, ok)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHolesTakeNoMemory drops many messages behind one that is not acknowledged.
func TestHolesTakeNoMemory(t *testing.T) {
	t.Parallel()
	var q Queue
	q.Push(0, &Message{}, Delivery{QoS: 1})
	q.Next(10)
	q.Rewind()
	for i := range uint64(100_000) {
		q.Push(i+1, &Message{}, Delivery{QoS: 1})
		if seq, ok := q.Oldest(); !ok || seq != i+1 {
			t.Fatalf("oldest %d, %v", seq, ok)
		}
		q.Remove(i + 1)
	}
	if n := q.items.Cap() + cap(q.sent); n > 1000 {
		t.Errorf("room for %d entries for one message", n)
	}
	if s, ok := q.Next(10); !ok || s.Seq != 0 || !s.Dup {
		t.Errorf("next %+v, %v", s, ok)
	}
}

// TestManyAfterACrash reads a log by which a client was connected, and more waits than it may hold at a time: whatever it acknowledged of
// that may be lost, so that all of it comes with DUP. What is pushed later was not sent.
func TestManyAfterACrash(t *testing.T) {
	t.Parallel()
	const many = MaxWindow + 5000
	st := New()
	st.Apply(Begin{Session: 1, Client: "a", Expiry: 60}, Ref{})
	st.Apply(Connected{Session: 1, Expiry: 60}, Ref{})
	s := st.Sessions[1]
	for seq := range uint64(many) {
		s.Queue.Push(seq, NewMessage(Ref{Segment: 1, At: uint32(seq), Size: 1}, 0), Delivery{QoS: 1})
	}
	st.Finish(1, false)
	var q *Queue
	for _, again := range []bool{false, true} {
		if again { // what the session comes to is stored, and read once more
			st.Sessions[1].Left(2, 60, nil)
			st.Finish(3, false)
		}
		q = &st.Sessions[1].Queue
		q.Rewind()
		for n := range many {
			next, ok := q.Next(MaxWindow)
			if !ok || !next.Dup || next.Seq != uint64(n) {
				t.Fatalf("message %d: %+v, %t; want it with DUP", n, next, ok)
			}
			if again {
				q.Acknowledged(next.ID, Puback)
			} else if n == MaxWindow-1 {
				break // the window is full
			}
		}
	}
	q.Push(many, NewMessage(Ref{Segment: 1, At: many, Size: 1}, 0), Delivery{QoS: 1})
	if next, ok := q.Next(MaxWindow); !ok || next.Dup {
		t.Errorf("a message that was not there before: %+v, %t", next, ok)
	}
}
