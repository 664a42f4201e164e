package layout

import (
	"testing"

	"github.com/colonyfleet/colony/co/rollout/fleetfile"
)

// TestLeftoversOfSeveralCommits has a file copied by one commit and removed by the next, and copied by a later one: where both are seen at once, they are as
// one.
func TestLeftoversOfSeveralCommits(t *testing.T) {
	t.Parallel()
	const file, copied, other, changed = "deployments/munich/d/deployment.yaml", "archive/d.txt", "fleet/f/deployment.yaml", "archive/f.txt"
	const id = "6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d"
	for _, c := range []struct {
		since           int
		by, want, fleet string
	}{
		{-1, "c3", copied, changed},
		{-1, "c4", copied, changed},
		{-1, "c5", "", changed},
		{1, "c5", "", changed},
		{2, "c5", copied, changed},
		{-1, "c6", "", ""},
		{-1, "unknown", "", ""},
	} {
		tree := Tree{
			Files:   map[string][]byte{copied: []byte("x"), "archive/old.txt": []byte("x"), changed: []byte("id: 6B1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d\n")},
			Blobs:   map[string]string{copied: "b", "archive/old.txt": "b"},
			Commits: map[string]string{copied: "c4", "archive/old.txt": "c1", changed: "c5"},
			Age:     map[string]int{"c6": 0, "c5": 1, "c4": 2, "c3": 3, "c2": 4, "c1": 5},
			Since:   c.since, Refused: func(string) bool { return false },
		}
		left := LeftoversOf(tree, 3)
		if got := left.Of(Missing{Path: file, Commit: c.by, Blob: "b", Site: "munich"}); got != c.want {
			t.Errorf("removed by %s, with what is of age %d not looked at: %q is left, want %q", c.by, c.since, got, c.want)
		}
		fleet := Missing{Path: other, Commit: c.by, Site: "munich", ID: (&fleetfile.File{ID: id}).IDAt("munich"), Fleet: true}
		if got := left.Of(fleet); got != c.fleet {
			t.Errorf("a fleet file removed by %s, with what is of age %d not looked at: %q is left, want %q", c.by, c.since, got, c.fleet)
		}
	}
}

// TestLeftoversOfBefore has files that were there before a commit: only one in the folder of the missing file may be it.
func TestLeftoversOfBefore(t *testing.T) {
	t.Parallel()
	for p, want := range map[string]bool{
		"deployments/munich/d/deployment.yaml.bak": true, "deployments/munich/d/notes.txt": false, "deployments/munich/d/.deployment": false,
		"old/munich/d/deployment.yaml": false, "copy.txt": false,
	} {
		tree := Tree{
			Blobs: map[string]string{p: "b"}, Commits: map[string]string{p: "c1"}, Age: map[string]int{"c2": 0, "c1": 1}, Since: -1,
			Refused: func(string) bool { return false },
		}
		got := LeftoversOf(tree, 0).Of(Missing{Path: "deployments/munich/d/deployment.yaml", Commit: "c2", Blob: "b"})
		if (got == p) != want || !want && got != "" {
			t.Errorf("%s was there before: %q is left", p, got)
		}
	}
}
