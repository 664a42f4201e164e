package archtest

import (
	"go/ast"
	"go/token"
	"slices"
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
	for _, s := range sources(t) {
		if !slices.Contains([]string{"co", "lo", "en"}, s.dir) {
			continue
		}
		refuse := func(pos token.Pos, what string) {
			t.Errorf("%s: %s", s.fset.Position(pos), what)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				return d.Name.Name != "DefaultOptions" && !strings.HasPrefix(strings.ToLower(d.Name.Name), "validate")
			case *ast.TypeSpec:
				return !strings.HasSuffix(d.Name.Name, "Options")
			case *ast.GoStmt:
				refuse(d.Pos(), "a go statement in wiring: start the goroutine in the package that owns its state")
			case *ast.StructType:
				for _, f := range d.Fields.List {
					if _, ok := f.Type.(*ast.MapType); ok {
						refuse(f.Pos(), "a map field in wiring: the package that owns the state holds it")
					}
				}
			case *ast.SelectorExpr:
				if isPackage(d, "sync") && d.Sel.Name != "OnceFunc" || isPackage(d, "atomic") {
					refuse(d.Pos(), "a lock in wiring: the package that owns the state holds it")
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
			case *ast.BinaryExpr:
				if d.Op == token.MUL && (isDuration(d.X) || isDuration(d.Y)) {
					refuse(d.Pos(), "a duration in wiring: it stands in the package that waits, or in DefaultOptions")
				}
			}
			return true
		})
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
