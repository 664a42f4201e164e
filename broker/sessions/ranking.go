package sessions

import "container/heap"

// A ranking finds the session that holds most, in messages or in bytes, in a time that hardly grows with their
// number. The committer alone uses it: only it puts messages into queues, so what a ranking knows of a session
// is what that holds, or more.
type ranking struct {
	byBytes bool
	heap    []ranked         // the first holds most, by what is known
	at      map[*Session]int // where each is in heap
}

// A ranked session held so much when that was looked at last.
type ranked struct {
	session *Session
	weight  int64
}

func newRanking(byBytes bool, all []*Session) *ranking {
	r := &ranking{byBytes: byBytes, at: make(map[*Session]int, len(all))}
	for _, s := range all {
		if n := s.weight(byBytes); n > 0 {
			r.at[s] = len(r.heap)
			r.heap = append(r.heap, ranked{s, n})
		}
	}
	heap.Init(r)
	return r
}

// grown notes that a session has got a message.
func (r *ranking) grown(s *Session) {
	n := s.weight(r.byBytes)
	i, known := r.at[s]
	switch {
	case known:
		r.heap[i].weight = n
		heap.Fix(r, i)
	case n > 0:
		heap.Push(r, ranked{s, n})
	}
}

// most returns the session that holds most; nil if none holds anything.
func (r *ranking) most() *Session {
	for len(r.heap) > 0 {
		first := &r.heap[0]
		n := first.session.weight(r.byBytes)
		switch {
		case n == 0: // or it has ended
			heap.Pop(r)
		case n == first.weight:
			return first.session
		default:
			first.weight = n
			heap.Fix(r, 0)
		}
	}
	return nil
}

// Len implements heap.Interface.
func (r *ranking) Len() int { return len(r.heap) }

// Less implements heap.Interface: the first holds most.
func (r *ranking) Less(i, j int) bool { return r.heap[i].weight > r.heap[j].weight }

// Swap implements heap.Interface.
func (r *ranking) Swap(i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	r.at[r.heap[i].session], r.at[r.heap[j].session] = i, j
}

// Push implements heap.Interface.
func (r *ranking) Push(x any) {
	one := x.(ranked)
	r.at[one.session] = len(r.heap)
	r.heap = append(r.heap, one)
}

// Pop implements heap.Interface.
func (r *ranking) Pop() any {
	last := len(r.heap) - 1
	one := r.heap[last]
	r.heap[last] = ranked{}
	r.heap = r.heap[:last]
	delete(r.at, one.session)
	return one
}
