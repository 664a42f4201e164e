package main

import (
	"testing"
)

// The checker must see each of the faults that it is there for.
func TestLedger(t *testing.T) {
	t.Parallel()
	l := newLedger()
	for seq := range uint32(6) {
		l.accept(1, seq+1)
	}
	l.accept(2, 1)
	for _, seq := range []uint32{1, 2, 4, 3, 4, 7} { // 3 late, 4 twice, 5 and 6 never, 7 without an answer
		l.deliver(1, seq)
	}
	if l.doubled != 1 || l.disordered != 1 {
		t.Errorf("%d doubled, %d out of order; want 1 and 1", l.doubled, l.disordered)
	}
	if n := l.missing(); n != 3 {
		t.Errorf("%d missing, want 3: two of the first key, one of the second", n)
	}
	if n := l.overtaken(); n != 2 {
		t.Errorf("%d overtaken, want 2: nothing of the second key has come", n)
	}
}

// What a publisher encodes is what the consumer of the peers reads.
func TestReport(t *testing.T) {
	t.Parallel()
	for _, seq := range []uint32{1, 2, 70_000} {
		n, got, err := parseReport(report(17, seq))
		if err != nil || n != 17 || got != seq {
			t.Errorf("report %d of node 17 reads as %d of node %d, %v", seq, got, n, err)
		}
	}
}
