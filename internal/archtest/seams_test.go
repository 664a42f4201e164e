package archtest

import (
	"go/ast"
	pathpkg "path"
	"slices"
	"strings"
	"testing"
)

// systemCalls go past what the options of a tier have for it, by package.
var systemCalls = map[string]struct {
	names   []string
	instead string
}{
	"net":  {[]string{"Dial", "DialTimeout", "Listen", "ListenPacket", "LookupHost", "LookupIP", "LookupAddr"}, "use the Dial or the Listen of the options"},
	"http": {[]string{"Get", "Head", "Post", "PostForm", "DefaultClient", "DefaultTransport", "ListenAndServe"}, "use the Dial or the Listen of the options"},
	"os": {[]string{
		"Open", "OpenFile", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "ReadDir", "Stat", "Lstat", "DirFS",
		"Mkdir", "MkdirAll", "MkdirTemp", "Rename", "Remove", "RemoveAll", "Link", "Symlink", "Truncate", "Chmod", "Chtimes",
	}, "use the Disk of the options"},
	"exec": {[]string{"Command", "CommandContext"}, "programs of the machine are run by the container engine alone"},
	"rand": {[]string{
		"Read", "Text", "Reader", "Int", "IntN", "Int32N", "Int64", "Int64N", "Uint32", "Uint64", "Uint64N", "N", "Float32", "Float64", "Perm", "Shuffle",
	}, "use the Random of the options"},
}

// outsideSeams are the folders of the LO and the EN that work with the machine itself, so that a
// simulation has something else in their place.
var outsideSeams = exceptions{
	"en/engine/containerd":         "containerd is on this machine: en/engine/memory is in its place",
	"en/engine/logs/ondisk":        "the shims of containers write to files of this machine: the engine in memory has its own logs",
	"en/command/kinds/diagnostics": "it collects what the kernel and the system say of this machine",
	"en/inventory":                 "it reads /proc and /sys, below the Root of its options, and what the kernel calls this machine and its boot",
}

// TestSeams checks that the LO and the EN reach others by the Dial and the Listen of their options, keep what
// they have on the Disk of these, and draw by their Random, so that both run in memory and one seed says what they draw.
func TestSeams(t *testing.T) {
	t.Parallel()
	spared, looked := outsideSeams.use(t), 0
	for _, s := range sources(t) {
		if top, _, _ := strings.Cut(s.dir, "/"); top != "lo" && top != "en" {
			continue
		}
		looked++
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for pkg, calls := range systemCalls {
				if isPackage(sel, pkg) && slices.Contains(calls.names, sel.Sel.Name) && !ofMachine(s.dir, spared) {
					t.Errorf("%s: %s.%s: %s", s.fset.Position(sel.Pos()), pkg, sel.Sel.Name, calls.instead)
				}
			}
			return true
		})
	}
	if looked < 100 {
		t.Errorf("%d files found: the test looks in the wrong place", looked)
	}
}

// ofMachine reports whether a folder, or one that it lies in, works with the machine itself.
func ofMachine(dir string, spared func(string) bool) bool {
	for ; dir != "."; dir = pathpkg.Dir(dir) {
		if spared(dir) {
			return true
		}
	}
	return false
}
