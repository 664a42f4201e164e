package fleet

import "testing"

func TestNewer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, latest string
		want            bool
	}{
		{"1.1.0", "1.0.0", true},
		{"1.0.0", "1.1.0", false},
		{"1.10.0", "1.9.0", true},
		{"1.2.0-rc.1", "1.1.0", false},
		{"1.1.0", "1.2.0-rc.1", true},
		{"1.2.0-rc.2", "1.2.0-rc.1", true},
		{"1.0.0", "1.0.0", false},
		{"1.1", "1.0", true},
		{"summer", "1.0.0", true},
		{"1.0.0", "summer", true},
	} {
		if got := Newer(tt.version, tt.latest); got != tt.want {
			t.Errorf("Newer(%q, %q) = %t", tt.version, tt.latest, got)
		}
	}
}
