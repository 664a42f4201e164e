package archtest

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// carried is a type in the last column of the glossary: package.Type.
var carried = regexp.MustCompile("`(\\w+)\\.(\\w+)`")

// TestGlossary checks that each word of the glossary stands there once, and that the
// types that carry it exist, and that the flows use these words.
func TestGlossary(t *testing.T) {
	t.Parallel()
	types := map[string]bool{}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				types[s.file.Name.Name+"."+spec.Name.Name] = true
			}
			return true
		})
	}
	b, err := os.ReadFile(root + "/docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for i, line := range strings.Split(string(b), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.HasPrefix(line, "|---") || strings.TrimSpace(cells[1]) == "word" {
			continue
		}
		if len(cells) != 7 {
			t.Errorf("glossary.md:%d: %d columns, want 5", i+1, len(cells)-2)
			continue
		}
		for word := range strings.SplitSeq(cells[1], ",") {
			word = strings.TrimSpace(word)
			if words[word] {
				t.Errorf("glossary.md:%d: %s stands there twice", i+1, word)
			}
			words[word] = true
		}
		named := carried.FindAllStringSubmatch(cells[5], -1)
		if len(named) == 0 {
			t.Errorf("glossary.md:%d: %s names no Go type", i+1, strings.TrimSpace(cells[1]))
		}
		for _, m := range named {
			if !types[m[1]+"."+m[2]] {
				t.Errorf("glossary.md:%d: there is no type %s.%s", i+1, m[1], m[2])
			}
		}
	}
	if len(words) < 50 {
		t.Errorf("%d words found: the test does not read the glossary", len(words))
	}
	flowWords(t, words)
}

// flowColumns are the columns of each table of steps in a flow.
var flowColumns = []string{"#", "word", "what happens", "where", "durable then"}

// flowWords checks that each flow has its steps in tables of the same columns, and calls the
// thing of each step by a word of the glossary, in the column that is for it.
func flowWords(t *testing.T, words map[string]bool) {
	t.Helper()
	docs, err := filepath.Glob(root + "/docs/flows/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no flow documents: %v", err)
	}
	for _, doc := range docs {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		steps := 0
		for i, line := range strings.Split(string(b), "\n") {
			if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
				continue
			}
			at := fmt.Sprintf("%s:%d", filepath.Base(doc), i+1)
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for j := range cells {
				cells[j] = strings.TrimSpace(cells[j])
			}
			if len(cells) != len(flowColumns) {
				t.Errorf("%s: %d columns, want %d: %s", at, len(cells), len(flowColumns), strings.Join(flowColumns, ", "))
				continue
			}
			if cells[0] == "#" {
				if !slices.Equal(cells, flowColumns) {
					t.Errorf("%s: the columns are %q, want %q", at, cells, flowColumns)
				}
				continue
			}
			steps++
			for word := range strings.SplitSeq(cells[1], ",") {
				if word = strings.TrimSpace(word); !words[word] {
					t.Errorf("%s: the glossary does not have the word %q", at, word)
				}
			}
		}
		if steps < 10 {
			t.Errorf("%s: %d steps found: the test does not read them", filepath.Base(doc), steps)
		}
	}
}
