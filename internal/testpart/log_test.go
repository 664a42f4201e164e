package testpart

import (
	"fmt"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/logfile"
)

// TestTail has a log whose end alone is shown, from the beginning of a line on.
func TestTail(t *testing.T) {
	t.Parallel()
	l := &logfile.Tail{Max: shown}
	last := ""
	for i := range 10_000 {
		last = fmt.Sprintf("line %d\n", i)
		if n, err := l.Write([]byte(last)); n != len(last) || err != nil {
			t.Fatal(n, err)
		}
	}
	got, held := string(whole(l)), l.Bytes()
	if !strings.HasSuffix(got, last) || !strings.HasPrefix(got, "line ") || len(got) > shown || len(got) < shown-100 || len(held) > shown {
		t.Errorf("%d bytes from %.20q on, of %d held", len(got), got, len(held))
	}
}
