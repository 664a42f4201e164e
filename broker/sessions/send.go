package sessions

import (
	"time"

	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/sessions/state"
)

// A Receiver is how the client of a connection takes messages.
type Receiver struct {
	V5      bool
	Window  int // messages that may be unacknowledged
	Largest int // bytes of a packet that it takes; 0: any
	// The functions return at once and call nothing of this package. Wake is called when there is something to
	// send. Cut is called at most once, when the connection must end because the client holds most of the store
	// and does not acknowledge. May reports whether the client may still get a message of a topic. Sent is
	// called with the QoS and the bytes of each sent message.
	Wake func()
	Cut  func(limit string) // with the key of the limit
	May  func(topic string) bool
	Sent func(qos byte, bytes int)
	// Will is sent after the delay in it if the process ends before Detach; nil: none, or one without a delay.
	Will *Will
}

// The reasons for which a connection does not get a message that its session has.
const (
	droppedAccess   = "access"
	droppedTooLarge = "packet_too_large"
)

// How many bytes Pull returns at once, about, and from which size on a payload is not copied.
const (
	pullBytes = 16 << 10
	large     = 8 << 10
)

// Pull implements transport.Source: the packets that the client is to get now.
func (l *Link) Pull(buf []byte, now time.Time) (head, payload []byte) {
	begin := len(buf)
	for len(buf)-begin < pullBytes && payload == nil {
		step, ok := l.next(now)
		if !ok {
			break
		}
		if step.Release {
			buf = append(buf, byte(packet.Pubrel)<<4|2, 2, byte(step.ID>>8), byte(step.ID)) // [MQTT-3.6.1-1]
			continue
		}
		buf, payload = l.publish(buf, step, now)
	}
	return buf, payload
}

// publish appends a PUBLISH, unless the client cannot get it.
func (l *Link) publish(buf []byte, step outgoing, now time.Time) (head, payload []byte) {
	if !l.to.May(step.Topic) {
		l.drop(step, droppedAccess)
		return buf, nil
	}
	out := packet.Outgoing{
		Topic: step.Topic, Payload: step.Payload, Properties: step.Properties, Expires: step.Expires, Identifiers: step.Identifiers,
		QoS: step.QoS, Retain: step.Retain, V5: l.to.V5,
	}
	frame := packet.NewFrame(out)
	if l.to.Largest > 0 && frame.Size() > l.to.Largest { // [MQTT-3.1.2-24] [MQTT-3.1.2-25]
		l.drop(step, droppedTooLarge)
		return buf, nil
	}
	at := len(buf)
	buf = frame.AppendHead(buf, step.ID, now)
	if step.Dup {
		buf[at] |= 8 // [MQTT-3.3.1-1]
	}
	l.to.Sent(step.QoS, frame.Size())
	if p := frame.Payload(); len(p) < large {
		return append(buf, p...), nil
	}
	return buf, frame.Payload()
}

// An outgoing is a packet that is to be sent to the client now: PUBLISH, or PUBREL where Release
// is set.
type outgoing struct {
	Delivery
	*Body             // nil with Release
	Expires time.Time // zero: never
	ID      uint16
	Dup     bool
	Release bool
	seq     uint64
}

// next returns the next packet to send, and counts it as sent. Messages whose time is up are dropped.
// [MQTT-3.3.2-5] One that cannot be read any more is dropped, too.
func (l *Link) next(now time.Time) (outgoing, bool) {
	s, store := l.session, l.session.store
	for {
		s.mu.Lock()
		if s.link != l || l.cut || s.ended {
			s.mu.Unlock()
			return outgoing{}, false
		}
		next, ok := s.state.Queue.Next(l.to.Window)
		if !ok {
			s.mu.Unlock()
			return outgoing{}, false
		}
		if s.few != nil && s.state.Queue.Unsent() < nearby {
			s.wakeWaiters()
		}
		m, out := next.Message, outgoing{Delivery: next.Delivery, ID: next.ID, Dup: next.Dup, Release: next.Release, seq: next.Seq}
		// What the client may have in part is sent again, however late. [MQTT-4.4.0-1] [MQTT-3.3.2-5]
		if !next.Release && !next.Dup && m.Expires != 0 && m.Expires <= store.clock.At(now) {
			s.remove(next.Seq)
			s.mu.Unlock()
			store.o.Dropped(1, DroppedExpired)
			continue
		}
		out.Expires = store.clock.Time(m.Expires)
		m.Use(1) // its record must stay until it has been read
		s.mu.Unlock()
		if next.Release {
			store.release(m)
			return out, true
		}
		body, err := store.body(m)
		store.release(m)
		if err == nil {
			out.Body = body
			return out, true
		}
		if !m.Lose() { // each record counts once, each session that misses it among what is dropped
			store.lost.Add(1)
		}
		if d := store.records.Unreadable(m.Ref().Segment, err); d != nil {
			store.o.Damaged(d)
			store.log.Error("stored messages cannot be read: their recipients do not get them; each is counted", "first_client", s.Client(), "err", d)
		}
		l.drop(out, DroppedDamaged)
	}
}

// body returns the content of a message, from memory or from the log.
func (s *Store) body(m *state.Message) (*Body, error) {
	if body := m.Body(); body != nil {
		return body, nil
	}
	for {
		ref := m.Ref()
		b, err := s.records.Read(ref)
		if err != nil && m.Ref() != ref {
			continue // it was copied meanwhile, and its segment removed
		}
		if err != nil {
			return nil, err
		}
		return state.ReadBody(b)
	}
}

// drop drops a message that next has returned and that the client must not get, and counts it.
func (l *Link) drop(step outgoing, reason string) {
	l.session.mu.Lock()
	l.session.remove(step.seq)
	l.session.mu.Unlock()
	l.session.store.o.Dropped(1, reason)
}

// The packets that end a message.
const (
	Puback  = state.Puback  // it ends a message of QoS 1
	Refused = state.Refused // PUBREC with an error
	Pubcomp = state.Pubcomp // it ends a message of QoS 2
)

// Acknowledged ends the message with a packet id, if it waits for this packet.
func (l *Link) Acknowledged(id uint16, by state.Ack) {
	s := l.session
	s.mu.Lock()
	more := false
	if s.link == l && !s.ended {
		if m, seq := s.state.Queue.Acknowledged(id, by); m != nil {
			s.done(m, seq)
			more = s.state.Queue.Unsent() > 0
		}
	}
	s.mu.Unlock()
	if more {
		l.to.Wake()
	}
}

// Odd reports whether the message with a packet id waits for another packet than this one.
func (l *Link) Odd(id uint16, by state.Ack) bool {
	s := l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link == l && !s.ended && s.state.Queue.Odd(id, by)
}

// The outcomes of a PUBREC.
const (
	UnknownPubrec  = state.Unknown  // no message waits for it
	RepeatedPubrec = state.Repeated // an earlier one is being stored, and will be answered
)

// Recorded notes a PUBREC. done is called once that is durable, or not stored; it is not called for one that is unknown
// or repeated.
func (l *Link) Recorded(id uint16, done func(error)) state.Recording {
	is := l.recorded(id, done)
	if is == state.Stored {
		done(nil)
	}
	return is
}

func (l *Link) recorded(id uint16, done func(error)) state.Recording {
	s := l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l || s.ended {
		return state.Unknown
	}
	seq, is := s.state.Queue.Recorded(id)
	if is == state.First {
		s.store.changes.add(change{record: state.Recorded{Session: s.state.ID, Seq: seq}, flush: true, done: done, apply: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if m := s.state.Queue.Release(seq); m != nil {
				s.store.release(m)
			}
		}})
	}
	return is
}
