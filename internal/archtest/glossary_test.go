package archtest

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// carried is a type in the last column of the glossary: package.Type.
var carried = regexp.MustCompile("`(\\w+)\\.(\\w+)`")

// TestGlossary checks that each word of the glossary stands there once, and that the
// types that carry it exist.
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
}
