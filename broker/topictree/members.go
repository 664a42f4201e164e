package topictree

import "slices"

// members are the subscribers to one filter, in an order that follows from the calls.
type members[S comparable] struct {
	list []Match[S]
	at   map[S]int // where each is in list; nil while the list is short
}

// few is up to how many members a search is as good as a map, and takes less memory:
// most filters have one subscriber.
const few = 8

// index returns where s is in the list, or -1.
func (m *members[S]) index(s S) int {
	if m.at == nil {
		return slices.IndexFunc(m.list, func(o Match[S]) bool { return o.To == s })
	}
	if i, ok := m.at[s]; ok {
		return i
	}
	return -1
}

// put adds s, or replaces its options.
func (m *members[S]) put(s S, o Options) {
	if i := m.index(s); i >= 0 {
		m.list[i].Options = o
		return
	}
	m.list = append(m.list, Match[S]{To: s, Options: o})
	switch {
	case m.at != nil:
		m.at[s] = len(m.list) - 1
	case len(m.list) > few:
		m.at = make(map[S]int, 2*few)
		for i := range m.list {
			m.at[m.list[i].To] = i
		}
	}
}

// remove takes s away, if it is there. The last member takes its place.
func (m *members[S]) remove(s S) {
	i := m.index(s)
	if i < 0 {
		return
	}
	last := len(m.list) - 1
	m.list[i] = m.list[last]
	m.list[last] = Match[S]{}
	m.list = m.list[:last]
	if m.at == nil {
		return
	}
	delete(m.at, s)
	if i < last {
		m.at[m.list[i].To] = i
	}
}
