package archtest

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// metricPrefixes are what the names of metrics begin with, by the first folder of the
// package that registers them.
var metricPrefixes = map[string]string{"co": "colony_co_", "lo": "colony_lo_", "broker": "colony_broker_"}

// TestMetrics checks that metrics are named in one way: the whole name stands in Name,
// so that a search for it finds the code, and begins with the prefix of the tier. They
// are registered with the registerer that a package is given, never with the global one.
func TestMetrics(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.dir, "/")
		refuse := func(pos token.Pos, what string) {
			t.Errorf("%s: %s", s.fset.Position(pos), what)
		}
		name := func(e ast.Expr) {
			found++
			prefix, ok := metricPrefixes[top]
			if !ok {
				refuse(e.Pos(), "a metric of a package that belongs to no tier")
			} else if !strings.HasPrefix(leftmost(e), prefix) {
				refuse(e.Pos(), "the name of the metric does not begin with the text "+prefix)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); !ok || !isPackage(sel, "prometheus") || !strings.HasSuffix(sel.Sel.Name, "Opts") {
					return true
				}
				for _, e := range n.Elts {
					kv, ok := e.(*ast.KeyValueExpr)
					if !ok {
						continue
					}
					switch key, _ := kv.Key.(*ast.Ident); key.Name {
					case "Namespace", "Subsystem":
						refuse(kv.Pos(), key.Name+" of a metric: write the whole name in Name")
					case "Name":
						name(kv.Value)
					}
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				switch {
				case isPackage(sel, "prometheus") && sel.Sel.Name == "NewDesc":
					name(n.Args[0])
				case isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Register"), isPackage(sel, "promauto") && sel.Sel.Name != "With":
					refuse(n.Pos(), "a metric in the global registry: use the registerer of the options")
				}
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("%d metrics found: the test looks in the wrong place", found)
	}
}

// leftmost returns the text that an expression of strings begins with, or "".
func leftmost(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.BinaryExpr:
			e = x.X
		case *ast.BasicLit:
			text, _ := strconv.Unquote(x.Value)
			return text
		default:
			return ""
		}
	}
}

// isPackage reports whether a selector is of the package with a name.
func isPackage(sel *ast.SelectorExpr, name string) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == name
}
