// Package doctable keeps tables in the documentation that tests make, for tests.
package doctable

import (
	"os"
	"strings"
	"testing"
)

// A Table stands in a document between two marks, <!-- name: begin --> and
// <!-- name: end -->.
type Table struct {
	Doc     string // path of the document
	Name    string // in the marks
	Content string
	Command string // what writes it, for the message
	// Near reports whether the table in the document may stay, although it is not Content; nil:
	// it may not.
	Near func(have, content string) bool
}

// Check compares the table with that in the document, or with write puts it there.
func (x Table) Check(t testing.TB, write bool) {
	t.Helper()
	b, err := os.ReadFile(x.Doc)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+x.Name+": begin -->\n", "<!-- "+x.Name+": end -->"
	before, rest, ok := strings.Cut(string(b), begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no marks for the table %s", x.Doc, x.Name)
	}
	next := before + begin + x.Content + end + after
	if next == string(b) {
		return
	}
	if !write {
		if x.Near != nil && x.Near(have, x.Content) {
			return
		}
		t.Errorf("the table %s in %s is not that of this run: %s", x.Name, x.Doc, x.Command)
		return
	}
	if err := os.WriteFile(x.Doc, []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
}
