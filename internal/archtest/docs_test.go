package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var ref = regexp.MustCompile("`([\\w./-]+\\.go)#([A-Za-z0-9_.]+)`")

// TestDocReferences checks that every `file.go#Name` in the flow documents and the
// checklists names a declaration that exists.
func TestDocReferences(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob(root + "/docs/flows/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no flow documents: %v", err)
	}
	docs = append(docs, root+"/docs/contributing.md")
	for _, doc := range docs {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		refs := ref.FindAllStringSubmatch(string(b), -1)
		if len(refs) == 0 {
			t.Errorf("%s: no code reference", doc)
		}
		for _, m := range refs {
			if !declares(filepath.Join(root, m[1]), m[2]) {
				t.Errorf("%s: %s does not declare %s", filepath.Base(doc), m[1], m[2])
			}
		}
	}
}

// path is a file or folder of the repository in the checklists.
var path = regexp.MustCompile("`((?:bench|broker|cli|co|docs|e2e|en|internal|lo|migrations|protocol|scripts|sim|up)(?:/[\\w.]+)+)`")

// TestChecklistPaths checks that the files and folders that the checklists name exist.
func TestChecklistPaths(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(root + "/docs/contributing.md")
	if err != nil {
		t.Fatal(err)
	}
	found := path.FindAllStringSubmatch(string(b), -1)
	if len(found) < 40 {
		t.Errorf("%d paths found: the test does not read the checklists", len(found))
	}
	for _, m := range found {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("contributing.md names %s: %v", m[1], err)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// TestDocLinks checks that every relative link in the documentation leads to a file.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(root + "/docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(append(docs, more...), root+"/README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(doc), m[1], err)
			}
		}
	}
}

// TestLayoutNamesRooms checks that the layout in architecture.md names each room of a tier.
func TestLayoutNamesRooms(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(root + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"co", "lo", "en"} {
		line := regexp.MustCompile(`(?m)^` + tier + `/ .*$`).FindString(string(b))
		rooms, err := filepath.Glob(root + "/" + tier + "/*/*.go")
		if err != nil || len(rooms) == 0 || line == "" {
			t.Errorf("%s: %d files found, the line of the layout is %q: %v", tier, len(rooms), line, err)
		}
		missing := map[string]bool{}
		for _, file := range rooms {
			if room := filepath.Base(filepath.Dir(file)); !regexp.MustCompile(`\b` + room + `\b`).MatchString(line) {
				missing[room] = true
			}
		}
		for room := range missing {
			t.Errorf("the layout in architecture.md does not name %s/%s", tier, room)
		}
	}
}

func declares(file, name string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return false
	}
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			full := d.Name.Name
			if d.Recv != nil {
				typ := d.Recv.List[0].Type
				if s, ok := typ.(*ast.StarExpr); ok {
					typ = s.X
				}
				if g, ok := typ.(*ast.IndexExpr); ok {
					typ = g.X // a generic type
				}
				if id, ok := typ.(*ast.Ident); ok {
					full = id.Name + "." + full
				}
			}
			found = found || full == name
		case *ast.ValueSpec:
			for _, id := range d.Names {
				found = found || id.Name == name
			}
		case *ast.TypeSpec:
			found = found || d.Name.Name == name
		}
		return !found
	})
	return found
}
