// Package topictree finds who subscribes to a topic. It keeps subscriptions by the
// levels of their filters, in memory.
package topictree

import (
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

// A node is one level of filters. The map is nil where it is empty.
type node[S comparable] struct {
	next   map[string]*node[S]
	subs   members[S]
	groups []*group[S] // shared subscriptions, in the order of their first members
}

// A group shares each message: one of its members gets it.
type group[S comparable] struct {
	name string
	members[S]
	turn atomic.Uint64 // counts the messages, so that each member is the first in turn
}

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
		child := n.next[level]
		if child == nil {
			if n.next == nil {
				n.next = make(map[string]*node[S], 1)
			}
			child = &node[S]{}
			n.next[strings.Clone(level)] = child // the level alone: the filter is part of a larger packet
		}
		n = child
	}
	if name == "" {
		n.subs.put(s, o)
		return
	}
	at := n.group(name)
	if at < 0 {
		at = len(n.groups)
		n.groups = append(n.groups, &group[S]{name: name})
	}
	n.groups[at].put(s, o)
}

// group returns the index of a group, or -1.
func (n *node[S]) group(name string) int {
	return slices.IndexFunc(n.groups, func(g *group[S]) bool { return g.name == name })
}

// Remove takes the subscription of s to a filter away, and with it the levels that
// nobody uses any more.
func (t *Tree[S]) Remove(s S, from string) {
	group, plain := filter.Split(from)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.root.remove(s, group, plain, true)
}

// remove reports whether n is empty afterwards.
func (n *node[S]) remove(s S, group, rest string, more bool) bool {
	switch {
	case more:
		level, rest, more := strings.Cut(rest, "/")
		if child := n.next[level]; child != nil && child.remove(s, group, rest, more) {
			delete(n.next, level)
		}
	case group == "":
		n.subs.remove(s)
	default:
		if at := n.group(group); at >= 0 {
			if n.groups[at].remove(s); len(n.groups[at].list) == 0 {
				n.groups = slices.Delete(n.groups, at, at+1)
			}
		}
	}
	return len(n.next) == 0 && len(n.subs.list) == 0 && len(n.groups) == 0
}

// Find returns the subscriptions that match a topic. [MQTT-4.7.1-1] [MQTT-4.7.1-2]
// [MQTT-4.7.2-1] Their order follows from that of the calls of Add, Remove and Find,
// and from nothing else.
func (t *Tree[S]) Find(topic string) Found[S] {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var f finder[S]
	f.walk(&t.root, topic, true, topic[0] == '$')
	if f.several {
		f.found.Plain = merge(f.found.Plain)
	}
	return f.found
}

type finder[S comparable] struct {
	found   Found[S]
	several bool // more than one filter matched, so a subscriber may be found twice
}

// walk looks below n, whose filters match what stands before topic. reserved
// topics are not matched by a wildcard in the first level.
func (f *finder[S]) walk(n *node[S], topic string, more, reserved bool) {
	if all := n.next["#"]; all != nil && !reserved {
		f.add(all) // at the end of the topic too: a/# matches a
	}
	if !more {
		f.add(n)
		return
	}
	level, rest, more := strings.Cut(topic, "/")
	if child := n.next[level]; child != nil {
		f.walk(child, rest, more, false)
	}
	if any := n.next["+"]; any != nil && !reserved {
		f.walk(any, rest, more, false)
	}
}

func (f *finder[S]) add(n *node[S]) {
	if len(n.subs.list) > 0 {
		f.several = f.several || len(f.found.Plain) > 0
		f.found.Plain = append(f.found.Plain, n.subs.list...)
	}
	for _, g := range n.groups {
		first := int((g.turn.Add(1) - 1) % uint64(len(g.list)))
		f.found.Shared = append(f.found.Shared, slices.Concat(g.list[first:], g.list[:first]))
	}
}

// merge makes one match of all those of a subscriber: a message comes once, with
// the highest QoS and all identifiers. [MQTT-3.3.4-2] [MQTT-3.3.4-3] One that asks
// for no local, or for retain as published, in one of them gets it for all.
func merge[S comparable](found []Match[S]) []Match[S] {
	at := make(map[S]int, len(found))
	out := found[:0]
	for _, m := range found {
		i, again := at[m.To]
		if !again {
			at[m.To] = len(out)
			out = append(out, m)
			continue
		}
		o := &out[i]
		o.QoS = max(o.QoS, m.QoS)
		o.NoLocal = o.NoLocal || m.NoLocal
		o.RetainAsPublished = o.RetainAsPublished || m.RetainAsPublished
		if m.Identifier > 0 {
			o.more = append(o.more, m.Identifier)
		}
	}
	return out
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
