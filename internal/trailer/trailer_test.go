package trailer_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/trailer"
)

// TestAdd asks git which trailers a message has.
func TestAdd(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"Deploy x":                        "K: v\n",
		"Deploy x\n":                      "K: v\n",
		"Fix: x":                          "K: v\n",
		"Remove x\n\nConfirm: a/b":        "Confirm: a/b\nK: v\n",
		"Remove x\n\nConfirm: a/b\n\n":    "Confirm: a/b\nK: v\n",
		"Remove x\n\nA: b\nC: d\n more":   "A: b\nC: d\n more\nK: v\n",
		"Remove x\n\n  more":              "K: v\n",
		"Remove x\n\nIt is gone.\nA: b":   "K: v\n",
		"Remove x\n\nA: b\n\nIt is gone.": "K: v\n",
	} {
		cmd := exec.Command("git", "interpret-trailers", "--only-trailers", "--only-input")
		cmd.Stdin = strings.NewReader(trailer.Add(message, "K", "v") + "\n")
		got, err := cmd.Output()
		if err != nil || string(got) != want {
			t.Errorf("%q: git reads %q (%v), want %q", message, got, err, want)
		}
	}
}
