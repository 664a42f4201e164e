package lastchange_test

import (
	"maps"
	"testing"

	"github.com/colonyfleet/colony/co/repo/git/lastchange"
)

func TestPut(t *testing.T) {
	t.Parallel()
	x := []byte("x")
	for _, tt := range []struct {
		name  string
		files map[string][]byte
		want  bool
	}{
		{"a known file", map[string][]byte{"a": x}, true},
		{"a new file", map[string][]byte{"d/new": x}, true},
		{"two files", map[string][]byte{"a": x, "b": x}, false},
		{"a removal", map[string][]byte{"a": nil}, false},
		{"a file in the place of a folder", map[string][]byte{"d": x}, false},
		{"a file below a file", map[string][]byte{"a/b/c": x}, false},
	} {
		before := map[string]string{"a": "1", "d/e": "1"}
		c := lastchange.Index{Head: "1", Commits: maps.Clone(before)}
		got := c.Put(tt.files, "2")
		if got != tt.want || !got && (c.Head != "1" || !maps.Equal(c.Commits, before)) {
			t.Errorf("%s: %v, and %+v", tt.name, got, c)
		}
		for p := range tt.files {
			if got && (c.Head != "2" || c.Commits[p] != "2") {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
	}
}
