package state

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A SessionID is the number of a session. It is not given twice.
type SessionID uint64

// A Record is one change of state as it stands in the log. Records say what is now, so
// that reading one again that the state has in it already changes nothing.
type Record interface {
	// Append appends the encoded record.
	Append(b []byte) []byte
}

// The kinds of records, by their first byte. A number is never used for another kind.
const (
	kindBegin byte = iota + 1
	kindEnd
	kindConnected
	kindAway
	kindSubscribe
	kindUnsubscribe
	kindPublish
	kindRemoved
	kindRecorded
	kindFinished
	kindCopied
	kindTime
	kindLeft // 0.2.0 does not read it: it is there where a disk was full
)

// Begin says that a session begins, with a connection.
type Begin struct {
	Session SessionID
	Client  string
	// Owner is the name of the identity that the session belongs to, Identity all of it as
	// the broker encodes it.
	Owner, Identity string
	Expiry          uint32 // session expiry interval, in seconds; Never: none
}

// Never is the session expiry interval of a session that does not expire. [MQTT 5, 3.1.2.11.2]
const Never = 1<<32 - 1

// End says that a session has ended.
type End struct{ Session SessionID }

// Connected says that the client has a connection again.
type Connected struct {
	Session SessionID
	Expiry  uint32 // in seconds
	// Will is sent unless the client comes back after this connection, see Will.At; nil: none, or one
	// without a delay. Records of 0.2.0 have none, and 0.2.0 does not read it.
	Will *Will
}

// Away says that the connection has ended.
type Away struct {
	Session    SessionID
	At         int64  // by the clock of the log
	Expiry     uint32 // as the client left it
	SentBelow  uint64 // messages with a lower number may have been sent
	WillAt     int64  // when the last will is due; 0: there is none
	Will       Body
	WillFlags  byte   // QoS, and RETAIN in bit 2
	WillExpiry uint32 // seconds from when it is sent; 0: none
}

// Subscribe says that a session subscribes to a filter, or does so differently.
type Subscribe struct {
	Session SessionID
	Filter  string
	Subscription
}

// A Subscription is what a session asked for with a filter.
type Subscription struct {
	Identifier        int // 0: none
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
}

// Unsubscribe says that a session does not subscribe to a filter any more.
type Unsubscribe struct {
	Session SessionID
	Filter  string
}

// Publish is a message, and the sessions that are to get it.
type Publish struct {
	Body
	Expires int64 // by the clock of the log; 0: never
	To      []Target
	// From is the session of a publisher that sent it with QoS 2 under the packet id ID,
	// which that session uses until Finished; 0: none. [MQTT-4.3.3-8]
	From SessionID
	ID   uint16
}

// A Target is a session that is to get a message, under a number that grows.
type Target struct {
	Session SessionID
	Seq     uint64 // number in the session's queue
	Delivery
}

// Removed says which messages of which sessions are done with.
type Removed struct{ List []Position }

// A Position is a message in the queue of a session.
type Position struct {
	Session SessionID
	Seq     uint64 // number in its queue
}

// Recorded says that a client has sent PUBREC for a message.
type Recorded Position

// Finished says that a client has sent PUBREL for the packet id of a message of its own.
type Finished struct {
	Session SessionID
	ID      uint16
}

// Copied says that the record right behind it is a Publish again that stood elsewhere.
type Copied struct{ From Ref }

// Time says what the clock of the log and that of the machine show.
type Time struct {
	Clock int64 // nanoseconds
	Wall  int64 // Unix time in nanoseconds
}

func text(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func number[N ~uint64 | ~uint32 | ~uint16 | ~int64 | ~int](b []byte, n N) []byte {
	return binary.AppendUvarint(b, uint64(n))
}

// Append implements Record.
func (r Begin) Append(b []byte) []byte {
	b = number(append(b, kindBegin), r.Session)
	return number(text(text(text(b, r.Client), r.Owner), r.Identity), r.Expiry)
}

// Append implements Record.
func (r End) Append(b []byte) []byte { return number(append(b, kindEnd), r.Session) }

// Append implements Record.
func (r Connected) Append(b []byte) []byte {
	b = number(number(append(b, kindConnected), r.Session), r.Expiry)
	if r.Will == nil {
		return b
	}
	return r.Will.append(b)
}

// Append implements Record.
func (r Away) Append(b []byte) []byte {
	b = number(append(b, kindAway), r.Session)
	b = number(number(number(number(b, r.At), r.Expiry), r.SentBelow), r.WillAt)
	if r.WillAt == 0 {
		return b
	}
	return r.Will.append(number(append(b, r.WillFlags), r.WillExpiry))
}

// append appends the content, the payload as the rest of the record.
func (m *Body) append(b []byte) []byte {
	b = text(b, m.Topic)
	b = append(number(b, len(m.Properties)), m.Properties...)
	return append(b, m.Payload...)
}

// Append implements Record.
func (r Subscribe) Append(b []byte) []byte {
	b = text(number(append(b, kindSubscribe), r.Session), r.Filter)
	return r.append(b)
}

func (s Subscription) append(b []byte) []byte {
	flags := s.QoS
	if s.NoLocal {
		flags |= 4
	}
	if s.RetainAsPublished {
		flags |= 8
	}
	return number(append(b, flags), s.Identifier)
}

// Append implements Record.
func (r Unsubscribe) Append(b []byte) []byte {
	return text(number(append(b, kindUnsubscribe), r.Session), r.Filter)
}

// Append implements Record.
func (r *Publish) Append(b []byte) []byte {
	b = number(append(b, kindPublish), r.Expires)
	b = number(number(b, r.From), r.ID)
	b = number(b, len(r.To))
	for i := range r.To {
		t := &r.To[i]
		b = t.append(number(number(b, t.Session), t.Seq))
	}
	return r.Body.append(b)
}

func (d *Delivery) append(b []byte) []byte {
	flags := d.QoS
	if d.Retain {
		flags |= 4
	}
	if len(d.Identifiers) == 0 {
		return append(b, flags)
	}
	return appendIdentifiers(append(b, flags|8), d.Identifiers)
}

func appendIdentifiers(b []byte, ids []int) []byte {
	b = number(b, len(ids))
	for _, id := range ids {
		b = number(b, id)
	}
	return b
}

// Append implements Record.
func (r Removed) Append(b []byte) []byte {
	b = append(b, kindRemoved)
	for _, p := range r.List {
		b = number(number(b, p.Session), p.Seq)
	}
	return b
}

// Append implements Record.
func (r Recorded) Append(b []byte) []byte {
	return number(number(append(b, kindRecorded), r.Session), r.Seq)
}

// Append implements Record.
func (r Finished) Append(b []byte) []byte {
	return number(number(append(b, kindFinished), r.Session), r.ID)
}

// Append implements Record.
func (r Copied) Append(b []byte) []byte {
	return number(number(number(append(b, kindCopied), r.From.Segment), r.From.At), r.From.Size)
}

// Append implements Record.
func (r Time) Append(b []byte) []byte { return number(number(append(b, kindTime), r.Clock), r.Wall) }

// A decoder reads what the functions above write. After an error it returns zeros.
type decoder struct {
	b   []byte
	err error
}

var errShort = errors.New("the record is too short")

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.err, d.b = errShort, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.err = errShort
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) data() []byte {
	n := d.number()
	if n > uint64(len(d.b)) {
		d.err, d.b = errShort, nil
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

// body reads a content to the end. It shares its memory with the record.
func (d *decoder) body() (m Body) {
	m.Topic = string(d.data())
	if props := d.data(); len(props) > 0 {
		m.Properties = props
	}
	m.Payload, d.b = d.b, nil
	return m
}

func (d *decoder) subscription() Subscription {
	flags := d.byte()
	return Subscription{QoS: flags & 3, NoLocal: flags&4 != 0, RetainAsPublished: flags&8 != 0, Identifier: int(d.number())}
}

func (d *decoder) delivery() Delivery {
	flags := d.byte()
	out := Delivery{QoS: flags & 3, Retain: flags&4 != 0}
	if flags&8 != 0 {
		out.Identifiers = d.identifiers()
	}
	return out
}

func (d *decoder) identifiers() []int {
	n := d.number()
	if n > uint64(len(d.b)) {
		d.err = errShort
		return nil
	}
	out := make([]int, n)
	for i := range out {
		out[i] = int(d.number())
	}
	return out
}

func (d *decoder) publish() *Publish {
	p := &Publish{Expires: int64(d.number()), From: SessionID(d.number()), ID: uint16(d.number())}
	n := d.number()
	if n > uint64(len(d.b)) {
		d.err = errShort
		return p
	}
	p.To = make([]Target, n)
	for i := range p.To {
		p.To[i] = Target{Session: SessionID(d.number()), Seq: d.number(), Delivery: d.delivery()}
	}
	p.Body = d.body()
	return p
}

// Decode reads a record. What it returns may share memory with b.
func Decode(b []byte) (Record, error) {
	d := &decoder{b: b}
	r := d.record()
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

func (d *decoder) record() Record {
	kind := d.byte()
	switch kind {
	case kindPublish:
		return d.publish()
	case kindCopied:
		return Copied{d.ref()}
	case kindTime:
		return Time{int64(d.number()), int64(d.number())}
	case kindLeft:
		var r Left
		for len(d.b) > 0 {
			r.List = append(r.List, d.remaining())
		}
		return r
	case kindRemoved:
		var r Removed
		for len(d.b) > 0 {
			r.List = append(r.List, Position{SessionID(d.number()), d.number()})
		}
		return r
	}
	id := SessionID(d.number())
	switch kind {
	case kindBegin:
		return Begin{id, string(d.data()), string(d.data()), string(d.data()), uint32(d.number())}
	case kindEnd:
		return End{id}
	case kindConnected:
		return d.connected(id)
	case kindAway:
		return d.away(id)
	case kindSubscribe:
		return Subscribe{id, string(d.data()), d.subscription()}
	case kindUnsubscribe:
		return Unsubscribe{id, string(d.data())}
	case kindRecorded:
		return Recorded{id, d.number()}
	case kindFinished:
		return Finished{id, uint16(d.number())}
	}
	d.err = fmt.Errorf("a record of kind %d, which this release does not know", kind)
	return nil
}

func (d *decoder) ref() Ref {
	return Ref{Segment: uint32(d.number()), At: uint32(d.number()), Size: uint32(d.number())}
}

func (d *decoder) connected(id SessionID) Connected {
	r := Connected{Session: id, Expiry: uint32(d.number())}
	if len(d.b) > 0 {
		r.Will = d.will()
	}
	return r
}

func (d *decoder) away(id SessionID) Away {
	r := Away{Session: id, At: int64(d.number()), Expiry: uint32(d.number()), SentBelow: d.number(), WillAt: int64(d.number())}
	if r.WillAt != 0 {
		r.WillFlags, r.WillExpiry = d.byte(), uint32(d.number())
		r.Will = d.body()
	}
	return r
}

// ReadBody returns the content of the Publish that a record is.
func ReadBody(b []byte) (*Body, error) {
	r, err := Decode(b)
	if err != nil {
		return nil, err
	}
	p, ok := r.(*Publish)
	if !ok {
		return nil, errors.New("the record is no message")
	}
	return &p.Body, nil
}
