package archtest

import (
	"go/ast"
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
