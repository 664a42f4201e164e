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

// pure are the packages that decide: state and time in, actions out. What lies below them is
// pure, too.
var pure = []string{
	"placement", "protocol", "margo",
	"lo/nodes", "lo/reconciler", "lo/rivals", "lo/window", "lo/control/view", "lo/command/members",
	"en/plan",
	"co/compiler", "co/fleet", "co/projection", "co/proposal", "co/repo/address", "co/repo/intent", "co/repo/layout", "co/repo/sitefile", "co/rollout",
	"broker/fifo", "broker/filter", "broker/sessions/ranking",
}

// TestPure checks that the packages that decide do no I/O, read no clock, wait for nothing and
// start no goroutine, so that a simulation steps them, and the same input gives the same output.
func TestPure(t *testing.T) {
	t.Parallel()
	spared, looked := impure.use(t), 0
	for _, s := range sources(t) {
		if !isPure(s.dir) || ofMachine(s.dir, spared) {
			continue
		}
		looked++
		for _, f := range impurities(s) {
			if !spared(s.dir + "." + f.name) {
				t.Errorf("%s: %s in a package that only decides", s.fset.Position(f.pos), f.name)
			}
		}
	}
	if looked < 150 {
		t.Errorf("%d files found: the test looks in the wrong place", looked)
	}
}

// isPure reports whether a package is one that decides.
func isPure(dir string) bool {
	return slices.ContainsFunc(pure, func(p string) bool { return dir == p || strings.HasPrefix(dir, p+"/") })
}

// impureImports are what a pure package does not import.
var impureImports = []string{
	"os", "os/exec", "net", "net/http", "database/sql", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "io/ioutil", "log/slog",
	ownPath + "internal/atomicfile", ownPath + "internal/disk", ownPath + "internal/filelock", ownPath + "internal/notify", ownPath + "internal/recordlog",
}

// ownPath is what the paths of Colony's packages begin with.
const ownPath = "github.com/colonyfleet/colony/"

// impurities returns where a file does I/O, reads the clock, waits or starts a goroutine.
func impurities(s source) (found []past) {
	clock := ""
	for _, imp := range s.file.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		if slices.Contains(impureImports, p) {
			found = append(found, past{pos: imp.Pos(), name: p})
		}
		if p == "time" {
			if clock = p; imp.Name != nil {
				clock = imp.Name.Name
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, past{pos: n.Pos(), name: "go"})
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				found = append(found, past{pos: n.Pos(), name: "<-"})
			}
		case *ast.SelectStmt:
			found = append(found, past{pos: n.Pos(), name: "select"})
		case *ast.SelectorExpr:
			if isPackage(n, "filepath") && slices.Contains(systemCalls["path/filepath"].names, n.Sel.Name) || isPackage(n, "retry") && strings.HasPrefix(n.Sel.Name, "Sleep") {
				found = append(found, past{pos: n.Pos(), name: lastName(n.X) + "." + n.Sel.Name})
			}
			if isPackage(n, clock) && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}, n.Sel.Name) {
				found = append(found, past{pos: n.Pos(), name: "time." + n.Sel.Name})
			}
		}
		return true
	})
	return found
}

// impure are the packages below pure ones that carry out, and what of a pure one only looks so.
var impure = exceptions{
	"co/rollout/driver":            "it carries out what the rollouts decide",
	"lo/nodes/store":               "it keeps the records on the disk",
	"co/rollout/gates":             "it asks other systems",
	"lo/reconciler.math/rand/v2":   "the caller gives the source of the jitter",
	"protocol/dictionary.net/http": "it reads and writes the header of a request, no more",
	"protocol/sign.crypto/rand":    "ECDSA signs with a random number",
}

// carriesOut reports whether a folder is impure as a whole.
func carriesOut(dir string) bool { return impure[dir] != "" }

// TestImpurities plants what TestPure refuses beside what it lets pass.
func TestImpurities(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]int{
		`import "os"`:                                 1,
		`import "net/http"`:                           1,
		`import "net/netip"`:                          0,
		`import "time"; func f() { time.Now() }`:      1,
		`import w "time"; var now = w.Now`:            1,
		`import "time"; func f() { time.Unix(0, 0) }`: 0,
		`func f() { go g() }`:                         1,
		`import "math/rand/v2"`:                       1,
		`import "io/ioutil"`:                          1,
		`import "github.com/colonyfleet/colony/internal/retry"; func f() { retry.Sleep(ctx, d) }`: 1,
		`import "github.com/colonyfleet/colony/internal/retry"; var p = retry.Policy{}`:           0,
		`import "path/filepath"; func f() { filepath.Glob(p) }`:                                   1,
		`func f() { <-ctx.Done() }`: 1,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p; "+src, 0)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		if got := impurities(source{file: file, fset: fset}); len(got) != want {
			t.Errorf("%s: %v, want %d", src, got, want)
		}
	}
}
