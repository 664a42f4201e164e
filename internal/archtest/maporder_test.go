package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// anyOrder are the functions of pure packages that go through a map in its own order, with
// the reason why that is no behaviour.
var anyOrder = exceptions{
	"protocol/topic.Parse":                       "each word of a table is of one kind",
	"protocol/topic.ofCommand":                   "each word of a table is of one kind",
	"lo/command/members.Site.crowded":            "no two commands have one turn",
	"lo/command/members.Resolve":                 "sortNodes sorts them",
	"lo/rivals.Names.Settled":                    "the earliest time",
	"lo/reconciler.step.rebase":                  "each deployment by itself",
	"en/plan/trust.Checker.Followed":             "the greatest position",
	"en/plan/trust.check.remember":               "each deployment has a floor of its own",
	"co/compiler/pruning.Pruner.Prune":           "each entry by itself",
	"co/compiler/pruning.Pruner.service":         "each key by itself",
	"co/compiler/examination.examination.usedAt": "one place is enough, whichever it is",
	"co/compiler/topology.Replicate":             "each container by itself",
	"co/compiler/addresses.addressing":           "all addresses are of one range, and one is of the service",
	"co/compiler/composefile.itemsOf":            "each list has a path of its own",
	"co/compiler/composefile.scope.apply":        "each service by itself",
	"co/compiler/composefile.usesBelow":          "each text has a path of its own",
	"co/compiler/addresses.reader.ranges":        "there is one range",
	"broker/topictree.branches.first":            "one branch is enough, whichever it is",
	"lo/control.Loop.Reconcile":                  "the earliest time",
	"lo/uplink.link.advance":                     "each sequence by itself",
	"en/agent.Runner.nextReport":                 "the least number, of which there is one",
	"sim/fleet.machine.reboot":                   "each container by itself",
	"sim/fleet.node.kill":                        "each operation by itself",
	"sim/fleet.node.powerOff":                    "each operation by itself",
	"sim/fleet.node.oldest":                      "the least number, of which there is one",
}

// deciding are the packages that are not pure, and whose order others see: what they publish, store and answer.
var deciding = []string{"lo/control", "lo/command", "lo/data", "lo/desired", "lo/identity", "lo/uplink", "en/agent", "en/link", "broker/topictree", "sim"}

// TestMapOrder checks that the order of a map decides nothing in the packages that decide: a
// loop through a map only fills a map or a set, counts, finds the least or the most, says
// whether there is one, or gathers what is sorted then. What else needs an order goes through
// sorted keys.
func TestMapOrder(t *testing.T) {
	t.Parallel()
	spared, ranges := anyOrder.use(t), 0
	for dir, files := range typed(t) {
		if ofMachine(dir, carriesOut) {
			continue
		}
		for _, f := range files {
			found, all := ordered(f)
			ranges += all
			for _, o := range found {
				if !spared(dir + "." + o.name) {
					t.Errorf("%s: the order of a map may be behaviour in %s: go through sorted keys", f.fset.Position(o.pos), o.name)
				}
			}
		}
	}
	if ranges < 60 {
		t.Errorf("%d loops through maps found: the test looks in the wrong place", ranges)
	}
}

// typedFile is a file with the types of its expressions.
type typedFile struct {
	file *ast.File
	fset *token.FileSet
	info *types.Info
}

// typed returns the files of the pure packages, by folder.
func typed(t *testing.T) map[string][]typedFile {
	t.Helper()
	var patterns []string
	for _, p := range slices.Concat(pure, deciding) {
		patterns = append(patterns, "./"+p+"/...")
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,DepOnly"}, patterns...)...)
	cmd.Dir = root
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	exports, own := map[string]string{}, []listed{}
	for dec := json.NewDecoder(strings.NewReader(string(b))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			own = append(own, p)
		}
	}
	fset := token.NewFileSet()
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	out := map[string][]typedFile{}
	for _, p := range own {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := checked(t, p.ImportPath, fset, files, imp)
		for _, f := range files {
			out[rel(p.ImportPath)] = append(out[rel(p.ImportPath)], typedFile{f, fset, info})
		}
	}
	return out
}

// checked returns the types of the expressions of a package.
func checked(t *testing.T, path string, fset *token.FileSet, files []*ast.File, imp types.Importer) *types.Info {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	if _, err := (&types.Config{Importer: imp}).Check(path, fset, files, info); err != nil {
		t.Fatal(err)
	}
	return info
}

// ordered returns the loops through maps of a file whose order may be seen, and how many loops
// through maps there are.
func ordered(f typedFile) (found []past, all int) {
	for _, decl := range f.file.Decls {
		name, body := "", ast.Node(decl)
		if d, ok := decl.(*ast.FuncDecl); ok {
			if d.Body == nil {
				continue
			}
			name, body = functionName(d), d.Body
		}
		inspectNode(body, func(n ast.Node, in []ast.Node) {
			switch n := n.(type) {
			case *ast.RangeStmt:
				if !f.unordered(n.X) {
					return
				}
				all++
				if slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool { return !f.harmless(s, n, body) }) {
					found = append(found, past{pos: n.Pos(), name: name})
				}
			case *ast.CallExpr:
				if f.goesThrough(n) && !settled(n, in, body) {
					found = append(found, past{pos: n.Pos(), name: name})
				}
			}
		})
	}
	return found, all
}

// goesThrough reports whether a call has the keys, the values or both of a map in the order of the map, or goes through a sync.Map.
func (f typedFile) goesThrough(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if isPackage(sel, "maps") {
		return slices.Contains([]string{"Keys", "Values", "All"}, sel.Sel.Name)
	}
	typ := f.info.TypeOf(sel.X)
	return sel.Sel.Name == "Range" && typ != nil && strings.TrimPrefix(typ.String(), "*") == "sync.Map"
}

// settled reports whether what a call goes through is sorted, put into a map or counted, or whether a loop goes through it, which ordered judges.
func settled(call *ast.CallExpr, in []ast.Node, body ast.Node) bool {
	switch around := in[len(in)-1].(type) {
	case *ast.RangeStmt:
		return true
	case *ast.CallExpr:
		sel, ok := around.Fun.(*ast.SelectorExpr)
		switch {
		case !ok || around.Fun == ast.Expr(call):
			return false
		case isPackage(sel, "slices") && strings.HasPrefix(sel.Sel.Name, "Sorted"), isPackage(sel, "maps"):
			return true
		case isPackage(sel, "slices") && (sel.Sel.Name == "Collect" || sel.Sel.Name == "AppendSeq") && len(in) > 1:
			switch use := in[len(in)-2].(type) {
			case *ast.AssignStmt:
				return len(use.Lhs) == 1 && sorted(body, use.Lhs[0], around.End())
			case *ast.CallExpr:
				return strings.HasPrefix(lastName(use.Fun), "Contains")
			}
		}
	}
	return false
}

// functionName returns the name of a function, with that of its receiver.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	return lastName(typ) + "." + d.Name.Name
}

// unordered reports whether an expression is a map, or goes through one by package maps.
func (f typedFile) unordered(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		sel, ok := call.Fun.(*ast.SelectorExpr)
		return ok && isPackage(sel, "maps")
	}
	typ := f.info.TypeOf(e)
	if typ == nil {
		return false
	}
	_, ok := typ.Underlying().(*types.Map)
	return ok
}

// harmless reports whether a statement of the body of a loop does the same in any order of the loop.
func (f typedFile) harmless(stmt ast.Stmt, loop *ast.RangeStmt, in ast.Node) bool {
	each := func(list []ast.Stmt) bool {
		return !slices.ContainsFunc(list, func(s ast.Stmt) bool { return !f.harmless(s, loop, in) })
	}
	switch s := stmt.(type) {
	case nil, *ast.IncDecStmt, *ast.EmptyStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE
	case *ast.DeclStmt:
		return true
	case *ast.BlockStmt:
		return each(s.List)
	case *ast.IfStmt:
		return f.harmless(s.Init, loop, in) && each(s.Body.List) && f.harmless(s.Else, loop, in)
	case *ast.RangeStmt:
		return each(s.Body.List)
	case *ast.ForStmt:
		return each(s.Body.List)
	case *ast.SwitchStmt:
		return f.harmless(s.Init, loop, in) && each(s.Body.List)
	case *ast.CaseClause:
		return each(s.Body)
	case *ast.ReturnStmt: // there is one, or all are so
		return !slices.ContainsFunc(s.Results, func(e ast.Expr) bool { return !constant(e) })
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && slices.Contains([]string{"delete", "clear"}, lastName(call.Fun))
	case *ast.AssignStmt:
		for i, to := range s.Lhs {
			value := s.Rhs[min(i, len(s.Rhs)-1)]
			if _, calls := value.(*ast.CallExpr); calls && lastName(to) == "_" && len(s.Lhs) == 1 {
				return false // it is called for what it does
			}
			if s.Tok != token.DEFINE && !f.settles(to, value, s.Tok, loop, in) {
				return false
			}
		}
		return true
	}
	return false
}

// constant reports whether an expression is the same for each round of a loop.
func constant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.Ident:
		return e.Name == "true" || e.Name == "false" || e.Name == "nil"
	}
	return false
}

// settles reports whether assignments come to the same in any order.
func (f typedFile) settles(to, value ast.Expr, tok token.Token, loop *ast.RangeStmt, in ast.Node) bool {
	if within(loop, to) || lastName(to) == "_" || constant(value) {
		return true
	}
	switch tok {
	case token.OR_ASSIGN, token.AND_ASSIGN, token.XOR_ASSIGN:
		return true
	case token.ADD_ASSIGN, token.SUB_ASSIGN: // of numbers
		basic, ok := f.info.TypeOf(to).Underlying().(*types.Basic)
		return ok && basic.Info()&types.IsInteger != 0
	}
	if at, ok := to.(*ast.IndexExpr); ok && f.unordered(at.X) {
		call, ok := value.(*ast.CallExpr)
		return !ok || lastName(call.Fun) != "append" || same(at.Index, loop.Key)
	}
	switch v := value.(type) {
	case *ast.BinaryExpr: // found = found || …
		return (v.Op == token.LOR || v.Op == token.LAND) && same(v.X, to)
	case *ast.CallExpr:
		switch name := lastName(v.Fun); {
		case name == "min" || name == "max":
			return true
		case name == "append":
			return sorted(in, to, loop.End())
		}
	}
	return false
}

// within reports whether a variable is declared by a loop, or in its body: what it has is of one round.
func within(loop *ast.RangeStmt, e ast.Expr) bool {
	root := e
	for {
		switch x := root.(type) {
		case *ast.SelectorExpr:
			root = x.X
		case *ast.IndexExpr:
			root = x.X
		case *ast.StarExpr:
			root = x.X
		case *ast.Ident:
			found := false
			ast.Inspect(loop, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, to := range n.Lhs {
						found = found || n.Tok == token.DEFINE && lastName(to) == x.Name
					}
				case *ast.ValueSpec:
					for _, id := range n.Names {
						found = found || id.Name == x.Name
					}
				case *ast.RangeStmt:
					found = found || n.Key != nil && lastName(n.Key) == x.Name || n.Value != nil && lastName(n.Value) == x.Name
				}
				return !found
			})
			return found
		default:
			return false
		}
	}
}

// same reports whether two expressions are written alike.
func same(a, b ast.Expr) bool {
	return a != nil && b != nil && types.ExprString(a) == types.ExprString(b)
}

// sorted reports whether a list is sorted in a body, after a position.
func sorted(body ast.Node, list ast.Expr, after token.Pos) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || call.Pos() < after || len(call.Args) == 0 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		found = found || ok && (isPackage(sel, "slices") || isPackage(sel, "sort")) && strings.HasPrefix(sel.Sel.Name, "Sort") && same(call.Args[0], list)
		return !found
	})
	return found
}

// TestOrdered plants loops that TestMapOrder refuses beside those that it lets pass.
func TestOrdered(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		"for k, v := range m { other[k] = v }":                           0,
		"for k := range m { delete(other, k) }":                          0,
		"for k := range m { list = append(list, k) }":                    1,
		"for k := range m { list = append(list, k) }; slices.Sort(list)": 0,
		"for k := range m { if k == \"\" { return }; n++ }":              0,
		"for _, v := range m { n += v; n = max(n, v) }":                  0,
		"for k := range m { text += k }":                                 1,
		"for _, v := range m { n = v }":                                  1,
		"for _, v := range m { f(v) }":                                   1,
		"for _, v := range m { found = found || v > 1 }":                 0,
		"for _, v := range m { if v > 1 { break }; n++ }":                1,
		"for k := range maps.Keys(m) { f(len(k)) }":                      1,
		"for _, k := range slices.Sorted(maps.Keys(m)) { f(len(k)) }":    0,
		"for _, v := range list { f(len(v)) }":                           0,
		"for k := range m { _ = len(k) }":                                1,
		"next := maps.Keys(m); for k := range next { f(len(k)) }":        1,
		"list = slices.Collect(maps.Keys(m))":                            1,
		"list = slices.Collect(maps.Keys(m)); slices.Sort(list)":         0,
		"maps.All(m)(func(string, int) bool { return true })":            1,
		"maps.Copy(other, m)":                                            0,
	} {
		fset := token.NewFileSet()
		src := "package p\nvar m, other map[string]int; var list []string; var n int; var text string; var found bool\nfunc f(int) {}\nfunc g() { " + body + " }\n"
		file, err := parser.ParseFile(fset, "p.go", src, 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		_, _ = (&types.Config{Error: func(error) {}}).Check("p", fset, []*ast.File{file}, info) // what it does not import has no type
		if got, _ := ordered(typedFile{file, fset, info}); len(got) != want {
			t.Errorf("%s: %d loops, want %d", body, len(got), want)
		}
	}
}
