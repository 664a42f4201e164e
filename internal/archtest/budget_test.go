package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The budgets. What is past one is listed in spared with its reason.
const (
	maxFile      = 500
	maxPackage   = 2100
	maxFunc      = 80
	maxParams    = 5
	maxFields    = 20
	maxInterface = 7
)

// spared names what is past a budget.
var spared = exceptions{
	"lo.Options":                   "one field for each key of the configuration file",
	"protocol.Container":           "one field for each supported Compose key; grouping them would only hide it",
	"protocol.DeploymentStatus":    "one flat message on the wire",
	"internal/grpcdeadline.call":   "the signature of an interceptor is that of gRPC",
	"internal/grpcdeadline.stream": "the signature of an interceptor is that of gRPC",
	"protocol.Inventory":           "one flat message on the wire",
}

// larger names the packages that may have more lines than maxPackage, and how many.
var larger = map[string]struct {
	lines int
	why   string
}{
	"broker":     {2400, "the life of one connection: what it needs besides lies in the packages below it"},
	"lo/journal": {2400, "one writer owns every change of the disk, and its parts share its state: the formats lie in ondisk"},
	"protocol":   {2400, "the words of all messages: whoever speaks one needs the types of others, and would import several packages for it"},
}

type source struct {
	path, dir string
	file      *ast.File
	fset      *token.FileSet
	lines     int
}

// sources parses every Go file of the module that is not a test.
func sources(t *testing.T) []source {
	t.Helper()
	return parse(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") })
}

// parse parses the Go files of the module whose names are wanted.
func parse(t *testing.T, want func(name string) bool) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && path != root || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || !want(d.Name()) {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rp, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		out = append(out, source{rp, filepath.Dir(rp), f, fset, fset.File(f.Pos()).LineCount()})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPackageDocs checks that every package says in one place what it is for.
func TestPackageDocs(t *testing.T) {
	t.Parallel()
	docs := map[string]int{}
	for _, s := range sources(t) {
		docs[s.dir] += 0
		if s.file.Doc != nil {
			docs[s.dir]++
		}
	}
	for dir, n := range docs {
		if n != 1 {
			t.Errorf("%s: %d package comments, want 1", dir, n)
		}
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	sparedFrom := spared.use(t)
	over := func(name, what string, n, limit int) {
		if n <= limit || sparedFrom(name) {
			return
		}
		t.Errorf("%s: %d %s, the budget is %d", name, n, what, limit)
	}
	packageLines := map[string]int{}
	for _, s := range sources(t) {
		packageLines[s.dir] += s.lines
		over(s.path, "lines", s.lines, maxFile)
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				name := s.dir + "." + d.Name.Name
				over(name, "lines", s.fset.Position(d.End()).Line-s.fset.Position(d.Pos()).Line+1, maxFunc)
				over(name, "parameters", d.Type.Params.NumFields(), maxParams)
			case *ast.TypeSpec:
				name := s.dir + "." + d.Name.Name
				switch typ := d.Type.(type) {
				case *ast.StructType:
					over(name, "fields", typ.Fields.NumFields(), maxFields)
				case *ast.InterfaceType:
					over(name, "methods", typ.Methods.NumFields(), maxInterface)
				}
			}
			return true
		})
	}
	for dir, n := range packageLines {
		own, ok := larger[dir]
		if ok && n <= maxPackage {
			t.Errorf("%s keeps the budget: drop the exception (%s)", dir, own.why)
		}
		over(dir, "lines", n, max(maxPackage, own.lines))
	}
}

// TestWords refuses what has no place in the code: sleeping, exits outside main,
// notes to self.
func TestWords(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		b, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		main := s.file.Name.Name == "main"
		for i, line := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "//") && !strings.Contains(line, "TO"+"DO") {
				continue
			}
			for _, bad := range []string{"time." + "Sleep(", "TO" + "DO", "FIX" + "ME", "os." + "Exit(", "func in" + "it()"} {
				if strings.Contains(line, bad) && (bad != "os."+"Exit(" || !main) {
					t.Errorf("%s:%d: %s has no place here", s.path, i+1, bad)
				}
			}
		}
	}
}
