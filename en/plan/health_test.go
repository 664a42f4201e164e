package plan

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// TestProbesThatHang counts probes that hang for longer than the time of all retries: each is one failure, also before the container was
// healthy once.
func TestProbesThatHang(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		answers         []bool // of probes that hang for 11 s where they fail
		healthy, failed bool
	}{
		{"the first one", []bool{false, true}, true, false},
		{"the first two", []bool{false, false, true}, true, false},
		{"all", []bool{false, false, false}, false, true},
	} {
		start := time.Now()
		h, now := healthOf(&protocol.Health{IntervalMillis: 2000, TimeoutMillis: 11_000, Retries: 3}), start
		for i, ok := range tt.answers {
			if now = h.due(start); i == 0 {
				now = start
			}
			if h.unhealthy(start, now) {
				t.Errorf("%s: given up before probe %d", tt.name, i+1)
			}
			if h.asked = true; !ok {
				now = now.Add(11 * time.Second)
			}
			h.observe(ok, "no answer", now)
		}
		if h.healthy != tt.healthy || h.unhealthy(start, now) != tt.failed {
			t.Errorf("%s: healthy %t, given up %t, want %t and %t", tt.name, h.healthy, h.unhealthy(start, now), tt.healthy, tt.failed)
		}
	}
}
