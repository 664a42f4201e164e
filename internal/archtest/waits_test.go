package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
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

// doubled returns where a variable or field with one of the names becomes a multiple of what it
// was, within min or max or not, and where a duration is shifted.
func doubled(file *ast.File, names map[string]bool) (at []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		if shift, ok := n.(*ast.BinaryExpr); ok && shift.Op == token.SHL && (names[lastName(shift.X)] || ofTime(shift.X)) {
			at = append(at, shift.Pos())
		}
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Lhs) != 1 || !names[lastName(a.Lhs[0])] {
			return true
		}
		switch a.Tok {
		case token.MUL_ASSIGN:
			if isNumber(a.Rhs[0]) {
				at = append(at, a.Pos())
			}
		case token.SHL_ASSIGN:
			at = append(at, a.Pos())
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

// twice reports whether an expression is a multiple of a variable, or a bound of that.
func twice(e ast.Expr, name string) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		switch e.Op {
		case token.MUL:
			return isNumber(e.X) && lastName(e.Y) == name || lastName(e.X) == name && isNumber(e.Y)
		case token.QUO:
			return isNumber(e.Y) && twice(e.X, name)
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

// isNumber reports whether an expression is a number.
func isNumber(e ast.Expr) bool {
	_, ok := e.(*ast.BasicLit)
	return ok
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
		"s.wait *= 3":                                         {doubled: 1},
		"s.wait = s.wait*3/2":                                 {doubled: 1},
		"s.wait = s.base << s.n":                              {},
		"_ = min(top, s.wait << n)":                           {doubled: 1},
		"s.wait <<= 1":                                        {doubled: 1},
		"_ = time.Second << n":                                {doubled: 1},
		"size := 1 << n; f(size)":                             {},
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

// sleepingTests are the tests that sleep outside a bubble of testing/synctest.
var sleepingTests = exceptions{
	"e2e/command/kill_test.go":     "a container that takes as long to stop",
	"e2e/command/sessions_test.go": "how long the link is cut, and how fast a person types",
	"e2e/semantics/peer_test.go":   "it asks Podman, which notifies nobody, until a deadline",
}

// TestSleepsAreVirtual checks that a test sleeps in a bubble of testing/synctest alone, where no
// time passes: elsewhere it waits for a condition, as testpart.Eventually does.
func TestSleepsAreVirtual(t *testing.T) {
	t.Parallel()
	spared, found := sleepingTests.use(t), 0
	for _, s := range parse(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		bubble := slices.ContainsFunc(s.file.Imports, func(imp *ast.ImportSpec) bool { return imp.Path.Value == `"testing/synctest"` })
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && isPackage(sel, "time") && sel.Sel.Name == "Sleep" {
				if found++; !bubble && !spared(s.path) {
					t.Errorf("%s: a test sleeps: wait for a condition with a deadline, or use testing/synctest", s.fset.Position(sel.Pos()))
				}
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("%d sleeps found: the test looks in the wrong place", found)
	}
}
