package archtest

import (
	"go/ast"
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

// TestMachineryOnce checks that nobody writes again what internal has: an append log with
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
			if imp.Path.Value == `"hash/crc32"` && !mayChecksum(s.dir) {
				t.Errorf("%s imports hash/crc32: use internal/recordlog", s.path)
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
			}
			return true
		})
	}
}

// signals reports whether a select sends struct{}{} where there is room, and else nothing.
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
			if lit, ok := s.Value.(*ast.CompositeLit); ok {
				_, empty := lit.Type.(*ast.StructType)
				send = send || empty
			}
		}
	}
	return send && idle && len(n.Body.List) == 2
}
