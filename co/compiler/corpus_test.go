package compiler

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/compose.md again")

// A sample is a file of the corpus: the shape of a public project's Compose file, written
// anew. Comments at its head say which files lie beside it, and what it is refused for.
type sample struct {
	name, compose, refused string
	files                  map[string]string
}

func readSample(t *testing.T, path string) sample {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sample{name: strings.TrimSuffix(filepath.Base(path), ".yaml"), compose: string(b), files: map[string]string{}}
	for line := range strings.Lines(s.compose) {
		if names, ok := strings.CutPrefix(line, "# archive: "); ok {
			for _, name := range strings.Fields(names) {
				s.files[name] = "# " + name + "\n"
			}
			if _, ok := s.files[".env"]; ok {
				s.files[".env"] = "PG_PASS=x\nPOSTGRES_USER=n8n\nPOSTGRES_DB=n8n\nPOSTGRES_PASSWORD=x\n"
			}
		}
		if refused, ok := strings.CutPrefix(line, "# refused: "); ok {
			s.refused = strings.TrimSpace(refused)
		}
	}
	return s
}

// The files of public projects translate, or are refused for the reason that is written
// down, with its line. Together they make the table of docs/compose.md.
func TestCorpus(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/corpus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	translated := 0
	for _, path := range paths {
		s := readSample(t, path)
		c, warnings, err := CheckArchive("app", composeArchive(t, s.compose, s.files), nil)
		switch {
		case err == nil && s.refused == "":
			translated++
			rows = append(rows, fmt.Sprintf("| %s | %d | %d | |", s.name, len(c.Containers), len(warnings)))
		case err == nil:
			t.Errorf("%s translates, and should be refused: %s", s.name, s.refused)
		case s.refused == "":
			t.Errorf("%s: %v", s.name, err)
		case !strings.Contains(err.Error(), ": "+s.refused) || !strings.Contains(err.Error(), "line "):
			t.Errorf("%s: %v, want it refused with its line: %s", s.name, err, s.refused)
		default:
			key, _, _ := strings.Cut(s.refused, ": ")
			rows = append(rows, fmt.Sprintf("| %s | | | `%s` |", s.name, key))
		}
	}
	if len(paths) < 60 || translated*100 < len(paths)*85 {
		t.Errorf("%d of %d files translate; want at least 60 files and 85 %%", translated, len(paths))
	}
	table := fmt.Sprintf("%d of the %d files translate.\n\n| file | containers | warnings | refused for |\n|---|---|---|---|\n%s\n",
		translated, len(paths), strings.Join(rows, "\n"))
	checkTable(t, table)
}

// checkTable compares a table with that between the marks in docs/compose.md, or writes
// it there.
func checkTable(t *testing.T, table string) {
	t.Helper()
	const doc, begin, end = "../../docs/compose.md", "<!-- corpus: begin -->\n", "<!-- corpus: end -->"
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no marks for the table", doc)
	}
	next := before + begin + table + end + after
	if next == string(b) {
		return
	}
	if !*update {
		t.Errorf("the table in %s is not that of this run: go test ./co/compiler -run TestCorpus -update", doc)
		return
	}
	if err := os.WriteFile(doc, []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
}
