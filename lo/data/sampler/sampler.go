// Package sampler decides which messages of a data rule are forwarded, topic by topic,
// as its protocol.Sample says. It is pure: the time is handed in.
package sampler

import (
	"container/list"
	"crypto/sha256"
	"math"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Verdict is what is to be done with a message.
type Verdict int

// The verdicts.
const (
	// Forward: it is forwarded now.
	Forward Verdict = iota
	// Leave: it is left out and never forwarded.
	Leave
	// Hold: the sampler keeps it, until Due or Flush returns it.
	Hold
	// Replace is Hold, and the message that was held before it is left out.
	Replace
)

// A Sampler remembers the last message of each topic. A topic that it had to forget is
// like a new one: its next message is forwarded. It is for one goroutine at a time.
type Sampler[M any] struct {
	rule      protocol.Sample
	period    time.Duration
	maxTopics int

	topics map[string]*list.Element // of *state[M]
	byAge  *list.List               // oldest first: by last use, and for SampleLast by when it is due
	ready  []M                      // held before their topics had to be forgotten
}

type state[M any] struct {
	topic string
	at    time.Time // of the last forwarded message, or when the held one is due
	held  M

	sum      [sha256.Size]byte // of the last forwarded payload
	number   float64           // in it
	isNumber bool
}

// New returns a sampler that remembers at most maxTopics topics. The rule must be valid.
func New[M any](rule protocol.Sample, maxTopics int) *Sampler[M] {
	return &Sampler[M]{
		rule: rule, period: time.Duration(rule.PeriodMillis) * time.Millisecond, maxTopics: max(maxTopics, 1),
		topics: map[string]*list.Element{}, byAge: list.New(),
	}
}

// Offer decides on the next message m of a topic, with its payload.
func (s *Sampler[M]) Offer(topic string, payload []byte, m M, now time.Time) Verdict {
	if s.rule.Mode == protocol.SampleAll {
		return Forward
	}
	e := s.topics[topic]
	if s.rule.Mode == protocol.SampleLast {
		if e != nil {
			e.Value.(*state[M]).held = m
			return Replace
		}
		s.add(&state[M]{topic: topic, at: now.Add(s.period), held: m})
		return Hold
	}
	next := s.measure(topic, payload, now)
	if e == nil {
		s.add(next)
		return Forward
	}
	last := e.Value.(*state[M])
	s.byAge.MoveToBack(e)
	if !s.differs(last, next) && (s.period == 0 || now.Sub(last.at) < s.period) {
		return Leave
	}
	*last = *next
	return Forward
}

// Passed notes a message that is forwarded without a verdict, such as a retained one.
// It replaces the message of its topic that is held, and returns that one.
func (s *Sampler[M]) Passed(topic string, payload []byte, now time.Time) (old M, replaced bool) {
	e := s.topics[topic]
	switch {
	case s.rule.Mode == protocol.SampleAll:
	case s.rule.Mode == protocol.SampleLast:
		if e != nil {
			old, replaced = e.Value.(*state[M]).held, true
			s.remove(e)
		}
	case e != nil:
		*e.Value.(*state[M]) = *s.measure(topic, payload, now)
		s.byAge.MoveToBack(e)
	default:
		s.add(s.measure(topic, payload, now))
	}
	return old, replaced
}

// Restore holds a message of SampleLast, which Due, Flush or Passed returned and which
// could not be forwarded, for another period. It reports false where a later one of its
// topic is held, which is then the last of both periods.
func (s *Sampler[M]) Restore(topic string, m M, now time.Time) bool {
	if s.topics[topic] != nil {
		return false
	}
	s.add(&state[M]{topic: topic, at: now.Add(s.period), held: m})
	return true
}

// Forget makes a topic like a new one, because its last message could not be forwarded.
// A held message stays.
func (s *Sampler[M]) Forget(topic string) {
	if e := s.topics[topic]; e != nil && s.rule.Mode != protocol.SampleLast {
		s.remove(e)
	}
}

// Due removes and returns the messages whose period has ended, in the order in which
// the periods began. Each call returns a slice of its own.
func (s *Sampler[M]) Due(now time.Time) []M {
	due := s.ready
	s.ready = nil
	if s.rule.Mode != protocol.SampleLast {
		return due
	}
	for e := s.byAge.Front(); e != nil; e = s.byAge.Front() {
		st := e.Value.(*state[M])
		if st.at.After(now) {
			break
		}
		due = append(due, st.held)
		s.remove(e)
	}
	return due
}

// Next returns when Due will have something; ok is false while nothing is held.
func (s *Sampler[M]) Next() (at time.Time, ok bool) {
	if len(s.ready) > 0 {
		return time.Time{}, true
	}
	if s.rule.Mode != protocol.SampleLast || s.byAge.Len() == 0 {
		return time.Time{}, false
	}
	return s.byAge.Front().Value.(*state[M]).at, true
}

// Flush removes and returns all held messages, due or not, and forgets everything.
func (s *Sampler[M]) Flush() []M {
	out := s.ready
	if s.rule.Mode == protocol.SampleLast {
		for e := s.byAge.Front(); e != nil; e = e.Next() {
			out = append(out, e.Value.(*state[M]).held)
		}
	}
	s.ready = nil
	clear(s.topics)
	s.byAge.Init()
	return out
}

// Held returns what is held of a topic.
func (s *Sampler[M]) Held(topic string) (m M, ok bool) {
	e := s.topics[topic]
	if e == nil || s.rule.Mode != protocol.SampleLast {
		return m, false
	}
	return e.Value.(*state[M]).held, true
}

// Topics returns how many topics are known.
func (s *Sampler[M]) Topics() int { return s.byAge.Len() }

func (s *Sampler[M]) add(st *state[M]) {
	if s.byAge.Len() >= s.maxTopics {
		oldest := s.byAge.Front()
		if s.rule.Mode == protocol.SampleLast {
			s.ready = append(s.ready, oldest.Value.(*state[M]).held)
		}
		s.remove(oldest)
	}
	s.topics[st.topic] = s.byAge.PushBack(st)
}

func (s *Sampler[M]) remove(e *list.Element) {
	delete(s.topics, e.Value.(*state[M]).topic)
	s.byAge.Remove(e)
}

// measure returns what is remembered of a forwarded message.
func (s *Sampler[M]) measure(topic string, payload []byte, now time.Time) *state[M] {
	st := &state[M]{topic: topic, at: now}
	if s.rule.Mode == protocol.SampleChange {
		st.sum = sha256.Sum256(payload)
		return st
	}
	st.number, st.isNumber = number(payload, s.rule.Field)
	return st
}

func (s *Sampler[M]) differs(last, next *state[M]) bool {
	if s.rule.Mode == protocol.SampleChange {
		return last.sum != next.sum
	}
	if !last.isNumber || !next.isNumber {
		return true // a payload without a number is forwarded, and so is the first one after it
	}
	if last.number == next.number {
		return false // also where the deadband is in hundredths of 0
	}
	band := s.rule.Deadband
	if s.rule.Percent {
		band *= math.Abs(last.number) / 100
	}
	return math.Abs(next.number-last.number) >= band
}
