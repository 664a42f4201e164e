// Package retained keeps the last message of each topic, in memory, until it is
// replaced, deleted, or its time is up.
package retained

import (
	"container/heap"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol/topic"
)

// A Store holds retained messages of type M by topic. Its methods may be called
// concurrently. A filter with wildcards looks at every topic.
type Store[M any] struct {
	mu      sync.RWMutex
	byTopic map[string]entry[M]
	due     dueHeap
	sys     int   // messages whose topic begins with $
	bytes   int64 // of topics and messages
}

// An entry is a message and what the store knows of it.
type entry[M any] struct {
	message M
	size    int
	due     *due // nil: it does not end
}

// A due is the end of a message.
type due struct {
	topic string
	at    time.Time
	index int // in the heap
}

// New returns an empty store.
func New[M any]() *Store[M] { return &Store[M]{byTopic: make(map[string]entry[M])} }

// Put keeps m in the place of the topic's former message. size is counted in
// Bytes. A zero expires means never. [MQTT-3.3.1-5]
func (s *Store[M]) Put(topic string, m M, size int, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(topic)
	e := entry[M]{message: m, size: size}
	if !expires.IsZero() {
		e.due = &due{topic: topic, at: expires}
		heap.Push(&s.due, e.due)
	}
	s.byTopic[topic] = e
	s.bytes += int64(len(topic) + size)
	if topic[0] == '$' {
		s.sys++
	}
}

// Delete forgets the message of a topic, if there is one. [MQTT-3.3.1-6]
func (s *Store[M]) Delete(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(topic)
}

func (s *Store[M]) dropLocked(topic string) {
	old, ok := s.byTopic[topic]
	if !ok {
		return
	}
	delete(s.byTopic, topic)
	if old.due != nil {
		heap.Remove(&s.due, old.due.index)
	}
	s.bytes -= int64(len(topic) + old.size)
	if topic[0] == '$' {
		s.sys--
	}
}

// Get returns the message of a topic; false if it has none, or its time is up.
func (s *Store[M]) Get(topic string) (m M, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.byTopic[topic]
	if !ok || e.due != nil && !time.Now().Before(e.due.at) {
		return m, false
	}
	return e.message, true
}

// Match returns the topics that a filter matches and that have a message, in no order.
func (s *Store[M]) Match(want string) []string {
	if !strings.ContainsAny(want, "+#") {
		if _, ok := s.Get(want); !ok {
			return nil
		}
		return []string{want}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for name := range s.byTopic {
		if topic.Matches(want, name) {
			names = append(names, name)
		}
	}
	return names
}

// Expire forgets the messages whose time is up. [MQTT-3.3.2-5]
func (s *Store[M]) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && !now.Before(s.due[0].at) {
		s.dropLocked(s.due[0].topic)
	}
}

// Count is the number of messages, without those whose topic begins with $.
func (s *Store[M]) Count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byTopic) - s.sys
}

// Bytes is the size of all messages and their topics.
func (s *Store[M]) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bytes
}

// dueHeap orders messages by their end.
type dueHeap []*due

// Len implements heap.Interface.
func (h dueHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

// Swap implements heap.Interface.
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	d := x.(*due)
	d.index = len(*h)
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return d
}
