package ledger

import (
	"testing"
)

// The checker must see each of the faults that it is there for.
func TestLedger(t *testing.T) {
	t.Parallel()
	l := New()
	for seq := range uint32(6) {
		l.Accept(1, seq+1)
	}
	l.Accept(2, 1)
	for _, seq := range []uint32{1, 2, 4, 3, 4, 7} { // 3 late, 4 twice, 5 and 6 never, 7 without an answer
		l.Deliver(1, seq)
	}
	if l.doubled != 1 || l.disordered != 1 {
		t.Errorf("%d doubled, %d out of order; want 1 and 1", l.doubled, l.disordered)
	}
	if n := l.Missing(); n != 3 {
		t.Errorf("%d missing, want 3: two of the first key, one of the second", n)
	}
	if n := l.Overtaken(); n != 2 {
		t.Errorf("%d overtaken, want 2: nothing of the second key has come", n)
	}
}
