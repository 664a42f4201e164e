package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// addDurations adds the names that a file declares as time.Duration, or sets to what is
// computed with a constant of package time.
func addDurations(file *ast.File, names map[string]bool) {
	add := func(typ ast.Expr, values []ast.Expr, ids []*ast.Ident) {
		sel, ok := typ.(*ast.SelectorExpr)
		ok = ok && isPackage(sel, "time") && sel.Sel.Name == "Duration"
		if !ok && (len(values) != 1 || !ofTime(values[0])) {
			return
		}
		for _, id := range ids {
			names[id.Name] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			add(n.Type, nil, n.Names)
		case *ast.ValueSpec:
			add(n.Type, n.Values, n.Names)
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Lhs) == 1 {
				add(nil, n.Rhs, []*ast.Ident{id})
			}
		}
		return true
	})
}

// ofTime reports whether an expression is a constant of package time, or is computed
// with one by operators, min and max only.
func ofTime(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return (e.Op == token.MUL || e.Op == token.ADD || e.Op == token.SUB) && (ofTime(e.X) || ofTime(e.Y))
	case *ast.CallExpr:
		id, ok := e.Fun.(*ast.Ident)
		return ok && (id.Name == "min" || id.Name == "max") && slices.ContainsFunc(e.Args, ofTime)
	case *ast.SelectorExpr:
		return isPackage(e, "time") && slices.Contains([]string{"Millisecond", "Second", "Minute", "Hour"}, e.Sel.Name)
	}
	return false
}

// doubled returns where a variable or field with one of the names becomes twice what it
// was, within min or max or not.
func doubled(file *ast.File, names map[string]bool) (at []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Lhs) != 1 || !names[lastName(a.Lhs[0])] {
			return true
		}
		switch a.Tok {
		case token.MUL_ASSIGN:
			if isTwo(a.Rhs[0]) {
				at = append(at, a.Pos())
			}
		case token.ADD_ASSIGN:
			if lastName(a.Rhs[0]) == lastName(a.Lhs[0]) {
				at = append(at, a.Pos())
			}
		case token.ASSIGN:
			if twice(a.Rhs[0], lastName(a.Lhs[0])) {
				at = append(at, a.Pos())
			}
		}
		return true
	})
	return at
}

// twice reports whether an expression is twice a variable, or a bound of that.
func twice(e ast.Expr, name string) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		switch e.Op {
		case token.MUL:
			return isTwo(e.X) && lastName(e.Y) == name || lastName(e.X) == name && isTwo(e.Y)
		case token.ADD:
			return lastName(e.X) == name && lastName(e.Y) == name
		}
	case *ast.CallExpr:
		id, ok := e.Fun.(*ast.Ident)
		return ok && (id.Name == "min" || id.Name == "max") &&
			slices.ContainsFunc(e.Args, func(arg ast.Expr) bool { return twice(arg, name) })
	}
	return false
}

// isTwo reports whether an expression is the number 2.
func isTwo(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Value == "2"
}

// lastName returns the name of a variable or field, or "".
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// slept returns the selects that do what retry.SleepOr does: they receive from a timer
// that is made for them, from the Done of a context, and from one more channel or none. A
// timer that outlives the select is something else: its time goes on from one wait to the next.
func slept(file *ast.File) (at []token.Pos) {
	look := func(list []ast.Stmt) {
		made := "" // the timer of the statements just before
		for _, stmt := range list {
			switch stmt := stmt.(type) {
			case *ast.SelectStmt:
				if sleeps(stmt, made) {
					at = append(at, stmt.Pos())
				}
				made = ""
			case *ast.AssignStmt:
				made = newTimer(stmt)
			case *ast.DeferStmt: // of its Stop
			default:
				made = ""
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			look(n.List)
		case *ast.CaseClause:
			look(n.Body)
		case *ast.CommClause:
			look(n.Body)
		}
		return true
	})
	return at
}

// newTimer returns the name of the timer that a statement makes, or "".
func newTimer(a *ast.AssignStmt) string {
	call, ok := a.Rhs[0].(*ast.CallExpr)
	if !ok || a.Tok != token.DEFINE || len(a.Lhs) != 1 {
		return ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !isPackage(sel, "time") || sel.Sel.Name != "NewTimer" {
		return ""
	}
	return lastName(a.Lhs[0])
}

// sleeps reports whether a select is a sleep; made is the timer made just before, or "".
func sleeps(n *ast.SelectStmt, made string) bool {
	if len(n.Body.List) > 3 {
		return false
	}
	done, timer, others := 0, 0, 0
	for _, c := range n.Body.List {
		comm := c.(*ast.CommClause).Comm
		stmt, ok := comm.(*ast.ExprStmt) // no send, no default, no value that is used
		if !ok {
			return false
		}
		from, ok := stmt.X.(*ast.UnaryExpr)
		if !ok || from.Op != token.ARROW {
			return false
		}
		switch method, recv := receiver(from.X); {
		case method == "Done()":
			done++
		case method == "After()" && recv == "time", method == "C" && made != "" && recv == made:
			timer++
		default:
			others++
		}
	}
	return done == 1 && timer == 1 && others <= 1
}

// receiver returns the last selector of a channel, with () where it is called, and the
// name before it.
func receiver(e ast.Expr) (last, before string) {
	end := ""
	if call, ok := e.(*ast.CallExpr); ok {
		e, end = call.Fun, "()"
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	return sel.Sel.Name + end, lastName(sel.X)
}

// TestWaitsByHand plants what TestMachineryOnce refuses beside what it lets pass.
func TestWaitsByHand(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct{ doubled, slept int }{
		"s.wait *= 2":                                         {doubled: 1},
		"s.wait = min(2*s.wait, top)":                         {doubled: 1},
		"s.wait += s.wait":                                    {doubled: 1},
		"d := 3 * time.Second; d = d * 2":                     {doubled: 1},
		"items := 1; items *= 2":                              {},
		"s.wait *= 3":                                         {},
		"s.wait = 2 * other":                                  {},
		"end := time.Now(); end = f(end,2)":                   {},
		"select { case <-ctx.Done(): case <-time.After(d): }": {slept: 1},
		"select { case <-ctx.Done(): return; case <-time.After(d): case <-c: }":                                    {slept: 1},
		"t := time.NewTimer(d); defer t.Stop(); select { case <-t.C: case <-s.ctx.Done(): case <-n.C(): }":         {slept: 1},
		"t := time.NewTimer(d); for { select { case <-t.C: case <-s.ctx.Done(): case <-n.C(): } }":                 {},
		"select { case <-ctx.Done(): case <-c: }":                                                                  {},
		"select { case <-ctx.Done(): case <-time.After(d): case <-c: case <-e: }":                                  {},
		"select { case <-ctx.Done(): case <-time.After(d): case v := <-c: f(v) }":                                  {},
		"select { case <-ctx.Done(): case <-time.After(d): case c <- 1: }":                                         {},
		"t := time.NewTicker(d); defer t.Stop(); select { case <-t.C: case <-ctx.Done(): }":                        {},
		"for { t := time.NewTimer(d); select { case <-t.C: case <-ctx.Done(): case <-n.C(): }; t.Stop(); f(ctx) }": {slept: 1},
	} {
		src := "package p\ntype s struct { wait time.Duration; n int }\nfunc f() { " + body + " }"
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		names := map[string]bool{}
		addDurations(file, names)
		if got := len(doubled(file, names)); got != want.doubled {
			t.Errorf("%s: %d durations doubled, want %d", body, got, want.doubled)
		}
		if got := len(slept(file)); got != want.slept {
			t.Errorf("%s: %d sleeps, want %d", body, got, want.slept)
		}
	}
}
