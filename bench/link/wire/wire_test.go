package wire_test

import (
	"testing"

	"github.com/colonyfleet/colony/bench/link/wire"
)

func TestReceiveMaximum(t *testing.T) {
	t.Parallel()
	// A session expiry interval, an assigned client id, then the number.
	b := []byte{13, 0x11, 0, 0, 0, 9, 0x12, 0, 2, 'i', 'd', 0x21, 0, 20}
	if n := wire.ReceiveMaximum(b); n != 20 {
		t.Errorf("got %d, want 20", n)
	}
	for cut := range b {
		if n := wire.ReceiveMaximum(b[:cut]); n != 0 {
			t.Errorf("got %d from %d bytes", n, cut)
		}
	}
}
