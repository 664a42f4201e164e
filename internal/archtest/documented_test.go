package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestExportedIsDocumented checks that each exported type, function, method,
// constant and variable says what it is, and that each package comment begins as
// go doc expects.
func TestExportedIsDocumented(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.file.Doc != nil && s.file.Name.Name != "main" && !strings.HasPrefix(s.file.Doc.Text(), "Package "+s.file.Name.Name+" ") {
			t.Errorf("%s: the package comment does not begin with %q", s.path, "Package "+s.file.Name.Name)
		}
		for _, decl := range s.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverExported(d) && d.Doc == nil && !obvious[d.Name.Name] {
					t.Errorf("%s: %s is exported and not documented", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(t, s, d)
			}
		}
	}
}

// obvious are methods whose contract is that of a well-known interface.
var obvious = map[string]bool{
	"Error": true, "Unwrap": true, "Is": true, "String": true, "Len": true, "Less": true, "Swap": true, "Push": true, "Pop": true,
	"MarshalText": true, "UnmarshalText": true, "MarshalJSON": true, "UnmarshalJSON": true,
	"MarshalCBOR": true, "UnmarshalCBOR": true, "MarshalYAML": true, "UnmarshalYAML": true,
	"Close": true, "Read": true, "Write": true, "ServeHTTP": true, "Describe": true, "Collect": true, "LogValue": true,
}

func undocumented(t *testing.T, s source, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch sp := spec.(type) {
		case *ast.TypeSpec:
			if sp.Name.IsExported() && d.Doc == nil && sp.Doc == nil {
				t.Errorf("%s: type %s is exported and not documented", s.fset.Position(sp.Pos()), sp.Name.Name)
			}
		case *ast.ValueSpec:
			for _, id := range sp.Names {
				if id.IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
					t.Errorf("%s: %s is exported and not documented", s.fset.Position(id.Pos()), id.Name)
				}
			}
		}
	}
}

// TestMembersAreDocumented checks that each method of an exported interface, each constant of a group, and each field with a key in JSON, CBOR or YAML says
// what it is: in its own comment or its doc tag, or by its name in a comment of its interface, group or struct.
func TestMembersAreDocumented(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		of := membersOf(s)
		found += len(of)
		for _, m := range of {
			if !m.documented {
				t.Errorf("%s: %s is exported and not documented", s.fset.Position(m.pos), m.name)
			}
		}
	}
	if found < 2000 {
		t.Errorf("%d members found: the test looks in the wrong place", found)
	}
}

// TestUndocumentedMembersAreFound plants members without a comment.
func TestUndocumentedMembersAreFound(t *testing.T) {
	t.Parallel()
	const text = `package p

// A Port is one. Named is in its comment.
type Port interface {
	// Own has its own.
	Own()
	Named()
	Bare()
}

// The colours. Red is the first one.
const (
	Red = 1
	Green = 2 // with a comment
	Blue = 3
)

// A Message is one.
type Message struct {
	Count  int    ~json:"count"~
	Tagged int    ~json:"tagged" doc:"what it is"~
	Name   string ~json:"name"~
	Site   SiteID ~cbor:"1,keyasint"~
	Plain  int
}
`
	s := source{dir: "p", fset: token.NewFileSet()}
	var err error
	if s.file, err = parser.ParseFile(s.fset, "p.go", strings.ReplaceAll(text, "~", "`"), parser.ParseComments); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range membersOf(s) {
		if !m.documented {
			got = append(got, m.name)
		}
	}
	if want := []string{"Port.Bare", "Blue", "Message.Count"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// A member is a method of an interface, a constant of a group, or a field.
type member struct {
	name       string
	pos        token.Pos
	documented bool
}

// membersOf returns the exported members of the exported declarations of a file.
func membersOf(s source) (out []member) {
	for _, decl := range s.file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		if d.Tok == token.CONST && d.Lparen.IsValid() {
			out = append(out, constantsOf(d)...)
		}
		for _, spec := range d.Specs {
			sp, ok := spec.(*ast.TypeSpec)
			if !ok || !sp.Name.IsExported() {
				continue
			}
			switch typ := sp.Type.(type) {
			case *ast.InterfaceType:
				out = append(out, fieldsOf(sp.Name.Name, d.Doc.Text()+sp.Doc.Text(), typ.Methods.List, func(*ast.Field) bool { return true })...)
			case *ast.StructType:
				if s.dir != "margo/v1rc3" { // the Margo specification documents the fields
					out = append(out, fieldsOf(sp.Name.Name, d.Doc.Text()+sp.Doc.Text(), typ.Fields.List, keyed)...)
				}
			}
		}
	}
	return out
}

// constantsOf returns the exported constants of a group.
func constantsOf(d *ast.GenDecl) (out []member) {
	all := d.Doc.Text()
	for _, spec := range d.Specs {
		sp := spec.(*ast.ValueSpec)
		all += sp.Doc.Text() + sp.Comment.Text()
	}
	for _, spec := range d.Specs {
		sp := spec.(*ast.ValueSpec)
		for _, id := range sp.Names {
			if id.IsExported() {
				out = append(out, member{id.Name, id.Pos(), sp.Doc != nil || sp.Comment != nil || mentions(all, id.Name)})
			}
		}
	}
	return out
}

// fieldsOf returns the exported methods or fields of a type that counts selects.
func fieldsOf(owner, doc string, fields []*ast.Field, counts func(*ast.Field) bool) (out []member) {
	all := doc
	for _, f := range fields {
		all += f.Doc.Text() + f.Comment.Text()
	}
	for _, f := range fields {
		if !counts(f) {
			continue
		}
		tagged := f.Tag != nil && strings.Contains(f.Tag.Value, `doc:"`)
		for _, id := range f.Names {
			if id.IsExported() {
				out = append(out, member{owner + "." + id.Name, id.Pos(), f.Doc != nil || f.Comment != nil || tagged || mentions(all, id.Name)})
			}
		}
	}
	return out
}

// plain are fields whose name says it all.
var plain = map[string]bool{"Name": true, "ID": true, "Site": true, "Node": true, "Items": true}

// keyed reports whether a field has a key in JSON, CBOR or YAML, and neither a plain name nor a type of its own name, such as Code of protocol.Code.
func keyed(f *ast.Field) bool {
	if f.Tag == nil || len(f.Names) == 0 || plain[f.Names[0].Name] || strings.HasPrefix(typeName(f.Type), f.Names[0].Name) {
		return false
	}
	return strings.Contains(f.Tag.Value, `json:"`) || strings.Contains(f.Tag.Value, `cbor:"`) || strings.Contains(f.Tag.Value, `yaml:"`)
}

// typeName is the name of a type, or of that which a pointer or a slice is of.
func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.ArrayType:
		return typeName(x.Elt)
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// mentions reports whether a comment names a member.
func mentions(comment, member string) bool {
	return regexp.MustCompile(`\b` + member + `\b`).MatchString(comment)
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	switch x := typ.(type) {
	case *ast.IndexExpr:
		typ = x.X
	case *ast.IndexListExpr:
		typ = x.X
	}
	id, ok := typ.(*ast.Ident)
	return !ok || id.IsExported()
}

// TestLockedTypesAreDocumented checks that each type with a lock says what it is, and
// that each lock shows what it protects, which is the type's invariant: it has a comment,
// or it opens the group of fields that it protects.
func TestLockedTypesAreDocumented(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range d.Specs {
				ts, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				last := 0 // line of the field before
				for i, f := range st.Fields.List {
					line := s.fset.Position(f.Pos()).Line
					opens := i == 0 || line > last+1
					last = s.fset.Position(f.End()).Line
					if !isLock(f.Type) {
						continue
					}
					if d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: %s has a lock and is not documented", s.fset.Position(ts.Pos()), ts.Name.Name)
					}
					if f.Doc == nil && f.Comment == nil && !opens {
						t.Errorf("%s: the lock of %s does not say what it protects", s.fset.Position(f.Pos()), ts.Name.Name)
					}
				}
			}
			return true
		})
	}
}

// isLock reports whether a type is a mutex of package sync.
func isLock(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "sync" && strings.HasSuffix(sel.Sel.Name, "Mutex")
}
