package fifo

import "testing"

// The list keeps its order and does not grow with what has passed through it.
func TestQueue(t *testing.T) {
	t.Parallel()
	var q Queue[int]
	next := 0
	pop := func(round int) {
		t.Helper()
		if got := q.Pop(); got != next {
			t.Fatalf("round %d: got %d, want %d", round, got, next)
		}
		next++
	}
	for i := range 10_000 {
		q.Push(i)
		if i%3 != 0 || q.Len() > 20 {
			pop(i)
		}
		if q.Cap() > 200 {
			t.Fatalf("round %d: room for %d elements, %d are there", i, q.Cap(), q.Len())
		}
		for i%1000 == 0 && q.Len() > 0 {
			pop(i)
		}
	}
}

// At counts from the oldest, and what it returns can be changed.
func TestAt(t *testing.T) {
	t.Parallel()
	var q Queue[string]
	for _, s := range []string{"a", "b", "c", "d"} {
		q.Push(s)
	}
	q.Pop()
	*q.At(1) = "changed"
	for i, want := range []string{"b", "changed", "d"} {
		if got := *q.At(i); got != want {
			t.Errorf("at %d: %q, want %q", i, got, want)
		}
	}
	q.Pop()
	if got := q.Pop(); got != "changed" {
		t.Errorf("popped %q", got)
	}
}

// What is popped is not held in memory, and an empty list gives the room of its longest time back.
func TestMemory(t *testing.T) {
	t.Parallel()
	var q Queue[*int]
	for i := range keep + 1 {
		q.Push(&i)
	}
	q.Pop()
	if q.items[0] != nil {
		t.Error("a popped element is still referred to")
	}
	for q.Len() > 0 {
		q.Pop()
	}
	if q.Cap() != 0 {
		t.Errorf("an empty list has room for %d elements", q.Cap())
	}
}
