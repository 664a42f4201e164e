// Package ranking finds the member of a set that holds the most.
package ranking

import "container/heap"

// A Ranking finds the member that holds the most, in a time that is logarithmic in their number. The recorded weight of a
// member is never below its real one: the caller reports each increase by Grown. It is for one goroutine.
type Ranking[S comparable] struct {
	weight func(S) int64 // the present weight of a member
	heap   []ranked[S]   // by recorded weight, the greatest first
	at     map[S]int     // the index of each member in heap
}

// ranked is a member with its recorded weight.
type ranked[S comparable] struct {
	of     S
	weight int64
}

// New returns a Ranking of all by what weight says that each holds.
func New[S comparable](weight func(S) int64, all []S) *Ranking[S] {
	r := &Ranking[S]{weight: weight, at: make(map[S]int, len(all))}
	for _, s := range all {
		if n := weight(s); n > 0 {
			r.at[s] = len(r.heap)
			r.heap = append(r.heap, ranked[S]{s, n})
		}
	}
	heap.Init(r)
	return r
}

// Grown notes that one has got something.
func (r *Ranking[S]) Grown(s S) {
	n := r.weight(s)
	i, known := r.at[s]
	switch {
	case known:
		r.heap[i].weight = n
		heap.Fix(r, i)
	case n > 0:
		heap.Push(r, ranked[S]{s, n})
	}
}

// Most returns the one that holds most; ok is false if none holds anything.
func (r *Ranking[S]) Most() (s S, ok bool) {
	for len(r.heap) > 0 {
		first := &r.heap[0]
		n := r.weight(first.of)
		switch {
		case n == 0: // or it has ended
			heap.Pop(r)
		case n == first.weight:
			return first.of, true
		default:
			first.weight = n
			heap.Fix(r, 0)
		}
	}
	return s, false
}

// Len implements heap.Interface.
func (r *Ranking[S]) Len() int { return len(r.heap) }

// Less implements heap.Interface: the first holds most.
func (r *Ranking[S]) Less(i, j int) bool { return r.heap[i].weight > r.heap[j].weight }

// Swap implements heap.Interface.
func (r *Ranking[S]) Swap(i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	r.at[r.heap[i].of], r.at[r.heap[j].of] = i, j
}

// Push implements heap.Interface.
func (r *Ranking[S]) Push(x any) {
	one := x.(ranked[S])
	r.at[one.of] = len(r.heap)
	r.heap = append(r.heap, one)
}

// Pop implements heap.Interface.
func (r *Ranking[S]) Pop() any {
	last := len(r.heap) - 1
	one := r.heap[last]
	r.heap[last] = ranked[S]{}
	r.heap = r.heap[:last]
	delete(r.at, one.of)
	return one
}
