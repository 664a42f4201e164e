package archtest

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// units says what the comment of a field names, by how the field's name ends.
var units = map[string]*regexp.Regexp{
	"Millis":    regexp.MustCompile(`millisecond`),
	"Micros":    regexp.MustCompile(`microsecond`),
	"Sec":       regexp.MustCompile(`second`),
	"Bytes":     regexp.MustCompile(`byte`),
	"PerSecond": regexp.MustCompile(`byte`),
}

// absent is how a comment says what the absence of a field means.
var absent = regexp.MustCompile(`(?i)absent|empty|\bnil\b|\b0 (means|in|while)`)

// TestWireFields checks that each field of a message says what it is, its unit, and, if it may be
// absent, what that means: in its own comment, or in that of the message for all its fields. The
// sender of a message owns its fields, see the comment of package protocol.
func TestWireFields(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		if s.dir != "protocol" && !strings.HasPrefix(s.dir, "protocol/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range decl.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if fields, ok := typ.Type.(*ast.StructType); ok {
					found += wireFields(t, s, typ.Name.Name, decl.Doc.Text()+typ.Doc.Text(), fields)
				}
			}
			return true
		})
	}
	if found < 100 {
		t.Errorf("%d fields of messages found: the test looks in the wrong place", found)
	}
}

// wireFields checks the fields of one message and returns how many there are.
func wireFields(t *testing.T, s source, message, doc string, fields *ast.StructType) (found int) {
	t.Helper()
	for _, f := range fields.Fields.List {
		if f.Tag == nil || !strings.Contains(f.Tag.Value, "keyasint") {
			continue
		}
		found++
		at, name := s.fset.Position(f.Pos()), message+"."+f.Names[0].Name
		own := f.Doc.Text() + f.Comment.Text()
		if own == "" {
			t.Errorf("%s: %s has no comment: say what it is", at, name)
			continue
		}
		if strings.Contains(f.Tag.Value, "omit") && !absent.MatchString(own) && !absent.MatchString(doc) {
			t.Errorf("%s: %s does not say what it means where it is absent", at, name)
		}
		for suffix, unit := range units {
			if strings.HasSuffix(f.Names[0].Name, suffix) && !unit.MatchString(own) {
				t.Errorf("%s: %s does not say its unit (%s)", at, name, unit)
			}
		}
	}
	return found
}
