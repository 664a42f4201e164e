package packaging

import (
	"slices"
	"testing"
)

// TestReferring finds what a value refers to by the value that the same name had before.
func TestReferring(t *testing.T) {
	t.Parallel()
	got := referring([]byte("A=$$${D:-\"q\"}-${C+a=b$By}\nA=\"k=v $A-$Bb\"\n"))["A"]
	for _, name := range []string{"C", "D", "Bb"} {
		if !slices.Contains(got, name) {
			t.Errorf("A refers to %q, want %s among it", got, name)
		}
	}
}
