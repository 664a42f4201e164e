package document_test

import (
	"testing"

	"github.com/colonyfleet/colony/margo/document"
)

// A problem without a line gets that of its path, in lists too; of a path that is not there,
// that of the nearest value around it.
func TestLocate(t *testing.T) {
	t.Parallel()
	const raw = "a:\n  b:\n    - c: 1\n      d: 2\n    - c: 3\n\n      d:\n        - x\n        - y\n"
	for path, want := range map[string]int{
		"a": 1, "a.b": 2, "a.b[0]": 3, "a.b[0].d": 4, "a.b[1]": 5, "a.b[1].c": 5, "a.b[1].d": 7, "a.b[1].d[1]": 9,
		"a.b[1].none": 5, "a.b[7]": 3,
	} {
		if got := document.Locate([]byte(raw), document.Problems{{Path: path}})[0].Line; got != want {
			t.Errorf("%s: line %d, want %d", path, got, want)
		}
	}
}
