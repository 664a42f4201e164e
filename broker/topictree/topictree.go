// Package topictree finds who subscribes to a topic. It keeps subscriptions by the
// levels of their filters, in memory.
package topictree

import (
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/colonyfleet/colony/broker/filter"
)

// A Tree holds the subscriptions of subscribers of type S. The zero Tree is empty.
// Its methods may be called concurrently.
type Tree[S comparable] struct {
	mu   sync.RWMutex
	root node[S]
}

// A node is one level of filters.
type node[S comparable] struct {
	next   map[string]*node[S] // by literal level; nil where it is empty
	one    *node[S]            // the level +; nil: there is none
	all    *node[S]            // the level #; nil: there is none
	subs   members[S]
	groups list[string, *group[S]] // shared subscriptions
}

// A group shares each message: one of its members gets it.
type group[S comparable] struct {
	name string
	members[S]
	turn atomic.Uint64 // counts the messages, so that each member is the first in turn
}

func (g *group[S]) key() string { return g.name }

// Options are what of a subscription matters to a delivery.
type Options struct {
	Identifier        int // 0: none
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
}

// A Match is one subscriber's share of a message: all of its subscriptions, other
// than shared ones, that match, made one; or one of its shared ones.
type Match[S comparable] struct {
	To S
	Options
	more []int // identifiers of further subscriptions
}

func (m Match[S]) key() S { return m.To }

// Found is what a message goes to.
type Found[S comparable] struct {
	Plain  []Match[S]
	Shared [][]Match[S] // of each group one is to get the message
}

// Add makes or replaces the subscription of s to a valid filter. [MQTT-3.8.4-3]
func (t *Tree[S]) Add(s S, to string, o Options) {
	name, plain := filter.Split(to)
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &t.root
	for level, rest, more := "", plain, true; more; {
		level, rest, more = strings.Cut(rest, "/")
		n = n.child(level)
	}
	if name == "" {
		n.subs.put(s, o)
		return
	}
	at := n.groups.index(name)
	if at < 0 {
		at = len(n.groups.items)
		n.groups.add(&group[S]{name: name})
	}
	n.groups.items[at].put(s, o)
}

// child returns the node of a level below n, and makes it if there is none.
func (n *node[S]) child(level string) *node[S] {
	switch level {
	case "+":
		return made(&n.one)
	case "#":
		return made(&n.all)
	}
	child := n.next[level]
	if child == nil {
		if n.next == nil {
			n.next = make(map[string]*node[S], 1)
		}
		child = &node[S]{}
		n.next[strings.Clone(level)] = child // the level alone: the filter is part of a larger packet
	}
	return child
}

func made[S comparable](n **node[S]) *node[S] {
	if *n == nil {
		*n = &node[S]{}
	}
	return *n
}

// Remove ends the subscription of s to a valid filter, if it has one.
func (t *Tree[S]) Remove(s S, from string) { t.RemoveAll(s, slices.Values([]string{from})) }

// removeAtOnce is how many subscriptions RemoveAll ends while messages wait for it. Each time it has waited for all
// that look for subscribers.
const removeAtOnce = 512

// RemoveAll ends the subscriptions of s to valid filters, where it has them. Messages are routed meanwhile.
func (t *Tree[S]) RemoveAll(s S, from iter.Seq[string]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for f := range from {
		if n++; n%removeAtOnce == 0 {
			t.mu.Unlock()
			t.mu.Lock()
		}
		group, plain := filter.Split(f)
		t.root.remove(s, group, plain, true)
	}
}

// remove removes a subscription below n, and reports whether n is empty then.
func (n *node[S]) remove(s S, group, rest string, more bool) bool {
	switch {
	case more:
		level, rest, more := strings.Cut(rest, "/")
		switch level {
		case "+":
			if n.one != nil && n.one.remove(s, group, rest, more) {
				n.one = nil
			}
		case "#":
			if n.all != nil && n.all.remove(s, group, rest, more) {
				n.all = nil
			}
		default:
			if child := n.next[level]; child != nil && child.remove(s, group, rest, more) {
				delete(n.next, level)
			}
		}
	case group == "":
		n.subs.remove(s)
	default:
		if at := n.groups.index(group); at >= 0 {
			g := n.groups.items[at]
			if g.remove(s); len(g.items) == 0 {
				n.groups.remove(group)
			}
		}
	}
	return n.empty()
}

func (n *node[S]) empty() bool {
	return len(n.next) == 0 && n.one == nil && n.all == nil && len(n.subs.items) == 0 && len(n.groups.items) == 0
}

// Find returns the subscriptions that match a topic. [MQTT-4.7.1-1] [MQTT-4.7.1-2]
// [MQTT-4.7.2-1] Their order follows from that of the calls of Add, Remove and Find,
// and from nothing else.
func (t *Tree[S]) Find(topic string) Found[S] {
	var found Found[S]
	t.FindInto(&found, topic)
	return found
}

// FindInto is Find with the memory of an answer that was cleared.
func (t *Tree[S]) FindInto(found *Found[S], topic string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f := finder[S]{found: found}
	f.walk(&t.root, topic, true, topic[0] == '$')
}

// Clear empties an answer, and keeps its memory.
func (f *Found[S]) Clear() {
	clear(f.Plain[:cap(f.Plain)])
	clear(f.Shared[:cap(f.Shared)])
	f.Plain, f.Shared = f.Plain[:0], f.Shared[:0]
}

// A finder collects what matches a topic.
type finder[S comparable] struct {
	found *Found[S]
	at    map[S]int // where each subscriber is in found.Plain; nil while one filter matches
}

// walk adds what matches below n. more says that levels of the topic are left, in topic;
// reserved, that wildcards do not match this one. [MQTT-4.7.2-1]
func (f *finder[S]) walk(n *node[S], topic string, more, reserved bool) {
	if n.all != nil && !reserved {
		f.add(n.all) // at the end of the topic too: a/# matches a
	}
	if !more {
		f.add(n)
		return
	}
	level, rest, more := strings.Cut(topic, "/")
	if child := n.next[level]; child != nil {
		f.walk(child, rest, more, false)
	}
	if n.one != nil && !reserved {
		f.walk(n.one, rest, more, false)
	}
}

func (f *finder[S]) add(n *node[S]) {
	switch {
	case len(n.subs.items) == 0:
	case len(f.found.Plain) == 0:
		f.found.Plain = append(f.found.Plain, n.subs.items...)
	default:
		f.merge(n.subs.items)
	}
	for _, g := range n.groups.items {
		first := int((g.turn.Add(1) - 1) % uint64(len(g.items)))
		f.found.Shared = append(f.found.Shared, slices.Concat(g.items[first:], g.items[:first]))
	}
}

// merge adds the subscriptions to a further filter. It makes one match of all those of a subscriber: a message comes
// once, with the highest QoS and all identifiers. [MQTT-3.3.4-2] [MQTT-3.3.4-3] One that asks
// for no local, or for retain as published, in one of them gets it for all.
func (f *finder[S]) merge(list []Match[S]) {
	if f.at == nil {
		f.at = make(map[S]int, len(f.found.Plain))
		for i := range f.found.Plain {
			f.at[f.found.Plain[i].To] = i
		}
	}
	for i := range list {
		m := &list[i]
		at, again := f.at[m.To]
		if !again {
			f.at[m.To] = len(f.found.Plain)
			f.found.Plain = append(f.found.Plain, *m)
			continue
		}
		o := &f.found.Plain[at]
		o.QoS = max(o.QoS, m.QoS)
		o.NoLocal = o.NoLocal || m.NoLocal
		o.RetainAsPublished = o.RetainAsPublished || m.RetainAsPublished
		if m.Identifier > 0 {
			o.more = append(o.more, m.Identifier)
		}
	}
}

// Identifiers are those to send with the message, in order, each once. [MQTT-3.3.4-4]
func (m Match[S]) Identifiers() []int {
	if m.Identifier == 0 && len(m.more) == 0 {
		return nil
	}
	ids := append([]int(nil), m.more...)
	if m.Identifier > 0 {
		ids = append(ids, m.Identifier)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
