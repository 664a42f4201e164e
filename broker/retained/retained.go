// Package retained keeps the last message of each topic, in memory, until it is
// replaced, deleted, or its time is up. It bounds what each owner may keep.
package retained

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol/topic"
)

// overhead is about what the store and the broker need for a message beside the bytes
// of its topic, properties and payload. It is counted, so that many small messages
// are bounded as well as a few large ones.
const overhead = 256

// Limits bound the memory of retained messages, in bytes as Size counts them.
type Limits struct {
	All      int64 // of all owners
	PerOwner int64 // bound of one owner
}

// Size is what a message counts for. bytes are those of topic, properties and payload.
func Size(bytes int) int64 { return int64(bytes) + overhead }

// A Store holds retained messages of type M by topic. Its methods may be called
// concurrently. A filter with wildcards looks at every topic.
type Store[M any] struct {
	limits Limits

	mu      sync.RWMutex
	byTopic map[string]entry[M]
	byAge   []arrival // of the topics, by the time of their first message
	removed int       // arrivals without a topic
	last    uint64    // the number of the newest arrival
	due     dueHeap
	sys     int              // messages whose topic begins with $
	sysSize int64            // what they count for
	bytes   int64            // of all messages and reservations
	clients int64            // the same without those of the owner ""
	owners  map[string]int64 // the same by owner, without ""
}

// An entry is a message and what the store knows of it.
type entry[M any] struct {
	message M
	owner   string
	size    int64
	number  uint64 // of its arrival
	due     *due   // nil: it does not end
}

// An arrival is a topic in the order in which topics came.
type arrival struct {
	number uint64
	topic  string // "": its message was removed
}

// A due is the end of a message.
type due struct {
	topic string
	at    time.Time
	index int // in the heap
}

// New returns an empty store.
func New[M any](l Limits) *Store[M] {
	return &Store[M]{limits: l, byTopic: make(map[string]entry[M]), owners: make(map[string]int64)}
}

// Reserve takes room for a message that owner is about to Put. Without an error it is
// given back with Release, after Put or in its place. The owner "" is not limited.
// which names the limit that leaves no room, if there is none.
func (s *Store[M]) Reserve(topic, owner string, size int64) (ok bool, which string) {
	if owner == "" {
		return true, ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byTopic[topic]
	replaced := old.size
	if old.owner == "" {
		replaced = 0 // it was not counted among those of clients
	}
	if s.clients+size-replaced > s.limits.All {
		return false, "all clients"
	}
	if old.owner != owner {
		old.size = 0
	}
	if s.owners[owner]+size-old.size > s.limits.PerOwner {
		return false, owner
	}
	s.count(owner, size)
	return true, ""
}

// Release gives a reservation back.
func (s *Store[M]) Release(owner string, size int64) {
	if owner == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(owner, -size)
}

func (s *Store[M]) count(owner string, n int64) {
	s.bytes += n
	if owner == "" {
		return
	}
	s.clients += n
	if s.owners[owner] += n; s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
}

// A Message is what Put keeps. Size is from the function of that name; a zero Expires
// means never.
type Message[M any] struct {
	Topic   string
	Value   M
	Owner   string
	Size    int64
	Expires time.Time
}

// Put keeps m in the place of the topic's former message. [MQTT-3.3.1-5]
func (s *Store[M]) Put(m Message[M]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := entry[M]{message: m.Value, owner: m.Owner, size: m.Size}
	if old, ok := s.byTopic[m.Topic]; ok {
		s.endLocked(m.Topic, old)
		e.number = old.number
	} else {
		s.last++
		e.number = s.last
		s.byAge = append(s.byAge, arrival{s.last, m.Topic})
		if m.Topic[0] == '$' {
			s.sys++
		}
	}
	if !m.Expires.IsZero() {
		e.due = &due{topic: m.Topic, at: m.Expires}
		heap.Push(&s.due, e.due)
	}
	s.byTopic[m.Topic] = e
	s.count(m.Owner, m.Size)
	if m.Topic[0] == '$' {
		s.sysSize += m.Size
	}
}

// endLocked stops counting a message.
func (s *Store[M]) endLocked(topic string, e entry[M]) {
	if topic[0] == '$' {
		s.sysSize -= e.size
	}
	if e.due != nil {
		heap.Remove(&s.due, e.due.index)
	}
	s.count(e.owner, -e.size)
}

// Delete forgets the message of a topic, if there is one. [MQTT-3.3.1-6]
func (s *Store[M]) Delete(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteLocked(topic)
}

func (s *Store[M]) deleteLocked(topic string) {
	old, ok := s.byTopic[topic]
	if !ok {
		return
	}
	s.endLocked(topic, old)
	delete(s.byTopic, topic)
	if topic[0] == '$' {
		s.sys--
	}
	s.byAge[s.find(old.number)].topic = ""
	if s.removed++; s.removed > 64 && s.removed > len(s.byAge)/2 {
		s.byAge = slices.DeleteFunc(s.byAge, func(a arrival) bool { return a.topic == "" })
		s.removed = 0
	}
}

// find returns the index of the first arrival with this number or a higher one.
func (s *Store[M]) find(number uint64) int {
	i, _ := slices.BinarySearchFunc(s.byAge, number, func(a arrival, n uint64) int {
		switch {
		case a.number < n:
			return -1
		case a.number > n:
			return 1
		}
		return 0
	})
	return i
}

// Get returns the message of a topic; false if it has none, or its time is up.
func (s *Store[M]) Get(topic string) (m M, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.byTopic[topic]
	if !ok || e.over(time.Now()) {
		return m, false
	}
	return e.message, true
}

// over reports whether the message's time is up.
func (e *entry[M]) over(now time.Time) bool { return e.due != nil && !now.Before(e.due.at) }

// A Cursor stands in the topics that a filter matches. It costs nothing to keep.
type Cursor struct {
	filter     string
	next, last uint64 // numbers of places: those from next to last are to be looked at
}

// Find returns a cursor over the topics that a filter matches now.
func (s *Store[M]) Find(filter string) Cursor {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Cursor{filter: filter, last: s.last}
}

// lookAtOnce is how many topics Next looks at; it holds the store meanwhile.
const lookAtOnce = 4096

// Next returns some topics that had a message when the cursor was made and have one
// now, in the order of their first message, and moves the cursor behind them. done
// says that there are no more; without it there may be none in names all the same.
func (s *Store[M]) Next(c *Cursor) (names []string, done bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !strings.ContainsAny(c.filter, "+#") {
		if e, ok := s.byTopic[c.filter]; !ok || e.number > c.last || e.over(time.Now()) {
			return nil, true
		}
		return []string{c.filter}, true
	}
	i := s.find(c.next)
	for end := min(len(s.byAge), i+lookAtOnce); i < end && s.byAge[i].number <= c.last; i++ {
		if name := s.byAge[i].topic; name != "" && topic.Matches(c.filter, name) {
			names = append(names, name)
		}
		c.next = s.byAge[i].number + 1
	}
	return names, i == len(s.byAge) || s.byAge[i].number > c.last
}

// Expire forgets the messages whose time is up. [MQTT-3.3.2-5]
func (s *Store[M]) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && !now.Before(s.due[0].at) {
		s.deleteLocked(s.due[0].topic)
	}
}

// Count is the number of messages, without those whose topic begins with $.
func (s *Store[M]) Count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byTopic) - s.sys
}

// Bytes is the memory of the messages that Count counts, about.
func (s *Store[M]) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bytes - s.sysSize
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
