package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestWiring checks that the root packages of the tiers only wire: what they hold
// is what they were given and what they built. A map and a lock are state, a duration is
// policy, and a goroutine that does more than run a part and end with it is logic, as are a
// switch and a loop that decides; each belongs to the package that owns it. The options of a
// tier are configuration: their types hold maps, their validation decides, and DefaultOptions
// names durations.
func TestWiring(t *testing.T) {
	t.Parallel()
	for dir, files := range byPackage(sources(t)) {
		if !slices.Contains([]string{"co", "lo", "en"}, dir) {
			continue
		}
		maps := mapTypes(files)
		for _, s := range files {
			for _, f := range unwired(s, maps) {
				t.Error(f)
			}
		}
	}
}

// mapTypes returns the names of the types of a package that are maps, or lists of them.
func mapTypes(files []source) map[string]bool {
	found := map[string]bool{}
	for range 3 { // types of types of maps
		for _, s := range files {
			ast.Inspect(s.file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok && holdsMap(spec.Type, found) {
					found[spec.Name.Name] = true
				}
				return true
			})
		}
	}
	return found
}

// holdsMap reports whether a type is a map, or a pointer to one, or a list of them.
func holdsMap(typ ast.Expr, named map[string]bool) bool {
	switch typ := typ.(type) {
	case *ast.MapType:
		return true
	case *ast.Ident:
		return named[typ.Name]
	case *ast.ArrayType:
		return holdsMap(typ.Elt, named)
	case *ast.StarExpr:
		return holdsMap(typ.X, named)
	case *ast.ParenExpr:
		return holdsMap(typ.X, named)
	}
	return false
}

// unwired returns what a file of wiring has that belongs elsewhere; maps are the types of its package that are maps.
func unwired(s source, maps map[string]bool) (faults []string) {
	refuse := func(pos token.Pos, what string) {
		faults = append(faults, s.fset.Position(pos).String()+": "+what)
	}
	for _, imp := range s.file.Imports {
		switch p, _ := strconv.Unquote(imp.Path.Value); {
		case p == "time" && imp.Name != nil:
			refuse(imp.Pos(), "import time by its name, so that a test sees its durations")
		case p == "golang.org/x/sync/errgroup":
			refuse(imp.Pos(), "goroutines in wiring: start them in the package that owns their state")
		}
	}
	for _, decl := range s.file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.VAR {
			for _, spec := range d.Specs {
				v := spec.(*ast.ValueSpec)
				if holdsMap(v.Type, maps) || slices.ContainsFunc(v.Values, func(e ast.Expr) bool { return makesMap(e, maps) }) {
					refuse(v.Pos(), "a map of the package in wiring: the package that owns the state holds it")
				}
			}
		}
	}
	inspectWithin(s.file, func(n ast.Node, in []ast.Node) {
		options := slices.ContainsFunc(in, func(n ast.Node) bool { // their defaults, and what is wrong with them
			switch d := n.(type) {
			case *ast.FuncDecl:
				return d.Name.Name == "DefaultOptions" || strings.HasPrefix(strings.ToLower(d.Name.Name), "validate")
			case *ast.TypeSpec:
				return strings.HasSuffix(d.Name.Name, "Options")
			}
			return false
		})
		switch d := n.(type) {
		case *ast.GoStmt:
			refuse(d.Pos(), "a go statement in wiring: start the goroutine in the package that owns its state")
		case *ast.SelectorExpr:
			if isPackage(d, "context") && d.Sel.Name == "AfterFunc" {
				refuse(d.Pos(), "a goroutine in wiring: start it in the package that owns its state")
			}
			if isPackage(d, "sync") && d.Sel.Name != "OnceFunc" || isPackage(d, "atomic") {
				refuse(d.Pos(), "a lock in wiring: the package that owns the state holds it")
			}
			if isPackage(d, "time") && slices.Contains([]string{"NewTicker", "NewTimer", "Tick", "After", "AfterFunc", "Sleep"}, d.Sel.Name) {
				refuse(d.Pos(), "a wait in wiring: the package that owns the policy waits")
			}
		}
		if options {
			return
		}
		switch d := n.(type) {
		case *ast.ValueSpec:
			if sel, ok := d.Type.(*ast.SelectorExpr); ok && isPackage(sel, "time") && sel.Sel.Name == "Duration" && len(d.Values) > 0 {
				refuse(d.Pos(), "a duration in wiring: it stands in the package that waits, or in DefaultOptions")
			}
		case *ast.StructType:
			for _, f := range d.Fields.List {
				if sel, ok := f.Type.(*ast.SelectorExpr); holdsMap(f.Type, maps) || ok && (isPackage(sel, "http") && sel.Sel.Name == "Header" || isPackage(sel, "url") && sel.Sel.Name == "Values") {
					refuse(f.Pos(), "a map field in wiring: the package that owns the state holds it")
				}
			}
		case *ast.SwitchStmt, *ast.TypeSwitchStmt:
			refuse(d.Pos(), "a switch in wiring: the package that owns the decision makes it")
		case *ast.ForStmt:
			if d.Cond != nil || decides(d.Body) {
				refuse(d.Pos(), "a loop that decides in wiring: it belongs to the package that owns what it looks at")
			}
		case *ast.RangeStmt:
			if decides(d.Body) {
				refuse(d.Pos(), "a loop that decides in wiring: it belongs to the package that owns what it looks at")
			}
		case *ast.CallExpr:
			if sel, ok := d.Fun.(*ast.SelectorExpr); ok && isPackage(sel, "time") && sel.Sel.Name == "Duration" && len(d.Args) == 1 {
				if _, ok := d.Args[0].(*ast.BasicLit); ok {
					refuse(d.Pos(), "a duration in wiring: it stands in the package that waits, or in DefaultOptions")
				}
			}
		case *ast.SelectorExpr:
			if isDuration(d) {
				refuse(d.Pos(), "a duration in wiring: it stands in the package that waits, or in DefaultOptions")
			}
		}
	})
	return faults
}

// makesMap reports whether an expression makes a map.
func makesMap(e ast.Expr, named map[string]bool) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return e.Type != nil && holdsMap(e.Type, named)
	case *ast.CallExpr:
		return lastName(e.Fun) == "make" && len(e.Args) > 0 && holdsMap(e.Args[0], named)
	}
	return false
}

// TestUnwired plants what TestWiring refuses beside what it lets pass.
func TestUnwired(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]int{
		"type m map[int]int; type t struct { a m }":                                   1,
		"type m []map[int]int; type n *m; type t struct { a n }":                      1,
		"type t struct { a []map[int]int }":                                           1,
		"type tOptions struct { a map[int]int }":                                      0,
		"var a = map[int]int{}":                                                       1,
		"var a map[int]int":                                                           1,
		"var a = make(map[int]int)":                                                   1,
		"var w = time.Duration(5e9)":                                                  1,
		"const w = time.Minute":                                                       1,
		"func f() { time.NewTicker(wait) }":                                           1,
		"func f() { g(3 * time.Second) }":                                             1,
		"func DefaultOptions() { _ = 3 * time.Second }":                               0,
		"func validateIt() { switch { }; _ = time.Second }":                           0,
		"func validateIt() { go func() { time.NewTicker(wait) }() }":                  2,
		"func f(d int) { _ = time.Duration(d) }":                                      0,
		"func f() { for { if x { break } } }":                                         1,
		"func f() { for _, a := range all { err := a(); if err != nil { return } } }": 0,
		"const w time.Duration = 5_000_000_000":                                       1,
		"import tm \"time\"; const w = 3 * tm.Second":                                 1,
		"import \"golang.org/x/sync/errgroup\"":                                       1,
		"func f() { context.AfterFunc(ctx, g) }":                                      1,
		"type t struct { h http.Header }":                                             1,
		"type t struct { mu sync.Mutex }":                                             1,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p\n"+src, 0)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		s := source{file: file, fset: fset}
		if got := unwired(s, mapTypes([]source{s})); len(got) != want {
			t.Errorf("%s: %q, want %d", src, got, want)
		}
	}
}

// decides reports whether the body of a loop does more with some of what it goes through than
// with the rest. That it ends at an error is no decision.
func decides(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.IfStmt:
			found = found || !onError(d)
		case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt, *ast.BranchStmt:
			found = true
		}
		return !found
	})
	return found
}

// onError reports whether a statement is if err != nil, with nothing else to do.
func onError(d *ast.IfStmt) bool {
	is, ok := d.Cond.(*ast.BinaryExpr)
	if !ok || d.Else != nil {
		return false
	}
	id, ok := is.X.(*ast.Ident)
	return ok && id.Name == "err" && is.Op == token.NEQ
}

// isDuration reports whether e is one of the constants of package time.
func isDuration(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "time" && slices.Contains([]string{"Millisecond", "Second", "Minute", "Hour"}, sel.Sel.Name)
}
