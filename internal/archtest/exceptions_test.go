package archtest

import (
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// exceptions are what a law spares, each with the reason. One that is no longer needed
// fails the test, so that the lists only shrink.
type exceptions map[string]string

// use returns a function that reports whether a name is spared. At the end of the test
// each exception that was not needed is an error.
func (e exceptions) use(t *testing.T) func(name string) bool {
	t.Helper()
	used := map[string]bool{}
	t.Cleanup(func() {
		for _, name := range slices.Sorted(maps.Keys(e)) {
			if !used[name] {
				t.Errorf("%s keeps the law: drop the exception (%s)", name, e[name])
			}
		}
	})
	return func(name string) bool {
		_, ok := e[name]
		used[name] = used[name] || ok
		return ok
	}
}

// declared calls visit for each name that a file declares: functions, types, constants,
// variables, fields, parameters and what := makes.
func declared(file *ast.File, visit func(*ast.Ident)) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			visit(d.Name)
		case *ast.TypeSpec:
			visit(d.Name)
		case *ast.ValueSpec:
			for _, id := range d.Names {
				visit(id)
			}
		case *ast.Field:
			for _, id := range d.Names {
				visit(id)
			}
		case *ast.AssignStmt:
			for _, e := range d.Lhs {
				if id, ok := e.(*ast.Ident); ok && d.Tok.String() == ":=" {
					visit(id)
				}
			}
		}
		return true
	})
}
