package peers

import "container/list"

// Strangers are connections that have not identified themselves, by network. Each call takes constant time, independent of
// their number.
type strangers struct {
	networks map[string]*network
	levels   map[int]*list.List // networks by how many they have, each in the sequence in which it came to so many
	most     int
}

// A network is one that has strangers.
type network struct {
	entries *list.List // in the sequence of their beginnings
	at      *list.Element
}

func newStrangers() *strangers {
	return &strangers{networks: map[string]*network{}, levels: map[int]*list.List{}}
}

// of is how many a network has.
func (s *strangers) of(name string) int {
	if n := s.networks[name]; n != nil {
		return n.entries.Len()
	}
	return 0
}

// add has a connection be a stranger.
func (s *strangers) add(e *Entry) {
	n := s.networks[e.network]
	if n == nil {
		n = &network{entries: list.New()}
		s.networks[e.network] = n
	}
	e.stranger = n.entries.PushBack(e)
	s.sort(e.network, n, n.entries.Len()-1)
}

// remove has a connection be none any more.
func (s *strangers) remove(e *Entry) {
	if e.stranger == nil {
		return
	}
	n := s.networks[e.network]
	n.entries.Remove(e.stranger)
	e.stranger = nil
	s.sort(e.network, n, n.entries.Len()+1)
	if n.entries.Len() == 0 {
		delete(s.networks, e.network)
	}
}

// sort puts a network, which had so many before, among those that have as many.
func (s *strangers) sort(name string, n *network, had int) {
	if n.at != nil {
		s.levels[had].Remove(n.at)
		if n.at = nil; s.levels[had].Len() == 0 {
			delete(s.levels, had)
		}
	}
	has := n.entries.Len()
	if has > 0 {
		if s.levels[has] == nil {
			s.levels[has] = list.New()
		}
		n.at = s.levels[has].PushBack(name)
	}
	if s.most = max(s.most, has); s.levels[s.most] == nil {
		s.most = has // one fewer than before
	}
}

// guilty is the stranger that gives way to a new one of a network: the first of the network that has most, if it has more
// than that one; nil: none does.
func (s *strangers) guilty(of string) *Entry {
	if s.most <= s.of(of) {
		return nil
	}
	name, _ := s.levels[s.most].Front().Value.(string)
	e, _ := s.networks[name].entries.Front().Value.(*Entry)
	return e
}
