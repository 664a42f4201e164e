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
	"github.com/colonyfleet/colony/protocol/wiretest"
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
		if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "SessionReason" { // why sessions end is no event
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
	kinds := wiretest.Constants(t, "../../protocol/journal.go", "EventKind")
	if len(kinds) < 20 {
		t.Errorf("%d kinds found: the test does not read package protocol", len(kinds))
	}
	for _, k := range kinds {
		if !slices.Contains(fleet.EventKinds, k.Value) && !slices.Contains(notEvents, protocol.EventKind(k.Value)) {
			t.Errorf("protocol.%s (%q) is not in EventKinds", k.Name, k.Value)
		}
	}
}

// notEvents are the kinds that the CO records otherwise: of streams of machine data, and of
// what a later event replaced.
var notEvents = []protocol.EventKind{
	protocol.Superseded, protocol.DataEvent, protocol.DataExpired, protocol.RetainedBegin, protocol.RetainedEnd,
}
