package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestWiring checks that the root packages of the tiers only wire: what they hold
// is what they were given and what they built. A map is state, a duration is
// policy, and a goroutine that does more than run a part and end with it is logic;
// each belongs to the package that owns it. The options of a tier are configuration: their
// types hold maps, and DefaultOptions names durations.
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
				return d.Name.Name != "DefaultOptions"
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
			case *ast.BinaryExpr:
				if d.Op == token.MUL && (isDuration(d.X) || isDuration(d.Y)) {
					refuse(d.Pos(), "a duration in wiring: it stands in the package that waits, or in DefaultOptions")
				}
			}
			return true
		})
	}
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
