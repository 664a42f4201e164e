package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/bench/shortrun"
)

// The program is built and run with a small fleet: the API must know every read, and no
// batch may fail.
func TestShortRun(t *testing.T) {
	t.Parallel()
	out := shortrun.Output(t)
	reads, commits, states, writes := 0, 0, 0, 0
	for line := range bytes.Lines(out) {
		cells := strings.Split(string(line), "|")
		switch {
		case len(cells) == 8 && !strings.Contains(joined(cells), "---") && strings.TrimSpace(cells[1]) != "read":
			reads++
			if strings.TrimSpace(cells[3]) == "" {
				t.Errorf("the API does not answer: %s", line)
			}
		case len(cells) == 7 && !strings.Contains(joined(cells), "---") && strings.TrimSpace(cells[1]) != "what":
			states++
		case len(cells) == 5 && strings.Contains(joined(cells), "a write then"):
			writes++
		case len(cells) == 14 && !strings.Contains(joined(cells), "---") && strings.TrimSpace(cells[1]) != "sites":
			commits++
			if strings.TrimSpace(cells[9]) != "0" && !strings.Contains(joined(cells), "left out") {
				t.Errorf("batches failed: %s", line)
			}
		}
	}
	if reads < 40 || commits < 10 || states != 5 || writes != 4 {
		_, _ = os.Stderr.Write(out)
		t.Errorf("%d reads, %d cases of commits, %d of desired states and %d of writes in the tables", reads, commits, states, writes)
	}
}

func joined(cells []string) string { return strings.Join(cells, "|") }
