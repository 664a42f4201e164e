package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	for _, noun := range permissionNouns(t) {
		if !words[noun] {
			t.Errorf("glossary.md does not have %s, of which permissions speak", noun)
		}
	}
	if len(words) < 50 {
		t.Errorf("%d words found: the test does not read the glossary", len(words))
	}
	flowWords(t, words)
}

// otherNouns are words of the glossary that stand for the nouns of permissions.
var otherNouns = map[string]string{
	"fleet": "fleet deployment", "data": "machine data", "apps": "application", "sessions": "session (of a program)", "access": "access token", "logs": "log (of a container)",
}

// permissionNouns returns what the permissions of the API are about, such as command of commands:write, in the words of the glossary.
func permissionNouns(t *testing.T) (nouns []string) {
	t.Helper()
	for _, s := range sources(t) {
		if s.dir != "co/access" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			lit, ok := v.Values[0].(*ast.BasicLit)
			if typ, named := v.Type.(*ast.Ident); !ok || !named || typ.Name != "Permission" {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			if noun, _, ok := strings.Cut(text, ":"); ok {
				nouns = append(nouns, cmp.Or(otherNouns[noun], strings.TrimSuffix(noun, "s")))
			}
			return true
		})
	}
	if len(nouns) < 10 {
		t.Errorf("%d permissions found: the test looks in the wrong place", len(nouns))
	}
	return nouns
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
		steps, last := 0, 0
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
			if n, err := strconv.Atoi(cells[0]); err != nil || n != last+1 && n != 1 {
				t.Errorf("%s: the step has the number %s after %d", at, cells[0], last)
			} else {
				last = n
			}
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
