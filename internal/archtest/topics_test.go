package archtest

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// TestTopicsAreBuiltInOnePlace checks that no package but protocol/topic writes a
// topic of Colony, or puts something before or behind one. Texts for people and the
// tags of struct fields, which are documentation, may name one.
func TestTopicsAreBuiltInOnePlace(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.dir == "protocol/topic" {
			continue
		}
		tags := map[*ast.BasicLit]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				tags[n.Tag] = true
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if n.Kind == token.STRING && !tags[n] && err == nil && isTopic(text) {
					t.Errorf("%s: the text %q holds a topic: build and parse topics with protocol/topic", s.fset.Position(n.Pos()), text)
				}
			case *ast.BinaryExpr:
				if n.Op == token.ADD && (buildsTopic(n.X) || buildsTopic(n.Y)) {
					t.Errorf("%s: a topic is extended with +: add what is missing to protocol/topic", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// isTopic reports whether a text is a topic, or the beginning of one. apiVersion is
// the one text that only looks so.
func isTopic(text string) bool {
	const apiVersion = "colony/v1"
	return strings.HasPrefix(text, "colony/") && text != apiVersion && !strings.ContainsAny(text, " \n")
}

// buildsTopic reports whether an expression is a call of a builder of package topic.
func buildsTopic(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(f.Sel.Name, "For") {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "topic"
}
