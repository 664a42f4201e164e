package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checksummed are the packages that frame records with a checksum of their own.
var checksummed = exceptions{
	"internal/recordlog": "it is the append log",
	"lo/journal/ondisk":  "segments, runs of tombstones and the trim mark are more than a log of records",
}

// signalling are the packages that notify through a channel of their own.
var signalling = exceptions{
	"internal/notify": "it is the notification",
}

// doubling are the packages that double a duration of their own.
var doubling = exceptions{
	"sim/fleet": "TCP's retransmission timeout, as a simulated link has it",
}

// sleeping are the packages that wait for a new timer, the end of a context, and one channel
// at most.
var sleeping = exceptions{
	"internal/retry": "it is the sleep",
}

// TestMachineryOnce checks that no package writes again what internal has: an append log with
// checksums, a back-off, a sleep that a context ends, a notification that does not block.
func TestMachineryOnce(t *testing.T) {
	t.Parallel()
	mayChecksum, maySignal := checksummed.use(t), signalling.use(t)
	mayDouble, maySleep := doubling.use(t), sleeping.use(t)
	all := sources(t)
	durations := map[string]map[string]bool{} // the names of a package
	for _, s := range all {
		if durations[s.dir] == nil {
			durations[s.dir] = map[string]bool{}
		}
		addDurations(s.file, durations[s.dir])
	}
	for _, s := range all {
		for _, pos := range doubled(s.file, durations[s.dir]) {
			if !mayDouble(s.dir) {
				t.Errorf("%s: a duration is doubled by hand: use internal/retry", s.fset.Position(pos))
			}
		}
		for _, pos := range slept(s.file) {
			if !maySleep(s.dir) {
				t.Errorf("%s: a sleep of its own: use retry.Sleep or retry.SleepOr", s.fset.Position(pos))
			}
		}
		for _, imp := range s.file.Imports {
			if sum, _ := strconv.Unquote(imp.Path.Value); slices.Contains([]string{"hash/crc32", "hash/crc64", "hash/adler32"}, sum) && !mayChecksum(s.dir) {
				t.Errorf("%s imports %s: use internal/recordlog", s.path, sum)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if strings.Contains(strings.ToLower(n.Name.Name), "backoff") && s.dir != "internal/retry" {
					t.Errorf("%s: %s: use internal/retry", s.fset.Position(n.Pos()), n.Name.Name)
				}
			case *ast.SelectStmt:
				if signals(n) && !maySignal(s.dir) {
					t.Errorf("%s: a notification of its own: use internal/notify", s.fset.Position(n.Pos()))
				}
			case *ast.BlockStmt:
				if at := broadcasts(n.List); at.IsValid() && !maySignal(s.dir) {
					t.Errorf("%s: a notification of all who wait of its own: use notify.Broadcast", s.fset.Position(at))
				}
			}
			return true
		})
	}
}

// signals reports whether a select sends what says nothing, such as struct{}{} or true, where
// there is room, and else does nothing.
func signals(n *ast.SelectStmt) bool {
	send, idle := false, false
	for _, c := range n.Body.List {
		clause, ok := c.(*ast.CommClause)
		if !ok {
			continue
		}
		if clause.Comm == nil {
			idle = len(clause.Body) == 0
			continue
		}
		if s, ok := clause.Comm.(*ast.SendStmt); ok {
			switch v := s.Value.(type) {
			case *ast.CompositeLit:
				send = send || len(v.Elts) == 0
			case *ast.BasicLit:
				send = true
			case *ast.Ident:
				send = send || v.Name == "true" || v.Name == "false"
			}
		}
	}
	return send && idle && len(n.Body.List) == 2
}

// broadcasts returns where a channel is closed and made anew in the same block.
func broadcasts(list []ast.Stmt) token.Pos {
	closed := ""
	for _, stmt := range list {
		switch stmt := stmt.(type) {
		case *ast.ExprStmt:
			if call, ok := stmt.X.(*ast.CallExpr); ok && lastName(call.Fun) == "close" && len(call.Args) == 1 {
				closed = lastName(call.Args[0])
			}
		case *ast.AssignStmt:
			for i, e := range stmt.Lhs {
				if i >= len(stmt.Rhs) || closed == "" || lastName(e) != closed {
					continue
				}
				if call, ok := stmt.Rhs[i].(*ast.CallExpr); ok && lastName(call.Fun) == "make" {
					return stmt.Pos()
				}
			}
		}
	}
	return token.NoPos
}

// TestNotificationsByHand plants what TestMachineryOnce refuses beside what it lets pass.
func TestNotificationsByHand(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		"select { case c <- struct{}{}: default: }":        1,
		"select { case c <- true: default: }":              1,
		"select { case c <- token{}: default: }":           1,
		"select { case c <- value: default: }":             0,
		"select { case c <- struct{}{}: default: lost++ }": 0,
		"close(s.c); s.c = make(chan struct{})":            1,
		"close(s.c); s.n++; s.a, s.c = 1, make(chan int)":  1,
		"close(s.c); s.d = make(chan struct{})":            0,
		"close(s.c); s.c = nil":                            0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p\nfunc f() { "+body+" }", 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got := 0
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectStmt:
				if signals(n) {
					got++
				}
			case *ast.BlockStmt:
				if broadcasts(n.List).IsValid() {
					got++
				}
			}
			return true
		})
		if got != want {
			t.Errorf("%s: %d notifications, want %d", body, got, want)
		}
	}
}
