package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copyLines is from how many lines on two functions of tests that are the same count as a copy.
const copyLines = 8

// TestHarnessIsNotCopied refuses a function of a test that another package has word by word: what
// tests share lies in a package, such as internal/testpart.
func TestHarnessIsNotCopied(t *testing.T) {
	t.Parallel()
	fset, seen, found := token.NewFileSet(), map[string]string{}, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			var body bytes.Buffer
			if err := printer.Fprint(&body, token.NewFileSet(), f.Body); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if strings.Count(body.String(), "\n") < copyLines {
				continue
			}
			found++
			at := fset.Position(f.Pos()).String()
			if before, ok := seen[body.String()]; !ok {
				seen[body.String()] = at
			} else if filepath.Dir(strings.Split(before, ":")[0]) != filepath.Dir(path) {
				t.Errorf("%s: %s is that of %s: have one in a package that both tests use", at, f.Name.Name, before)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 500 {
		t.Errorf("%d functions found: the test looks in the wrong place", found)
	}
}

// TestChildrenInOnePlace refuses a parent-death signal that is set by hand, tests included: the
// kernel sends it when the thread that started the child ends, which internal/childproc keeps.
func TestChildrenInOnePlace(t *testing.T) {
	t.Parallel()
	const field = "Pdeath" + "sig"
	found := false
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(field)) {
			return err
		}
		if strings.HasPrefix(path, root+"/internal/childproc/") {
			found = true
			return nil
		}
		t.Errorf("%s: %s: start the program by internal/childproc", path, field)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Error("internal/childproc does not set the signal: the test looks in the wrong place")
	}
}
