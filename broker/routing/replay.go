package routing

import (
	"sync"
	"sync/atomic"

	"github.com/colonyfleet/colony/internal/refusals"

	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/mochi-mqtt/server/v2/packets"
)

// A Replay is what a new subscription gets of what is retained: the messages of the
// topics that a cursor returns.
type Replay struct {
	sub    packets.Subscription
	topics retained.Cursor
}

// replays are the replays that one subscriber waits for. One goroutine sends them, one after the
// other. Each filter has at most one that waits, even if a client subscribes repeatedly.
type replays struct {
	mu      sync.Mutex
	waiting []Replay       // one without a filter was removed
	first   int            // how many were taken from waiting before
	at      map[string]int // first plus the index in waiting, by filter; nil: none waits
	running bool
	now     string // the filter whose replay runs
	stopped bool   // and it is no longer wanted
}

// add puts a replay at the end, or in the place of the one that waits for the same filter.
func (r *replays) add(one Replay) {
	if i, ok := r.at[one.sub.Filter]; ok {
		r.waiting[i-r.first] = one
		return
	}
	if r.at == nil {
		r.at = make(map[string]int)
	}
	r.at[one.sub.Filter] = r.first + len(r.waiting)
	r.waiting = append(r.waiting, one)
}

// next takes the first that waits; false means that the goroutine has to end.
func (r *replays) next() (one Replay, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.waiting) > 0 && !ok {
		one = r.waiting[0]
		r.waiting[0] = Replay{}
		r.waiting = r.waiting[1:]
		r.first++
		ok = one.sub.Filter != ""
	}
	delete(r.at, one.sub.Filter)
	r.now, r.stopped, r.running = one.sub.Filter, false, ok
	if !ok {
		r.waiting, r.at = nil, nil
	}
	return one, ok
}

// remove ends the replay of a filter that is no longer subscribed to. [MQTT-3.10.4-2]
func (r *replays) remove(filter string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.at[filter]; ok {
		r.waiting[i-r.first] = Replay{}
		delete(r.at, filter)
	}
	r.stopped = r.stopped || r.now == filter
}

// goOn reports whether the replay that runs is still wanted.
func (r *replays) goOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.stopped
}

// Replay notes what is retained for a subscription. What is retained later comes as it is
// published.
func (r *Router) Replay(sub packets.Subscription) Replay {
	return Replay{sub, r.Retained.Find(sub.Filter)}
}

// StartReplays sends the retained messages of new subscriptions, which were made on a connection.
func (r *Router) StartReplays(s *Subscriber, on Connection, list []Replay) {
	if len(list) == 0 {
		return
	}
	if s.replays == nil {
		s.replays = &replays{}
	}
	q := s.replays
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, one := range list {
		q.add(one)
	}
	if q.running {
		return
	}
	q.running = true
	r.o.Go(func() { // the connection is counted meanwhile
		defer func() {
			if p := recover(); p != nil {
				on.Panicked("a replay", p)
			}
		}()
		for one, ok := q.next(); ok; one, ok = q.next() {
			if !r.replay(s, on, &one) && s.Stored == nil {
				return
			}
		}
	})
}

// replay sends the retained messages of one subscription, at the speed of the client;
// false if that has ended. A message that changes meanwhile comes on the other way too,
// maybe before its older self from here; so what was sent is looked at again, and sent
// again if it has changed. The last message of a topic that the client gets is the
// newest.
func (r *Router) replay(s *Subscriber, on Connection, one *Replay) bool {
	to := &replayTarget{r: r, s: s, on: on, pending: make(chan struct{}, storing)}
	defer to.finish()
	for {
		names, done := r.Retained.Next(&one.topics)
		for _, name := range names {
			if !s.replays.goOn() {
				return true
			}
			if !r.replayTopic(to, &one.sub, name) {
				return false
			}
		}
		if done {
			return true
		}
	}
}

// replayTopic sends the retained message of one topic.
func (r *Router) replayTopic(to *replayTarget, sub *packets.Subscription, name string) bool {
	if !to.room() {
		return false
	}
	var last *message.Message
	for m := r.retainedNow(name); m != last; m = r.retainedNow(name) {
		d := message.Delivery{Retain: true} // [MQTT-3.3.1-8]
		if last = m; m == nil {             // deleted since: what a subscriber would have seen
			m, d.Retain = &message.Message{Topic: name, QoS: sub.Qos}, false
		}
		d.QoS = min(m.QoS, sub.Qos)
		if sub.Identifier > 0 {
			d.IDs = []int{sub.Identifier}
		}
		if !to.deliver(m, d) {
			return false
		}
	}
	return true
}

// retainedNow is the retained message of a topic, or nil.
func (r *Router) retainedNow(topic string) *message.Message {
	m, _ := r.Retained.Get(topic)
	return m
}

// A replayTarget is where a replay goes to: a connection at its speed, or a session, as fast as it is
// stored.
type replayTarget struct {
	r       *Router
	s       *Subscriber
	on      Connection    // that subscribed
	pending chan struct{} // one for each message that is being stored
	lost    atomic.Int64  // messages that were not stored
	why     atomic.Pointer[error]
}

// storing is how many messages of a replay are stored at a time.
const storing = 64

// room waits until the client keeps up; false if it gets nothing more.
func (t *replayTarget) room() bool {
	if t.s.Stored == nil {
		t.on.Transport().Room()
		return !t.on.Transport().Closed()
	}
	if few := t.s.Stored.FewUnsent(); few != nil {
		select {
		case <-few:
		case <-t.r.o.Context.Done():
		}
	}
	return t.r.o.Context.Err() == nil
}

// deliver sends a message, or stores it; false if the client gets nothing more.
func (t *replayTarget) deliver(m *message.Message, d message.Delivery) bool {
	if t.s.Stored == nil || d.QoS == 0 {
		if now := t.s.connection(); now != nil {
			return now.Deliver(&message.Frames{Message: m}, d) || t.s.Stored != nil
		}
		return t.s.Stored != nil
	}
	if !t.r.o.Access.MaySubscribe(t.s.ID, m.Topic) { // else it would be stored, and dropped as it is sent
		t.r.Withheld(t.s.ID)
		return true
	}
	t.pending <- struct{}{}
	t.r.StoreFor([]sessions.Target{{Session: t.s.Stored, Delivery: sessions.Delivery{QoS: d.QoS, Retain: d.Retain, Identifiers: d.IDs}}}, m, func(err error) {
		if err != nil {
			t.lost.Add(1)
			t.why.Store(&err)
		}
		<-t.pending
	})
	return true
}

// finish waits until all is stored, and says what is not.
func (t *replayTarget) finish() {
	for range storing {
		t.pending <- struct{}{}
	}
	if n := t.lost.Load(); n > 0 {
		t.r.o.Logger.Warn("retained messages are not stored for a new subscription", "client", refusals.Shortened(t.s.Client), "messages", n, "err", *t.why.Load())
	}
}
