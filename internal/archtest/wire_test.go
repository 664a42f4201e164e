package archtest

import (
	"go/ast"
	"strings"
	"testing"
)

// TestWireFields checks that each field of a message says what it is: a field with
// a CBOR key has a comment of its own, or shares the one right above a group of
// fields of one type.
func TestWireFields(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		if s.dir != "protocol" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			fields, ok := typ.Type.(*ast.StructType)
			if !ok {
				return true
			}
			explained, last := false, 0
			for _, f := range fields.Fields.List {
				line := s.fset.Position(f.Pos()).Line
				own := f.Doc != nil || f.Comment != nil
				// A group: no line between this field and the one before.
				explained = own || explained && line == last+1
				last = s.fset.Position(f.End()).Line
				if f.Tag == nil || !strings.Contains(f.Tag.Value, "keyasint") {
					continue
				}
				found++
				if !explained {
					t.Errorf("%s: %s.%s has no comment: say its unit, and what it means where it is absent",
						s.fset.Position(f.Pos()), typ.Name.Name, f.Names[0].Name)
				}
			}
			return true
		})
	}
	if found < 100 {
		t.Errorf("%d fields of messages found: the test looks in the wrong place", found)
	}
}
