package state

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/colonyfleet/colony/broker/fifo"
)

// A Ref says where a record is in the log. The zero Ref is none: segments begin at 1.
type Ref struct {
	Segment uint32 // number of the file, from 1
	At      uint32 // offset in the segment's file
	Size    uint32 // length of the record's body, in bytes
}

// A Message is one that at least one session is to get. Sessions share it. Its methods may
// be called concurrently.
type Message struct {
	Size     uint32 // of its record, in bytes
	Expires  int64  // by the clock of the log; 0: never
	position atomic.Uint64
	users    atomic.Int32
	body     atomic.Pointer[Body] // nil: it is in the log alone
	lost     atomic.Bool          // it cannot be read
}

// NewMessage returns a message whose record is at ref.
func NewMessage(ref Ref, expires int64) *Message {
	m := &Message{Size: ref.Size, Expires: expires}
	m.SetRef(ref)
	return m
}

// Ref says where the message is.
func (m *Message) Ref() Ref {
	p := m.position.Load()
	return Ref{Segment: uint32(p >> 32), At: uint32(p), Size: m.Size}
}

// SetRef notes that a copy of the record is to be used from now on.
func (m *Message) SetRef(r Ref) { m.position.Store(uint64(r.Segment)<<32 | uint64(r.At)) }

// Use counts n sessions more that are to get the message, or fewer; true where it was the
// last one.
func (m *Message) Use(n int) bool { return m.users.Add(int32(n)) == 0 }

// Shared reports whether several sessions are to get the message.
func (m *Message) Shared() bool { return m.users.Load() > 1 }

// Used reports whether a session is to get the message.
func (m *Message) Used() bool { return m.users.Load() > 0 }

// Body returns what is in memory of the message; nil if that is nothing.
func (m *Message) Body() *Body { return m.body.Load() }

// SetBody puts the content into memory, or with nil out of it, and returns what was there.
func (m *Message) SetBody(b *Body) *Body { return m.body.Swap(b) }

// Lose notes that the message cannot be read. It returns whether that was known.
func (m *Message) Lose() bool { return m.lost.Swap(true) }

// A Body is the content of a message.
type Body struct {
	Topic      string
	Properties []byte // as in packet.Publication
	Payload    []byte
}

// Length is how many bytes the content has.
func (b *Body) Length() int { return len(b.Topic) + len(b.Properties) + len(b.Payload) }

// Size is about the memory that a Body takes, in bytes.
func (b *Body) Size() int64 { return int64(b.Length()) + 128 }

// Ids is how many packet ids there are. [MQTT-2.2.1-3]
const Ids = 65535

// PacketID is the packet id of the message with a number in its session. It follows from
// the number, so that a restart of the broker cannot give it to another message while the
// client still holds it.
func PacketID(seq uint64) uint16 { return uint16(1 + seq%Ids) }

// Delivery says how a session gets a message.
type Delivery struct {
	QoS         byte // 1 or 2
	Retain      bool
	Identifiers []int // subscription identifiers
}

// An entry is a message in a queue; one without a Message has been removed.
type entry struct {
	m     *Message
	ids   *string // the subscription identifiers as in a record, which counts for the session; nil: none
	flags byte
}

// The flags of an entry.
const (
	qos2      = 1 << iota // else QoS 1
	retain                // the RETAIN flag
	released              // the client has sent PUBREC, and waits for PUBREL
	open                  // counts against the client's Receive Maximum
	recording             // a PUBREC of this connection is being stored
)

// A numbered entry is one that may have been sent.
type numbered struct {
	seq uint64
	entry
}

// MaxWindow is the highest number of messages that are sent to a client before it
// acknowledges one.
const MaxWindow = 32768

// A Queue holds the messages of QoS 1 and 2 of one session that the client has not
// acknowledged, by their numbers. The zero Queue is empty. Not safe for concurrent use.
type Queue struct {
	sent   []numbered // maybe sent, on this connection or before, by number
	resend int        // in sent: the first that was not sent on this connection
	live   int        // of sent: how many are messages

	items fifo.Queue[entry] // the others, by number, without gaps
	base  uint64            // number of the oldest

	maybeSent uint64 // messages with a lower number may have been sent before the log was read

	open  int // messages that count against the client's Receive Maximum
	count int
	bytes int64
}

// Len is how many messages the queue holds.
func (q *Queue) Len() int { return q.count }

// Bytes is the sum of their records' sizes.
func (q *Queue) Bytes() int64 { return q.bytes }

// Unsent is about how many of them are still to be sent on this connection.
func (q *Queue) Unsent() int { return len(q.sent) - q.resend + q.items.Len() }

// NextSeq is the lowest number that Push takes.
func (q *Queue) NextSeq() uint64 { return q.base + uint64(q.items.Len()) }

// widestGap bounds the entries without a message that skip makes.
const widestGap = 1 << 16

// Push appends a message under a number. A number that the queue is past is refused: the
// message has been in it.
func (q *Queue) Push(seq uint64, m *Message, d Delivery) bool {
	if seq < q.NextSeq() {
		return false
	}
	q.skip(seq)
	e := entry{m: m}
	if d.QoS == 2 {
		e.flags |= qos2
	}
	if d.Retain {
		e.flags |= retain
	}
	if len(d.Identifiers) > 0 {
		ids := string(appendIdentifiers(nil, d.Identifiers))
		e.ids = &ids
	}
	q.items.Push(e)
	q.count++
	q.bytes += int64(m.Size)
	return true
}

// skip makes next the lowest number that Push takes, where it is lower now. What stands before a
// wide gap counts as sent from then on: the bounds drop the oldest messages that were not sent,
// so that only sent ones stay so far behind the others.
func (q *Queue) skip(next uint64) {
	if at := q.NextSeq(); next > at && next-at > widestGap {
		q.MarkSent(at)
	}
	if q.items.Len() == 0 {
		q.base = max(q.base, next)
		return
	}
	for q.NextSeq() < next {
		q.items.Push(entry{})
	}
}

// pop removes the oldest of items.
func (q *Queue) pop() (e entry, seq uint64) {
	e, seq = q.items.Pop(), q.base
	q.base++
	return e, seq
}

// A Step is the next packet of a session: PUBLISH, or PUBREL where Release is set.
type Step struct {
	Delivery
	Message *Message
	ID      uint16
	Seq     uint64 // number in the session's queue
	Dup     bool   // it may have been sent before
	Release bool
}

// Next returns the next packet to send, in the order of the numbers, and notes that it was
// sent. There is none while window messages are unacknowledged, and none so far from the
// oldest that its packet id would be that one's. [MQTT-3.3.4-9] [MQTT-4.4.0-1]
func (q *Queue) Next(window int) (s Step, ok bool) {
	for ; q.resend < len(q.sent); q.resend++ {
		e := &q.sent[q.resend]
		switch {
		case e.m == nil:
			continue
		case e.flags&released == 0 && !q.begin(&e.entry, window):
			return s, false
		}
		q.resend++
		return step(e, true), true
	}
	for q.items.Len() > 0 {
		e := q.items.At(0)
		switch {
		case e.m == nil:
			q.pop()
			continue
		case len(q.sent) > 0 && q.base-q.sent[0].seq >= Ids, !q.begin(e, window):
			return s, false
		}
		e0, seq := q.pop()
		q.sent = append(q.sent, numbered{seq, e0})
		q.live++
		q.resend = len(q.sent)
		return step(&q.sent[len(q.sent)-1], seq < q.maybeSent), true
	}
	return s, false
}

// begin counts an entry against the window; false if there is no room.
func (q *Queue) begin(e *entry, window int) bool {
	if q.open >= window {
		return false
	}
	q.open++
	e.flags |= open
	return true
}

func step(e *numbered, dup bool) Step {
	return Step{Delivery: e.delivery(), Message: e.m, ID: PacketID(e.seq), Seq: e.seq, Dup: dup, Release: e.flags&released != 0}
}

func (e *entry) delivery() Delivery {
	d := Delivery{QoS: 1, Retain: e.flags&retain != 0}
	if e.flags&qos2 != 0 {
		d.QoS = 2
	}
	if e.ids != nil {
		in := decoder{b: []byte(*e.ids)}
		d.Identifiers = in.identifiers()
	}
	return d
}

// Rewind begins anew for a new connection: what was sent and is not acknowledged comes
// first. [MQTT-4.4.0-1]
func (q *Queue) Rewind() {
	q.compact()
	for i := range q.sent {
		q.sent[i].flags &^= open | recording
	}
	q.resend, q.open = 0, 0
}

// compact takes removed entries out of sent.
func (q *Queue) compact() {
	before := 0
	for _, e := range q.sent[:q.resend] {
		if e.m != nil {
			before++
		}
	}
	q.sent = slices.DeleteFunc(q.sent, func(e numbered) bool { return e.m == nil })
	q.resend = before
	if len(q.sent) == 0 && cap(q.sent) > 64 {
		q.sent = nil
	}
}

// find returns the entry of a packet id that was sent on this connection; nil if there is none.
func (q *Queue) find(id uint16) *numbered {
	if id == 0 || len(q.sent) == 0 {
		return nil
	}
	first := q.sent[0].seq
	e := q.at(first + (uint64(id-1)+Ids-first%Ids)%Ids)
	if e == nil || q.resend < len(q.sent) && e.seq >= q.sent[q.resend].seq {
		return nil
	}
	return e
}

// at returns the sent entry of a number; nil if there is none.
func (q *Queue) at(seq uint64) *numbered {
	i, ok := slices.BinarySearchFunc(q.sent, seq, func(e numbered, seq uint64) int { return cmp.Compare(e.seq, seq) })
	if !ok || q.sent[i].m == nil {
		return nil
	}
	return &q.sent[i]
}

// An Ack is a packet by which a client acknowledges.
type Ack byte

// The packets that end a message.
const (
	Puback  Ack = iota // it ends a message of QoS 1
	Refused            // PUBREC with an error
	Pubcomp            // it ends a message of QoS 2
)

// Acknowledged removes the message of a packet id if it waits for this packet, and
// returns it with its number; nil if there is none.
func (q *Queue) Acknowledged(id uint16, by Ack) (*Message, uint64) {
	e := q.find(id)
	if e == nil || (e.flags&qos2 == 0) != (by == Puback) || by == Pubcomp && e.flags&released == 0 {
		return nil, 0
	}
	seq := e.seq
	return q.Remove(seq), seq
}

// Odd reports whether the message of a packet id waits for another packet than this one, which is
// an error of the client: a PUBREC for QoS 1, say. Refused stands for any PUBREC, which may come again.
// An id that is unknown is none.
func (q *Queue) Odd(id uint16, by Ack) bool {
	e := q.find(id)
	return e != nil && ((e.flags&qos2 == 0) != (by == Puback) || by == Pubcomp && e.flags&released == 0)
}

// A Recording is the outcome of a PUBREC.
type Recording int

// What a PUBREC may be.
const (
	Unknown  Recording = iota // no message waits for it
	First                     // it is to be stored, which Release notes
	Repeated                  // an earlier one of this connection is being stored
	Stored                    // an earlier one is stored
)

// Recorded returns the number of the message that a PUBREC is for, and its outcome. Only the first PUBREC of a message on
// a connection must be stored. [MQTT-4.3.3-4]
func (q *Queue) Recorded(id uint16) (seq uint64, is Recording) {
	e := q.find(id)
	switch {
	case e == nil || e.flags&qos2 == 0:
		return 0, Unknown
	case e.flags&released != 0:
		return e.seq, Stored
	case e.flags&recording != 0:
		return e.seq, Repeated
	}
	e.flags |= recording
	return e.seq, First
}

// Release notes that the message of a number has been recorded, which is durable now. Nothing of it is left to be sent but
// PUBREL, for which its record is not needed: Release returns the message, which the queue does not use any more, or nil.
func (q *Queue) Release(seq uint64) *Message {
	q.MarkSent(seq + 1)
	e := q.at(seq)
	if e == nil || e.flags&released != 0 {
		return nil
	}
	m := e.m
	e.flags |= released
	e.m = NewMessage(Ref{}, 0)
	e.m.Use(1)
	q.bytes -= int64(m.Size)
	return m
}

// MarkSent notes that the messages below a number may have been sent.
func (q *Queue) MarkSent(below uint64) {
	for q.items.Len() > 0 && q.base < below {
		if e, seq := q.pop(); e.m != nil {
			q.sent = append(q.sent, numbered{seq, e})
			q.live++
		}
	}
}

// restored notes, once the log was read, that messages with a lower number may have been sent before. The client holds those of one window
// at most; others are sent with DUP, as their acknowledgements may be lost.
func (q *Queue) restored(sentBelow uint64) {
	q.maybeSent = sentBelow
	q.MarkSent(min(sentBelow, q.windowEnd()))
}

// windowEnd is the number of the first message behind those that a client may hold.
func (q *Queue) windowEnd() uint64 {
	n := 0
	for item := range q.All {
		if n++; n > MaxWindow {
			return item.Seq
		}
	}
	return q.NextSeq()
}

// SentBelow is the number below which messages may have been sent on this connection or
// before.
func (q *Queue) SentBelow() uint64 { return q.base }

// Remove removes the message of a number, and returns it; nil if there is none.
func (q *Queue) Remove(seq uint64) *Message {
	var e *entry
	if seq >= q.base {
		if seq >= q.NextSeq() {
			return nil
		}
		e = q.items.At(int(seq - q.base))
	} else if s := q.at(seq); s != nil {
		e = &s.entry
		q.live--
	}
	if e == nil || e.m == nil {
		return nil
	}
	m := e.m
	if e.flags&open != 0 {
		q.open--
	}
	q.count--
	q.bytes -= int64(m.Size)
	*e = entry{}
	for len(q.sent) > 0 && q.sent[0].m == nil {
		q.sent = q.sent[1:]
		q.resend = max(0, q.resend-1)
	}
	switch {
	case len(q.sent) == 0:
		q.compact()
	case len(q.sent) > 2*q.live+64:
		q.compact()
	}
	for q.items.Len() > 0 && q.items.At(0).m == nil {
		q.pop()
	}
	return m
}

// Oldest returns the number of the oldest message that the client does not hold; false if
// there is none.
func (q *Queue) Oldest() (seq uint64, ok bool) {
	for i := range q.items.Len() {
		if q.items.At(i).m != nil {
			return q.base + uint64(i), true
		}
	}
	return 0, false
}

// First returns the number of the oldest message, sent or not; false if there is none.
func (q *Queue) First() (seq uint64, ok bool) {
	for item := range q.All {
		return item.Seq, true
	}
	return 0, false
}

// An Item is a message of a queue as All returns it.
type Item struct {
	Delivery
	Message  *Message
	Seq      uint64 // number in the queue
	Released bool   // PUBREC has arrived: only PUBREL is left to send, and Message has no record
}

// All calls yield with each message, the oldest first, until that returns false.
func (q *Queue) All(yield func(Item) bool) {
	for i := range q.sent {
		if e := &q.sent[i]; e.m != nil && !yield(e.item(e.seq)) {
			return
		}
	}
	for i := range q.items.Len() {
		if e := q.items.At(i); e.m != nil && !yield(e.item(q.base+uint64(i))) {
			return
		}
	}
}

func (e *entry) item(seq uint64) Item {
	return Item{e.delivery(), e.m, seq, e.flags&released != 0}
}
