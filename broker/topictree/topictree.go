// Package topictree finds the subscribers of a topic. It keeps subscriptions by the levels of their
// filters, in memory.
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

// A node is where filters part, or where some end. There are fewer than twice as many as filters, however many levels those have: levels at
// which nothing parts and nothing ends are in the label of the node below.
type node[S comparable] struct {
	label string       // the levels after the one that leads to the node, with a / before each: those of filters, without #
	next  branches[S]  // by the first level below, unless that is + or #
	one   *node[S]     // the first level below is +; nil: there is none
	all   *audience[S] // the level below is #; nil: there is none
	audience[S]
}

// An audience is the subscribers of one filter.
type audience[S comparable] struct {
	subs   members[S]
	groups *list[string, *group[S]] // shared subscriptions; nil: there are none
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
	// Steps is the work of the search, without that for further subscribers. A step is a place of the tree that was looked at, 16 bytes of
	// filters there, a further subscription of one client to the topic, or a member of a shared subscription; a shared subscription has
	// some more. A step takes about 0.1 µs.
	Steps int
}

// Add makes or replaces the subscription of s to a valid filter. [MQTT-3.8.4-3]
func (t *Tree[S]) Add(s S, to string, o Options) {
	name, plain := filter.Split(to)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.root.reach(plain).add(name, s, o)
}

// reach returns the audience of a filter, of which path is what lies below n. It makes the nodes that are missing. The filter is part of
// a larger packet, so that copies are kept.
func (n *node[S]) reach(path string) *audience[S] {
	for {
		if path == "#" {
			if n.all == nil {
				n.all = &audience[S]{}
			}
			return n.all
		}
		level, rest := first(path)
		child := n.below(level)
		if child == nil {
			label, _ := strings.CutSuffix(rest, "/#")
			child = &node[S]{label: strings.Clone(label)}
			n.put(strings.Clone(level), child)
		}
		common := sharedLevels(child.label, rest)
		if common < len(child.label) {
			child = child.split(common)
			n.put(strings.Clone(level), child)
		}
		if common == len(rest) {
			return &child.audience
		}
		path, n = rest[common+1:], child
	}
}

// first returns the first level of a path, and what follows, with the / before it.
func first(path string) (level, rest string) {
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// below returns the node to which a level leads, or nil.
func (n *node[S]) below(level string) *node[S] {
	if level == "+" {
		return n.one
	}
	return n.next.get(level)
}

// put makes a level lead to a node.
func (n *node[S]) put(level string, child *node[S]) {
	if level == "+" {
		n.one = child
		return
	}
	n.next.put(level, child)
}

// drop is the inverse of put.
func (n *node[S]) drop(level string) {
	if level == "+" {
		n.one = nil
		return
	}
	n.next.remove(level)
}

// split returns a new node above n with so many bytes of the label, which are whole levels and not all of them.
func (n *node[S]) split(at int) *node[S] {
	above := &node[S]{label: strings.Clone(n.label[:at])} // a copy: the other filter may be a long one that ends sooner
	level, label := first(n.label[at+1:])
	n.label = label
	above.put(level, n)
	return above
}

// sharedLevels returns how many bytes the levels have that two labels have in common.
func sharedLevels(x, y string) (n int) {
	for i := 0; ; i++ {
		xEnds, yEnds := i == len(x) || x[i] == '/', i == len(y) || y[i] == '/'
		if xEnds && yEnds {
			n = i
		}
		if i == len(x) || i == len(y) || x[i] != y[i] {
			return n
		}
	}
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
		t.root.remove(group, s, plain)
	}
}

// remove ends a subscription below n.
func (n *node[S]) remove(group string, s S, path string) {
	if path == "#" {
		if n.all != nil && n.all.remove(group, s) {
			n.all = nil
		}
		return
	}
	level, rest := first(path)
	child := n.below(level)
	if child == nil {
		return
	}
	switch below, in := strings.CutPrefix(rest, child.label); {
	case !in:
		return
	case below == "":
		child.audience.remove(group, s)
	case below[0] == '/':
		child.remove(group, s, below[1:])
	default:
		return
	}
	if child.empty() {
		n.drop(level)
	} else if next, only := child.only(); only != nil {
		only.label = child.label + "/" + next + only.label
		n.put(strings.Clone(level), only)
	}
}

// only returns the one node below n and the level that leads to it, if n stands for nothing else; else nil.
func (n *node[S]) only() (level string, child *node[S]) {
	switch {
	case n.all != nil || !n.audience.empty() || n.next.len() > 1 || n.next.len() == 1 && n.one != nil:
		return "", nil
	case n.one != nil:
		return "+", n.one
	}
	return n.next.first()
}

func (n *node[S]) empty() bool {
	return n.next.len() == 0 && n.one == nil && n.all == nil && n.audience.empty()
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

// Exceeds reports whether it takes more than so many steps, and so many more for each subscriber, to find the subscriptions that match
// a topic. It looks no further than that.
func (t *Tree[S]) Exceeds(topic string, steps, each int) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f := finder[S]{found: &Found[S]{}, most: steps, each: each, tries: true}
	f.walk(&t.root, topic, true, topic[0] == '$')
	return f.exceeds()
}

// Clear empties an answer, and keeps its memory.
func (f *Found[S]) Clear() {
	clear(f.Plain[:cap(f.Plain)])
	clear(f.Shared[:cap(f.Shared)])
	f.Plain, f.Shared, f.Steps = f.Plain[:0], f.Shared[:0], 0
}

// A finder collects what matches a topic.
type finder[S comparable] struct {
	found *Found[S]
	at    map[S]int // where each subscriber is in found.Plain; nil while it is searched instead
	seen  int       // subscribers that such searches looked at, at most
	tries bool      // the steps alone are asked for, up to more than most
	most  int
	each  int // that most is more for each subscriber
}

func (f *finder[S]) exceeds() bool { return f.found.Steps > f.most+f.each*len(f.found.Plain) }

// mostSeen is how many subscribers are looked at before it is worth a map: that of 100, of a message that they all get, takes as long as
// to look at some thousand.
const mostSeen = 1024

// index returns where a subscriber is in found.Plain, or -1.
func (f *finder[S]) index(s S) int {
	if f.at != nil {
		if i, ok := f.at[s]; ok {
			return i
		}
		return -1
	}
	for i := range f.found.Plain {
		if f.found.Plain[i].To == s {
			return i
		}
	}
	return -1
}

// walk adds what matches below n. more says that levels of the topic are left, in topic;
// reserved, that wildcards do not match this one. [MQTT-4.7.2-1]
func (f *finder[S]) walk(n *node[S], topic string, more, reserved bool) {
	if f.found.Steps++; f.tries && f.exceeds() {
		return
	}
	if n.all != nil && !reserved {
		f.add(n.all) // at the end of the topic too: a/# matches a
	}
	if !more {
		f.add(&n.audience)
		return
	}
	level, rest := first(topic)
	if child := n.next.get(level); child != nil {
		f.enter(child, rest)
	}
	if n.one != nil && !reserved {
		f.enter(n.one, rest)
	}
}

// bytesPerStep is how many bytes of labels are compared in the time that a step takes.
const bytesPerStep = 16

// enter adds what matches from the label of n on. topic is what follows the level that leads to n.
func (f *finder[S]) enter(n *node[S], topic string) {
	rest, ok := follow(n.label, topic)
	f.found.Steps += (len(topic) - len(rest)) / bytesPerStep
	switch {
	case !ok:
		f.found.Steps++
	case rest == "":
		f.walk(n, "", false, false)
	default:
		f.walk(n, rest[1:], true, false)
	}
}

// follow compares a label with what is left of a topic, in which no level is +. It returns what is left then, and whether the label matches.
func follow(label, topic string) (rest string, ok bool) {
	for {
		i := 0
		for i < len(label) && i < len(topic) && label[i] == topic[i] {
			i++
		}
		label, topic = label[i:], topic[i:]
		switch {
		case label == "":
			return topic, topic == "" || topic[0] == '/'
		case label[0] != '+':
			return topic, false
		}
		label = label[1:]
		_, topic = first(topic)
	}
}

// stepsPerGroup are those of a shared subscription, beside one for each of its members: what it takes to put these in their order.
const stepsPerGroup = 4

func (f *finder[S]) add(a *audience[S]) {
	switch {
	case len(a.subs.items) == 0:
	case len(f.found.Plain) == 0:
		f.found.Plain = append(f.found.Plain, a.subs.items...)
	default:
		f.merge(a.subs.items)
	}
	if a.groups == nil {
		return
	}
	for _, g := range a.groups.items {
		if f.found.Steps += stepsPerGroup + len(g.items); f.tries {
			continue
		}
		first := int((g.turn.Add(1) - 1) % uint64(len(g.items)))
		f.found.Shared = append(f.found.Shared, slices.Concat(g.items[first:], g.items[:first]))
	}
}

// merge adds the subscriptions to a further filter. It makes one match of all those of a subscriber: a message comes
// once, with the highest QoS and all identifiers. [MQTT-3.3.4-2] [MQTT-3.3.4-3] One that asks
// for no local, or for retain as published, in one of them gets it for all.
func (f *finder[S]) merge(list []Match[S]) {
	if f.seen += len(list) * (len(f.found.Plain) + len(list)); f.at == nil && f.seen > mostSeen {
		f.at = make(map[S]int, len(f.found.Plain))
		for i := range f.found.Plain {
			f.at[f.found.Plain[i].To] = i
		}
	}
	for i := range list {
		m := &list[i]
		at := f.index(m.To)
		if at < 0 {
			if f.at != nil {
				f.at[m.To] = len(f.found.Plain)
			}
			f.found.Plain = append(f.found.Plain, *m)
			continue
		}
		f.found.Steps++
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
