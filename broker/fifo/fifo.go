// Package fifo is a first-in-first-out list whose memory follows what it holds: what is
// popped makes room for what is pushed, and an empty list keeps no memory for its longest
// time.
package fifo

// keep is for how many elements an empty Queue keeps its room.
const keep = 64

// A Queue is a first-in-first-out list. The zero Queue is empty and takes no memory. Not
// safe for concurrent use.
type Queue[T any] struct {
	items []T
	head  int // of items, what was popped
}

// Len is how many elements the Queue holds.
func (q *Queue[T]) Len() int { return len(q.items) - q.head }

// Cap is for how many elements there is room, those that were popped included.
func (q *Queue[T]) Cap() int { return cap(q.items) }

// Push appends v.
func (q *Queue[T]) Push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:]) // rather than to grow
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// Pop removes the oldest element and returns it. The Queue must not be empty.
func (q *Queue[T]) Pop() T {
	v := q.items[q.head]
	clear(q.items[q.head : q.head+1])
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > keep {
			q.items = nil
		}
	}
	return v
}

// At returns the i-th oldest element, from 0, to be read or changed until the next Push or
// Pop.
func (q *Queue[T]) At(i int) *T { return &q.items[q.head+i] }
