package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// systemCalls reach others past the Dial and the Listen of the options, by package.
var systemCalls = map[string][]string{
	"net":  {"Dial", "DialTimeout", "Listen", "ListenPacket"},
	"http": {"Get", "Head", "Post", "PostForm", "DefaultClient", "ListenAndServe"},
}

// outsideSeams are the folders of the LO and the EN that work with the machine itself, so that a
// simulation has something else in their place.
var outsideSeams = []string{"en/engine/containerd", "en/engine/enginetest"}

// TestSeams checks that the LO and the EN reach others by the Dial and the Listen of their options,
// so that both run in a network in memory.
func TestSeams(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if top, _, _ := strings.Cut(s.dir, "/"); top != "lo" && top != "en" ||
			slices.ContainsFunc(outsideSeams, func(dir string) bool { return s.dir == dir || inside(s.dir, dir) }) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for pkg, names := range systemCalls {
				if isPackage(sel, pkg) && slices.Contains(names, sel.Sel.Name) {
					t.Errorf("%s: %s.%s: use the Dial or the Listen of the options", s.fset.Position(sel.Pos()), pkg, sel.Sel.Name)
				}
			}
			return true
		})
	}
}
