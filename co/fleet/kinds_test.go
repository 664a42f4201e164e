package fleet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestEventKindsAreAll finds each kind of event that this package or package protocol names in
// EventKinds: filters refuse what is not in it.
func TestEventKindsAreAll(t *testing.T) {
	t.Parallel()
	kind := regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	inspect := func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, v := range spec.Values {
			literal, ok := v.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				continue
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil || !kind.MatchString(text) {
				continue
			}
			found++
			if !slices.Contains(fleet.EventKinds, text) {
				t.Errorf("%s (%q) is not in EventKinds", spec.Names[i].Name, text)
			}
		}
		return true
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, inspect)
	}
	if found < 15 {
		t.Errorf("%d kinds found: the test does not read the package", found)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "../../protocol/journal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found = 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "EventKind" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if found++; !slices.Contains(fleet.EventKinds, text) && !slices.Contains(notEvents, protocol.EventKind(text)) {
			t.Errorf("protocol.%s (%q) is not in EventKinds", spec.Names[0].Name, text)
		}
		return true
	})
	if found < 20 {
		t.Errorf("%d kinds found: the test does not read package protocol", found)
	}
}

// notEvents are the kinds that the CO records otherwise: of streams of machine data, and of
// what a later event replaced.
var notEvents = []protocol.EventKind{
	protocol.Superseded, protocol.DataEvent, protocol.DataExpired, protocol.RetainedBegin, protocol.RetainedEnd,
}
