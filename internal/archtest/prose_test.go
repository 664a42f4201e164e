package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// vague are the words of a sentence without an actor: a comment or a page names the tier, the program or the person instead.
var vague = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever)\b`)

// loose is a relative clause of persons, which comments have for programs, too. mostLoose is how many lines of comments have one: the number may only fall.
var loose = regexp.MustCompile(`(?i)\bwho\b`)

const mostLoose = 5

// sparedVague are the packages and pages that keep a vague word.
var sparedVague = exceptions{
	"docs/architecture.md": "a line of the layout",
	"docs/contributing.md": "it names the words that are refused",
	"docs/operations.md":   "the user nobody of the system",
}

// TestProseNamesItsActors refuses vague words in comments and on the pages of the documentation, and more clauses with who than there are in the comments of
// the code. Decisions and the changelog stay as they were written.
func TestProseNamesItsActors(t *testing.T) {
	t.Parallel()
	spared := sparedVague.use(t)
	clauses := 0
	for _, s := range parse(t, func(string) bool { return true }) {
		if s.dir == "internal/archtest" {
			continue
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				if loose.MatchString(c.Text) && !strings.HasSuffix(s.path, "_test.go") {
					clauses++
				}
				if m := vague.FindString(c.Text); m != "" && !spared(s.dir) {
					t.Errorf("%s: %q: name the tier, the program or the person", s.fset.Position(c.Pos()), m)
				}
			}
		}
	}
	if clauses > mostLoose {
		t.Errorf("%d comments have a clause with who, at most %d may: name the client, the caller or the program", clauses, mostLoose)
	}
	pages := 0
	for _, pattern := range []string{"docs/*.md", "docs/flows/*.md", "*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			page, _ := filepath.Rel(root, name)
			if filepath.Base(name) == "CHANGELOG.md" {
				continue
			}
			pages++
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(b), "\n") {
				if m := vague.FindString(line); m != "" && !spared(filepath.ToSlash(page)) {
					t.Errorf("%s:%d: %q: name the tier, the program or the person", page, i+1, m)
				}
			}
		}
	}
	if pages < 25 {
		t.Errorf("%d pages found: the test looks in the wrong place", pages)
	}
}
