package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// metricPrefixes are what the names of metrics begin with, by the first folder of the
// package that registers them.
var metricPrefixes = map[string]string{"co": "colony_co_", "lo": "colony_lo_", "en": "colony_en_", "broker": "colony_broker_"}

// scrapedName is the name of a metric, or the beginning of one.
var scrapedName = regexp.MustCompile(`^colony_(co|lo|en|broker)_[a-z0-9_]*$`)

// TestMetrics checks that metrics are named in one way: the name stands in one text as it is
// scraped, so that a search for it finds the code, and begins with the prefix of the tier. A
// counter ends with _total, and nothing else does. They are registered with the registerer
// that a package is given, never with the global one.
func TestMetrics(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.dir, "/")
		refuse := func(pos token.Pos, what string) {
			t.Errorf("%s: %s", s.fset.Position(pos), what)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				if !scrapedName.MatchString(text) {
					return true
				}
				prefix, ok := metricPrefixes[top]
				if !ok {
					return true // it reads what a tier answers
				}
				found++
				if !strings.HasPrefix(text, prefix) {
					refuse(n.Pos(), "the name of the metric does not begin with "+prefix)
				} else if strings.HasSuffix(text, "_") {
					refuse(n.Pos(), "a part of the name of a metric: write each name whole, as it is scraped")
				}
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Opts") && sel.Sel.Name != "HandlerOpts" {
					if metricPrefixes[top] == "" {
						refuse(n.Pos(), "a metric of a package that belongs to no tier")
					}
					metricOptions(sel.Sel.Name, n.Elts, refuse)
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				switch {
				case isPackage(sel, "prometheus") && sel.Sel.Name == "NewDesc" && !wholeName(n.Args[0]):
					refuse(n.Pos(), "the name of the metric is put together: write each name whole, as it is scraped")
				case isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Register"), isPackage(sel, "promauto") && sel.Sel.Name != "With":
					refuse(n.Pos(), "a metric in the global registry: use the registerer of the options")
				}
			}
			return true
		})
	}
	if found < 80 {
		t.Errorf("%d metrics found: the test looks in the wrong place", found)
	}
}

// metricOptions checks the options of a metric, whose type has a name such as CounterOpts.
func metricOptions(options string, fields []ast.Expr, refuse func(token.Pos, string)) {
	for _, e := range fields {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := kv.Key.(*ast.Ident); key.Name {
		case "Namespace", "Subsystem":
			refuse(kv.Pos(), key.Name+" of a metric: write the whole name in Name")
		case "Name":
			if !wholeName(kv.Value) {
				refuse(kv.Pos(), "the name of the metric is put together: write each name whole, as it is scraped")
			}
			lit, ok := kv.Value.(*ast.BasicLit)
			if !ok {
				continue
			}
			if text, _ := strconv.Unquote(lit.Value); strings.HasSuffix(text, "_total") != (options == "CounterOpts") {
				refuse(kv.Pos(), "a counter ends with _total, and nothing else does")
			}
		}
	}
}

// wholeName reports whether an expression is a text, or a variable or field that holds one.
func wholeName(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit, *ast.Ident:
		return true
	case *ast.SelectorExpr:
		_, ok := e.X.(*ast.Ident)
		return ok
	default:
		return false
	}
}

// isPackage reports whether a selector is of the package with a name.
func isPackage(sel *ast.SelectorExpr, name string) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == name
}
