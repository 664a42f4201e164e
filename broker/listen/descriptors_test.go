package listen

import (
	"math"
	"testing"
)

func TestConnections(t *testing.T) {
	t.Parallel()
	for descriptors, want := range map[uint64]int{
		0: 1, 32: 1, 128: 96, 1024: 896, 8192: 7168, 20_000: 18_976, 1 << 20: 1<<20 - 1024, math.MaxUint64: math.MaxInt,
	} {
		if got := connections(descriptors); got != want {
			t.Errorf("of %d descriptors: %d connections, want %d", descriptors, got, want)
		}
	}
	if n := Connections(); n < 1 {
		t.Errorf("%d connections here", n)
	}
}
