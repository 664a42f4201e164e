package misspelt

import "testing"

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"site", "stateDir", "mqtt", "http"}
	for key, want := range map[string]string{"sit": "site", "statedir": "stateDir", "mqt": "mqtt", "stateDri": "stateDir", "nodes": "", "x": ""} {
		if got := Nearest(key, known); got != want {
			t.Errorf("%q was meant to be %q, want %q", key, got, want)
		}
	}
}
