package sessions

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// A Session is what the broker stores of one client, whether or not that has a connection.
// Its methods may be called concurrently.
type Session struct {
	store   *Store
	nextSeq uint64 // number of the next message; the committer's, 0: as the queue says

	mu    sync.Mutex // protects what follows
	state state.Session
	ended bool
	link  *Link         // the connection; nil while the client is away
	few   chan struct{} // closed when few messages are still to be sent; nil: no goroutine waits for that
}

// A Link is the connection that a session has. What an earlier Link asks for does nothing.
type Link struct {
	session *Session
	to      Receiver
	cut     bool // it is about to end, and is sent nothing; the session's mu protects it
}

// Client is the client id.
func (s *Session) Client() string { return s.state.Client }

// Owner is the identity that the session belongs to.
func (s *Session) Owner() Owner {
	identity, address, _ := strings.Cut(s.state.Identity, addressMark)
	return Owner{Name: s.state.Owner, Identity: identity, Address: address}
}

// addressMark stands in the stored identity of a session before the address that it was made from.
const addressMark = "\x00address "

// shared is name in the memory of an identity that begins with it, as there are many.
func shared(name, identity string) string {
	if strings.HasPrefix(identity, name) {
		return identity[:len(name)]
	}
	return name
}

func withAddress(o Owner) string {
	if o.Address == "" {
		return o.Identity
	}
	return o.Identity + addressMark + o.Address
}

// idle reports whether the session has no connection and holds nothing. s.mu is held.
func (s *Session) idle() bool {
	return s.link == nil && s.state.Away > 0 && s.state.Will == nil &&
		len(s.state.Subscriptions) == 0 && len(s.state.Received) == 0 && s.state.Queue.Len() == 0
}

// idleSince is since when the client is away, by the clock of the log, of a session that is idle; else 0.
func (s *Session) idleSince() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.idle() {
		return 0
	}
	return s.state.Away
}

// Subscriptions returns a copy of the subscriptions, by filter.
func (s *Session) Subscriptions() map[string]Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Subscriptions)
}

// Will is the content of the last will that waits for its delay; nil: none does.
func (s *Session) Will() *Body {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Will == nil {
		return nil
	}
	return &s.state.Will.Body
}

// Attach gives the session a connection. What was sent before and is not acknowledged comes first. A
// last will that waited is not sent any more. It returns nil if the session has ended.
func (s *Session) Attach(to Receiver, expiry uint32) *Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	to.Window = min(to.Window, state.MaxWindow)
	l := &Link{session: s, to: to}
	s.link = l
	s.state.Queue.Rewind()
	s.store.changes.add(change{record: s.state.Connect(expiry, to.Will), flush: true})
	return l
}

// Detach says that the connection of l has ended. The session expires after expiry seconds, and w
// is sent at its time, unless it is nil.
func (l *Link) Detach(expiry uint32, w *Will) {
	s := l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l || s.ended {
		return
	}
	s.link = nil
	s.wakeWaiters()
	now := s.store.clock.At(s.store.o.Now())
	r := s.state.Left(now, expiry, w)
	for item := range s.state.Queue.All {
		s.store.forgetBody(item.Message) // it is not read soon
	}
	s.store.changes.add(change{record: r, flush: true})
	if w != nil {
		s.store.dueBy(w.At)
	}
	if at := s.state.Due(); at > 0 {
		s.store.dueBy(at)
	}
}

// WillAt returns when a last will with a delay is due whose connection ends now.
func (s *Store) WillAt(delay uint32) int64 {
	return s.clock.At(s.o.Now()) + int64(time.Duration(delay)*time.Second)
}

// due returns when the session expires or its last will is due, whichever is first; 0 is never. A will
// that is due is returned once, also because the session has expired. [MQTT-3.1.3-9]
func (s *Session) due(now int64) (at int64, will *Will) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.link != nil {
		return 0, nil
	}
	at = s.state.Due()
	if w := s.state.Will; w != nil && (w.At <= now || at > 0 && at <= now) {
		will = w
		s.state.Will = nil
		s.store.changes.add(change{record: s.state.Left(s.state.Away, s.state.Expiry, nil), flush: true})
	} else if w != nil && (at == 0 || w.At < at) {
		at = w.At
	}
	return at, will
}

// End ends the session: its messages are not delivered any more. It returns the last will that
// waited, which is to be sent now, or nil. [MQTT-3.1.3-9]
func (s *Session) End() *Will {
	will, _ := s.end(func() bool { return true })
	return will
}

// EndIfExpired is End for a session that has no connection and whose time is up; false if that is
// not so.
func (s *Session) EndIfExpired() (*Will, bool) {
	return s.end(func() bool {
		at := s.state.Due()
		return s.link == nil && at > 0 && at <= s.store.clock.At(s.store.o.Now())
	})
}

// EndIfAway is End for a session that has no connection; false if it has one.
func (s *Session) EndIfAway() (*Will, bool) {
	return s.end(func() bool { return s.link == nil })
}

func (s *Session) end(may func() bool) (will *Will, ended bool) {
	store := s.store
	store.mu.Lock()
	defer store.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !may() {
		return nil, false
	}
	if s.link == nil { // else it is the caller's whether the will of the connection is sent
		will = s.state.Will
	}
	s.ended, s.link = true, nil
	s.wakeWaiters()
	delete(store.clients, s.state.Client)
	store.count(s.Owner(), -1)
	for item := range s.state.Queue.All {
		store.messages.Add(-1)
		store.release(item.Message)
	}
	s.state.Queue, s.state.Will = state.Queue{}, nil
	store.changes.add(change{record: state.End{Session: s.state.ID}, flush: true})
	return will, true
}

// Subscribe stores a subscription. It is durable after a Flush of the store.
func (s *Session) Subscribe(filter string, sub Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Subscribe(filter, sub)
	s.store.changes.add(change{record: state.Subscribe{Session: s.state.ID, Filter: filter, Subscription: sub}, flush: true})
}

// Unsubscribe removes a subscription, in the same way.
func (s *Session) Unsubscribe(filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.state.Subscriptions, filter)
	s.store.changes.add(change{record: state.Unsubscribe{Session: s.state.ID, Filter: filter}, flush: true})
}

// Received returns the packet ids of messages of QoS 2 that the client has sent and not
// released. [MQTT-4.3.3-10]
func (s *Session) Received() []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]uint16, 0, len(s.state.Received))
	for id := range s.state.Received {
		out = append(out, id)
	}
	return out
}

// receive notes the packet id of a message of QoS 2 that is durable now: not before, so that no
// checkpoint has the id without the message.
func (s *Session) receive(id uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Receive(id)
}

// Finish notes that the client has released the packet id. done is called once that is durable,
// or not stored. [MQTT-4.3.3-11]
func (s *Session) Finish(id uint16, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.changes.add(change{record: state.Finished{Session: s.state.ID, ID: id}, flush: true, done: done, apply: func() {
		s.mu.Lock() // now, and behind a message with this id that the log has before
		defer s.mu.Unlock()
		delete(s.state.Received, id)
	}})
}

// next is the number of the next message that gets into the queue.
func (s *Session) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.nextSeq, s.state.Queue.NextSeq())
}

// push appends a message to the queue. near says that it is about to be sent.
func (s *Session) push(t state.Target, m *state.Message) (near, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.state.Queue.Push(t.Seq, m, t.Delivery) {
		return false, false
	}
	m.Use(1)
	s.store.messages.Add(1)
	return s.link != nil && s.state.Queue.Unsent() <= nearby, true
}

// wakeUp wakes the connection: there is something to send.
func (s *Session) wakeUp() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.to.Wake()
	}
}

// Len is how many messages wait for the client, or for its acknowledgement.
func (s *Session) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Queue.Len()
}

// weight is how much waits for the client, or for its acknowledgement: messages, or bytes.
func (s *Session) weight(byBytes bool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if byBytes {
		return s.state.Queue.Bytes()
	}
	return int64(s.state.Queue.Len())
}

// over reports whether the session holds more than it may.
func (s *Session) over(l *Limits) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Queue.Len() > l.Messages || s.state.Queue.Bytes() > l.Bytes
}

// drop drops the oldest message that was not sent; false if there is none.
func (s *Session) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq, ok := s.state.Queue.Oldest()
	if ok {
		s.remove(seq)
	}
	return ok
}

// dropSent drops the oldest message, which the client may have, for the limit of a key; false if there is none. A connection
// is cut, and is sent nothing more: it may not get more than it has room for. [MQTT-3.3.4-9]
func (s *Session) dropSent(limit string) bool {
	s.mu.Lock()
	seq, ok := s.state.Queue.First()
	var cut func(string)
	if l := s.link; ok && l != nil && !l.cut {
		l.cut, cut = true, l.to.Cut
	}
	if ok {
		s.remove(seq)
	}
	s.mu.Unlock()
	if cut != nil {
		cut(limit)
	}
	return ok
}

// remove ends a message. s.mu is held.
func (s *Session) remove(seq uint64) {
	m := s.state.Queue.Remove(seq)
	if m == nil {
		return
	}
	s.done(m, seq)
}

// done notes that a message has left the queue. s.mu is held.
func (s *Session) done(m *state.Message, seq uint64) {
	s.store.messages.Add(-1)
	s.store.release(m)
	s.store.changes.remove(state.Position{Session: s.state.ID, Seq: seq})
	if s.few != nil && s.state.Queue.Unsent() < nearby {
		s.wakeWaiters()
	}
}

func (s *Session) wakeWaiters() {
	if s.few != nil {
		close(s.few)
		s.few = nil
	}
}

// FewUnsent returns a channel that is closed when few messages are still to be sent, or the client
// is away; nil if that is so now.
func (s *Session) FewUnsent() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil || s.state.Queue.Unsent() < nearby {
		return nil
	}
	if s.few == nil {
		s.few = make(chan struct{})
	}
	return s.few
}

// An Info is how a session is now.
type Info struct {
	Expiry        uint32    // seconds, or Never
	Away          time.Time // since when it has no connection; zero: it has one
	Subscriptions int       // number of filters
	Messages      int       // stored for the session
	Bytes         int64     // size of the stored messages
}

// Info returns how the session is now.
func (s *Session) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Info{Expiry: s.state.Expiry, Subscriptions: len(s.state.Subscriptions), Messages: s.state.Queue.Len(), Bytes: s.state.Queue.Bytes()}
	if s.link == nil {
		out.Away = s.store.clock.Time(s.state.Away)
	}
	return out
}

// Lags reports whether many messages wait for the client.
func (s *Session) Lags() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link == nil || s.state.Queue.Unsent() >= nearby
}
