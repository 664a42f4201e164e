package inflight

import (
	"time"

	"github.com/colonyfleet/colony/broker/fifo"
	"github.com/colonyfleet/colony/broker/packet"
)

const (
	chunk = 16 << 10 // about how many bytes Take returns at once
	large = 8 << 10  // a payload from here on is not copied
	// itemBytes is what a queued packet takes beside its own bytes; those of a short one are among them.
	itemBytes = 16
	// ownBytes is what a packet takes besides that is longer than a short one and no message: nothing of it is shared.
	ownBytes = 112
)

// A Queue holds what is to be written to one client, in order, and the packet ids of
// what was written and is not acknowledged. It keeps the client's Receive Maximum:
// while so many messages of QoS 1 and 2 are unacknowledged, further ones wait, and
// everything else passes them. [MQTT-3.3.4-9]
//
// Packet id and expiry are decided when a message is taken out to be written, so
// that one which waited for long has aged, or is dropped. [MQTT-3.3.2-5]
//
// No message is sent twice: sessions end with their connection, and MQTT 5 forbids
// it before that. [MQTT-4.4.0-1] Not safe for concurrent use.
type Queue struct {
	limit int // messages of QoS 1 and 2 unacknowledged at once
	ids   ids
	ready fifo.Queue[item] // what came, in order
	held  fifo.Queue[item] // messages of QoS 1 and 2 that came out of ready and found the limit reached
	size  int
}

// An item is a message, another packet, or a short one.
type item struct {
	frame *packet.Frame // nil: the packet is short
	n     byte
	short [7]byte
}

func (i *item) size() int {
	switch {
	case i.frame == nil:
		return itemBytes
	case i.frame.QoS() == packet.NoMessage:
		return i.frame.Size() + itemBytes + ownBytes
	}
	return i.frame.Size() + itemBytes
}

// Limit sets how many messages of QoS 1 and 2 may be unacknowledged at once, 1 to
// 32,768: it is set before the first message.
func (q *Queue) Limit(n int) { q.limit = n }

// Size is how many bytes wait, the queue's own among them.
func (q *Queue) Size() int { return q.size }

// Unacknowledged is how many messages were taken out and are not acknowledged.
func (q *Queue) Unacknowledged() int { return len(q.ids.open) }

// Held reports whether a message waits for an acknowledgement of another.
func (q *Queue) Held() bool { return q.held.Len() > 0 }

// Ready reports whether Take returns something. It may return nothing all the same
// if what is ready has expired.
func (q *Queue) Ready() bool {
	return q.ready.Len() > 0 || q.held.Len() > 0 && len(q.ids.open) < q.limit
}

// AddPacket appends a packet other than PUBLISH, which is copied.
func (q *Queue) AddPacket(p []byte) {
	var i item
	if len(p) <= len(i.short) {
		i.n = byte(copy(i.short[:], p))
	} else {
		i.frame = packet.Raw(p)
	}
	q.size += i.size()
	q.ready.Push(i)
}

// AddMessage appends a PUBLISH. If it needs a packet id and as many as may be are in use, it is held at once.
func (q *Queue) AddMessage(f *packet.Frame) {
	i := item{frame: f}
	q.size += i.size()
	if q.ready.Len() == 0 && len(q.ids.open) >= q.limit && numbered(f) {
		q.held.Push(i)
		return
	}
	q.ready.Push(i)
}

// A Taken is what Take returns.
type Taken struct {
	Head    []byte // to be written first: buf, with packets appended
	Payload []byte // to be written after it: the end of the last packet, not copied
	Size    int    // what of Size the packets were
	Expired int    // messages that were dropped because their time was up
}

// Take takes some packets out that may be written now, and appends them to buf. It
// is called again until Ready is false.
func (q *Queue) Take(buf []byte, now time.Time) (t Taken) {
	t.Head = buf
	for len(t.Head) < chunk && t.Payload == nil {
		open := len(q.ids.open) < q.limit
		var i item
		switch {
		case open && q.held.Len() > 0:
			i = q.held.Pop()
		case q.ready.Len() > 0:
			i = q.ready.Pop()
		default:
			q.size -= t.Size
			return t
		}
		switch {
		case i.frame == nil:
			t.Head = append(t.Head, i.short[:i.n]...)
		case i.frame.Expired(now):
			t.Expired++
		case !open && numbered(i.frame):
			q.held.Push(i)
			continue
		default:
			t.message(i.frame, q.id(i.frame), now)
		}
		t.Size += i.size()
	}
	q.size -= t.Size
	return t
}

// id is the packet id for a message that is written now; 0 if it needs none.
func (q *Queue) id(f *packet.Frame) uint16 {
	if !numbered(f) {
		return 0
	}
	return q.ids.take(f.QoS())
}

// numbered reports whether a packet is a message of QoS 1 or 2.
func numbered(f *packet.Frame) bool { return f.QoS() == 1 || f.QoS() == 2 }

func (t *Taken) message(f *packet.Frame, id uint16, now time.Time) {
	t.Head = f.AppendHead(t.Head, id, now)
	if p := f.Payload(); len(p) >= large {
		t.Payload = p
	} else {
		t.Head = append(t.Head, p...)
	}
}

// Acknowledged ends the message with an id, if it waits for this packet.
func (q *Queue) Acknowledged(id uint16, by Ack) bool { return q.ids.end(id, by) }

// Odd reports whether the message with an id waits for another packet than this one, which is
// an error of the client: a PUBREC for QoS 1, say. An id that is unknown is none.
func (q *Queue) Odd(id uint16, by Ack) bool { return q.ids.odd(id, by) }

// Recorded notes a PUBREC; false if its id is unknown. [MQTT-4.3.3-4]
func (q *Queue) Recorded(id uint16) bool { return q.ids.recorded(id) }

// DropMessages forgets the messages that wait, and returns how many bytes that were.
// Other packets stay.
func (q *Queue) DropMessages() int {
	before := q.size
	q.held = fifo.Queue[item]{}
	all := q.ready
	q.ready, q.size = fifo.Queue[item]{}, 0
	for all.Len() > 0 {
		if i := all.Pop(); i.frame == nil || i.frame.QoS() == packet.NoMessage {
			q.size += i.size()
			q.ready.Push(i)
		}
	}
	return before - q.size
}

// Drop forgets everything that waits, and returns how many bytes that were.
func (q *Queue) Drop() int {
	n := q.size
	q.ready, q.held, q.size = fifo.Queue[item]{}, fifo.Queue[item]{}, 0
	return n
}

// Forget frees all packet ids, and returns how many there were.
func (q *Queue) Forget() int {
	n := len(q.ids.open)
	q.ids.open = nil
	return n
}
