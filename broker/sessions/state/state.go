package state

import (
	"errors"
	"fmt"
)

// A Session is what is stored of one session. Not safe for concurrent use.
type Session struct {
	ID              SessionID
	Client          string
	Owner, Identity string // as in Begin
	Expiry          uint32 // seconds, or Never
	Away            int64  // since when it has no connection, by the clock of the log; 0: it has one
	Will            *Will  // that is to be sent unless the client comes back; nil: none, or one without a delay
	Subscriptions   map[string]Subscription
	Received        map[uint16]struct{} // packet ids of the client's messages of QoS 2 before PUBREL
	Queue           Queue
	sentBelow       uint64
}

// A Will is a last will with a delay.
type Will struct {
	At     int64 // by the clock of the log; while there is a connection: nanoseconds after its end
	Body   Body
	QoS    byte
	Retain bool
	Expiry uint32 // seconds from when it is sent; 0: none
}

// Due returns when the session expires; 0 where it does not, or has a connection.
func (s *Session) Due() int64 {
	if s.Away == 0 || s.Expiry == Never {
		return 0
	}
	return s.Away + int64(s.Expiry)*1e9
}

// Connect notes that the client has a connection, with a last will of this connection, and returns the
// record of it.
func (s *Session) Connect(expiry uint32, w *Will) Connected {
	s.Away, s.Expiry, s.Will = 0, expiry, w
	return Connected{Session: s.ID, Expiry: expiry, Will: w}
}

// Left notes that the connection has ended, and returns the record of it.
func (s *Session) Left(at int64, expiry uint32, w *Will) Away {
	s.Away, s.Expiry, s.Will = max(1, at), expiry, w
	s.sentBelow = max(s.sentBelow, s.Queue.SentBelow())
	r := Away{Session: s.ID, At: s.Away, Expiry: expiry, SentBelow: s.sentBelow}
	if w != nil {
		r.WillAt, r.Will, r.WillExpiry, r.WillFlags = max(1, w.At), w.Body, w.Expiry, w.QoS
		if w.Retain {
			r.WillFlags |= 4
		}
	}
	return r
}

func (r *Away) will() *Will {
	if r.WillAt == 0 {
		return nil
	}
	return &Will{At: r.WillAt, Body: r.Will, QoS: r.WillFlags & 3, Retain: r.WillFlags&4 != 0, Expiry: r.WillExpiry}
}

// Subscribe adds a subscription or replaces it.
func (s *Session) Subscribe(filter string, sub Subscription) {
	if s.Subscriptions == nil {
		s.Subscriptions = make(map[string]Subscription, 1)
	}
	s.Subscriptions[filter] = sub
}

// Receive notes the packet id of a message of QoS 2 that the client has sent.
func (s *Session) Receive(id uint16) {
	if s.Received == nil {
		s.Received = make(map[uint16]struct{})
	}
	s.Received[id] = struct{}{}
}

// A State is all sessions, as the log says. It is used while the log is read.
type State struct {
	Sessions map[SessionID]*Session
	LastID   SessionID
	Time     Time
	messages map[Ref]*Message // for copies; nil until the first
	copied   Ref              // where the message stood that the next record is a copy of
	copyAt   Ref              // where the Copied of it ends
}

// New returns a state without sessions.
func New() *State { return &State{Sessions: make(map[SessionID]*Session)} }

// Apply changes the state as a record says that stands at ref.
func (st *State) Apply(r Record, ref Ref) {
	switch r := r.(type) {
	case Begin:
		st.LastID = max(st.LastID, r.Session)
		if st.Sessions[r.Session] == nil {
			st.Sessions[r.Session] = &Session{ID: r.Session, Client: r.Client, Owner: r.Owner, Identity: r.Identity, Expiry: r.Expiry}
		}
	case End:
		st.end(r.Session)
	case Connected:
		if s := st.Sessions[r.Session]; s != nil {
			s.Connect(r.Expiry, r.Will)
		}
	case Away:
		if s := st.Sessions[r.Session]; s != nil {
			s.Away, s.Expiry, s.Will, s.sentBelow = r.At, r.Expiry, r.will(), r.SentBelow
		}
	case Subscribe:
		if s := st.Sessions[r.Session]; s != nil {
			s.Subscribe(r.Filter, r.Subscription)
		}
	case Unsubscribe:
		if s := st.Sessions[r.Session]; s != nil {
			delete(s.Subscriptions, r.Filter)
		}
	case *Publish:
		st.publish(r, ref)
	case Copied:
		st.copied, st.copyAt = r.From, Ref{Segment: ref.Segment, At: ref.At + ref.Size}
	case Removed:
		for _, p := range r.List {
			if s := st.Sessions[p.Session]; s != nil {
				st.release(s.Queue.Remove(p.Seq))
			}
		}
	case Recorded:
		if s := st.Sessions[r.Session]; s != nil {
			st.release(s.Queue.Release(r.Seq))
		}
	case Left:
		for i := range r.List {
			st.keep(&r.List[i])
		}
	case Finished:
		if s := st.Sessions[r.Session]; s != nil {
			delete(s.Received, r.ID)
		}
	case Time:
		st.Time = r
	}
}

func (st *State) end(id SessionID) {
	s := st.Sessions[id]
	if s == nil {
		return
	}
	delete(st.Sessions, id)
	for item := range s.Queue.All {
		st.release(item.Message)
	}
}

// release forgets a message that no session still has to receive.
func (st *State) release(m *Message) {
	if m != nil && m.Use(-1) && st.messages != nil {
		delete(st.messages, m.Ref())
	}
}

// recordHead is what the log puts between the bodies of two records, in bytes.
const recordHead = 16

func (st *State) publish(r *Publish, ref Ref) {
	if from := st.copied; from != (Ref{}) {
		st.copied = Ref{}
		if (Ref{Segment: ref.Segment, At: ref.At - recordHead}) == st.copyAt && ref.Size == from.Size {
			st.relocate(from, ref)
			return
		}
	}
	if s := st.Sessions[r.From]; s != nil {
		s.Receive(r.ID)
	}
	m := NewMessage(ref, r.Expires)
	for i := range r.To {
		if s := st.Sessions[r.To[i].Session]; s != nil && s.Queue.Push(r.To[i].Seq, m, r.To[i].Delivery) {
			m.Use(1)
		}
	}
	if st.messages != nil && m.users.Load() > 0 {
		st.messages[ref] = m
	}
}

// relocate notes where a message is now.
func (st *State) relocate(from, to Ref) {
	if st.messages == nil {
		st.messages = make(map[Ref]*Message)
		for _, s := range st.Sessions {
			for item := range s.Queue.All {
				st.messages[item.Message.Ref()] = item.Message
			}
		}
	}
	if m := st.messages[from]; m != nil {
		delete(st.messages, from)
		m.SetRef(to)
		st.messages[to] = m
	}
}

// Prune removes the messages whose segment is not there, and returns how many it were of each.
func (st *State) Prune(has func(segment uint32) bool) map[uint32]int {
	missing := make(map[uint32]int)
	for _, s := range st.Sessions {
		var removed []uint64
		for item := range s.Queue.All {
			if segment := item.Message.Ref().Segment; !item.Released && !has(segment) {
				removed = append(removed, item.Seq)
				missing[segment]++
			}
		}
		for _, seq := range removed {
			st.release(s.Queue.Remove(seq))
		}
	}
	return missing
}

// Finish ends the reading of the log. A session that has a connection by the log lost it at a
// time of the clock; what was in its queue may have been sent, and its last will waits from then on.
func (st *State) Finish(at int64, incomplete bool) {
	st.messages = nil
	for _, s := range st.Sessions {
		if connected := s.Away == 0; connected || incomplete {
			s.Away, s.sentBelow = max(1, at), max(s.sentBelow, s.Queue.NextSeq()) // acknowledgements of it may be lost
			if connected && s.Will != nil {
				s.Will.At += s.Away
			}
		}
		s.Queue.restored(s.sentBelow)
	}
}

// AppendHead appends the beginning of a checkpoint: it is followed by count sessions.
func AppendHead(b []byte, t Time, last SessionID, count int) []byte {
	return number(number(number(number(b, t.Clock), t.Wall), last), count)
}

// Append appends the session to a checkpoint.
func (s *Session) Append(b []byte) []byte {
	b = number(b, s.ID)
	b = number(text(text(text(b, s.Client), s.Owner), s.Identity), s.Expiry)
	b = number(number(b, s.Away), s.sentBelow)
	if s.Will == nil {
		b = append(b, 0)
	} else {
		b = append(b, 1)
		b = s.Will.append(b)
	}
	b = number(b, len(s.Subscriptions))
	for filter, sub := range s.Subscriptions {
		b = sub.append(text(b, filter))
	}
	b = number(b, len(s.Received))
	for id := range s.Received {
		b = number(b, id)
	}
	b = number(number(b, s.Queue.NextSeq()), s.Queue.Len())
	last := uint64(0)
	for item := range s.Queue.All {
		b = number(b, item.Seq-last)
		last = item.Seq
		b = item.append(b)
	}
	return b
}

func (w *Will) append(b []byte) []byte {
	flags := w.QoS
	if w.Retain {
		flags |= 4
	}
	b = append(number(b, w.At), flags)
	b = text(number(b, w.Expiry), w.Body.Topic)
	b = text(b, string(w.Body.Properties))
	return text(b, string(w.Body.Payload))
}

const (
	itemReleased = 1 << iota
	itemShared
)

func (i *Item) append(b []byte) []byte {
	flags := byte(0)
	if i.Released {
		flags |= itemReleased
	}
	if i.Message.Shared() {
		flags |= itemShared
	}
	ref := i.Message.Ref()
	b = number(number(number(append(b, flags), ref.Segment), ref.At), ref.Size)
	return i.Delivery.append(number(b, i.Message.Expires))
}

// Load reads a checkpoint.
func Load(b []byte) (*State, error) {
	st, d := New(), &decoder{b: b}
	st.Time = Time{int64(d.number()), int64(d.number())}
	st.LastID = SessionID(d.number())
	shared := make(map[Ref]*Message)
	for n := d.number(); n > 0 && d.err == nil; n-- {
		s := d.session(shared)
		st.Sessions[s.ID] = s
	}
	if d.err == nil && len(d.b) > 0 {
		d.err = errors.New("there is more than the checkpoint says")
	}
	return st, d.err
}

func (d *decoder) session(shared map[Ref]*Message) *Session {
	s := &Session{ID: SessionID(d.number()), Client: string(d.data()), Owner: string(d.data()), Identity: string(d.data())}
	s.Expiry, s.Away, s.sentBelow = uint32(d.number()), int64(d.number()), d.number()
	if d.byte() == 1 {
		s.Will = d.will()
	}
	for n := d.number(); n > 0 && d.err == nil; n-- {
		filter := string(d.data())
		s.Subscribe(filter, d.subscription())
	}
	for n := d.number(); n > 0 && d.err == nil; n-- {
		s.Receive(uint16(d.number()))
	}
	next, seq := d.number(), uint64(0)
	for n := d.number(); n > 0 && d.err == nil; n-- {
		seq += d.number()
		flags := d.byte()
		ref, expires := d.ref(), int64(d.number())
		m := shared[ref]
		if m == nil {
			m = NewMessage(ref, expires)
			if flags&itemShared != 0 {
				shared[ref] = m
			}
		}
		delivery := d.delivery()
		if d.err != nil {
			return s
		}
		if !s.Queue.Push(seq, m, delivery) {
			d.err = fmt.Errorf("session %d: message %d stands behind a later one", s.ID, seq)
			return s
		}
		m.Use(1)
		if flags&itemReleased != 0 {
			s.Queue.Release(seq).Use(-1)
		}
	}
	s.Queue.skip(next)
	return s
}

func (d *decoder) will() *Will {
	w := &Will{At: int64(d.number())}
	flags := d.byte()
	w.QoS, w.Retain, w.Expiry = flags&3, flags&4 != 0, uint32(d.number())
	w.Body = Body{Topic: string(d.data()), Properties: d.data(), Payload: d.data()}
	return w
}
