package topictree

import "slices"

// few is up to how many items a search is as good as a map, and takes less memory:
// most filters have one subscriber.
const few = 8

// An item of a list has a key.
type item[K comparable] interface{ key() K }

// A list holds items by key, in an order that follows from the calls. To find, to add and to remove one takes
// the same time however many there are. The zero list is empty and takes no memory.
type list[K comparable, V item[K]] struct {
	items []V
	at    map[K]int // where each is in items; nil while the list is short
}

// index returns where the item with a key is, or -1.
func (l *list[K, V]) index(k K) int {
	if l.at == nil {
		return slices.IndexFunc(l.items, func(v V) bool { return v.key() == k })
	}
	if i, ok := l.at[k]; ok {
		return i
	}
	return -1
}

// add appends an item whose key is new.
func (l *list[K, V]) add(v V) {
	l.items = append(l.items, v)
	switch {
	case l.at != nil:
		l.at[v.key()] = len(l.items) - 1
	case len(l.items) > few:
		l.at = make(map[K]int, 2*few)
		for i := range l.items {
			l.at[l.items[i].key()] = i
		}
	}
}

// remove removes the item with a key, if it is there. The last one takes its place.
func (l *list[K, V]) remove(k K) {
	i := l.index(k)
	switch {
	case i < 0:
		return
	case len(l.items) == 1:
		*l = list[K, V]{}
		return
	}
	last := len(l.items) - 1
	l.items[i] = l.items[last]
	clear(l.items[last:])
	l.items = l.items[:last]
	if l.at == nil {
		return
	}
	delete(l.at, k)
	if i < last {
		l.at[l.items[i].key()] = i
	}
}

// members are the subscribers to one filter.
type members[S comparable] struct {
	list[S, Match[S]]
}

// put adds s, or replaces its options.
func (m *members[S]) put(s S, o Options) {
	if i := m.index(s); i >= 0 {
		m.items[i].Options = o
		return
	}
	m.add(Match[S]{To: s, Options: o})
}

// add makes or replaces the subscription of s, or its membership of a group.
func (a *audience[S]) add(name string, s S, o Options) {
	if name == "" {
		a.subs.put(s, o)
		return
	}
	if a.groups == nil {
		a.groups = &list[string, *group[S]]{}
	}
	at := a.groups.index(name)
	if at < 0 {
		at = len(a.groups.items)
		a.groups.add(&group[S]{name: name})
	}
	a.groups.items[at].put(s, o)
}

// remove ends a subscription, or a membership of a group, and reports whether none is left.
func (a *audience[S]) remove(name string, s S) bool {
	switch {
	case name == "":
		a.subs.remove(s)
	case a.groups == nil:
	default:
		a.leave(name, s)
	}
	return a.empty()
}

// leave ends a membership of one of the groups.
func (a *audience[S]) leave(name string, s S) {
	at := a.groups.index(name)
	if at < 0 {
		return
	}
	g := a.groups.items[at]
	if g.remove(s); len(g.items) > 0 {
		return
	}
	if a.groups.remove(name); len(a.groups.items) == 0 {
		a.groups = nil
	}
}

func (a *audience[S]) empty() bool { return len(a.subs.items) == 0 && a.groups == nil }
