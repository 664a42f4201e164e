package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	pathpkg "path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// systemCalls go past what the options of a tier have for it, by the path of the package.
var systemCalls = map[string]struct {
	names   []string
	instead string
}{
	"net": {[]string{
		"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialUnix", "DialIP", "Listen", "ListenPacket", "ListenTCP", "ListenUDP", "ListenUnix", "ListenUnixgram", "ListenIP", "ListenMulticastUDP",
		"LookupHost", "LookupIP", "LookupAddr", "LookupCNAME", "LookupMX", "LookupNS", "LookupSRV", "LookupTXT", "LookupPort", "ResolveTCPAddr", "ResolveUDPAddr", "ResolveIPAddr",
		"Dialer", "ListenConfig", "DefaultResolver", "Resolver",
	}, "use the Dial or the Listen of the options"},
	"crypto/tls": {[]string{"Dial", "DialWithDialer", "Dialer", "Listen"}, "use the Dial or the Listen of the options, and tls.Client or tls.NewListener on it"},
	"net/http":   {[]string{"Get", "Head", "Post", "PostForm", "DefaultClient", "DefaultTransport", "ListenAndServe", "ListenAndServeTLS"}, "use the Dial or the Listen of the options"},
	"os": {[]string{
		"Open", "OpenFile", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "ReadDir", "Stat", "Lstat", "DirFS",
		"Mkdir", "MkdirAll", "MkdirTemp", "Rename", "Remove", "RemoveAll", "Link", "Symlink", "Readlink", "Truncate", "Chmod", "Chown", "Chtimes", "CopyFS", "StartProcess",
	}, "use the Disk of the options"},
	"io/ioutil":     {[]string{"ReadFile", "WriteFile", "ReadDir", "TempFile", "TempDir"}, "use the Disk of the options"},
	"path/filepath": {[]string{"Glob", "Walk", "WalkDir", "EvalSymlinks"}, "use the Disk of the options"},
	"os/exec":       {[]string{"Command", "CommandContext", "Cmd", "LookPath"}, "programs of the machine are run by the container engine alone"},
	"math/rand":     {draws, "use the Random of the options"},
	"math/rand/v2":  {draws, "use the Random of the options"},
	"crypto/rand":   {draws, "use the Random of the options"},
	"syscall":       {opens, "use the Disk of the options"},

	"golang.org/x/sys/unix": {opens, "use the Disk of the options"},
}

var (
	draws = []string{
		"Read", "Text", "Reader", "Int", "IntN", "Int32N", "Int64", "Int64N", "Uint32", "Uint64", "Uint64N", "N", "Float32", "Float64", "Perm", "Shuffle",
		"Intn", "Int31", "Int31n", "Int63", "Int63n", "Int32", "Uint", "UintN", "Uint32N", "ExpFloat64", "NormFloat64", "Seed", "Prime",
	}
	opens = []string{"Open", "Openat", "Openat2", "Creat", "Mkdir", "Unlink", "Rename", "Stat", "Lstat"}
)

// outsideSeams are the folders of the LO and the EN that work with the machine itself, so that a
// simulation has something else in their place.
var outsideSeams = exceptions{
	"en/engine/containerd":         "containerd is on this machine: en/engine/memory is in its place",
	"en/engine/logs/ondisk":        "the shims of containers write to files of this machine: the engine in memory has its own logs",
	"en/command/kinds/diagnostics": "it collects what the kernel and the system say of this machine",
	"en/inventory":                 "it reads /proc and /sys, below the Root of its options, and what the kernel calls this machine and its boot",
}

// systemDefaults are the packages that have what the system has as the default of an option.
var systemDefaults = exceptions{
	"en.Dialer":                                 "where the options have no Dial",
	"en/probe.Dialer":                           "where the options have no Dial",
	"en/command/kinds/netcheck.Dialer":          "where the options have no Dial",
	"en/command/kinds/netcheck.DefaultResolver": "where the options have no Resolve",
	"en/command/kinds/files.Glob":               "it finds files of this machine by the patterns that a person names",
	"en/command/kinds/files.Openat2":            "it reads files of this machine that a person names, and follows no link out of their folder",
}

// TestSeams checks that the LO and the EN reach others by the Dial and the Listen of their options, keep what
// they have on the Disk of these, and draw by their Random, so that both run in memory and one seed says what they draw.
func TestSeams(t *testing.T) {
	t.Parallel()
	spared, byDefault, looked := outsideSeams.use(t), systemDefaults.use(t), 0
	for _, s := range sources(t) {
		if top, _, _ := strings.Cut(s.dir, "/"); top != "lo" && top != "en" {
			continue
		}
		looked++
		for _, f := range pastSeams(s) {
			if !byDefault(s.dir+"."+f.name) && !ofMachine(s.dir, spared) {
				t.Errorf("%s: %s: %s", s.fset.Position(f.pos), f.name, f.instead)
			}
		}
	}
	if looked < 100 {
		t.Errorf("%d files found: the test looks in the wrong place", looked)
	}
}

// past is a use of the system.
type past struct {
	pos           token.Pos
	name, instead string
}

// pastSeams returns where a file uses the system, by whatever name it imports the package.
func pastSeams(s source) (found []past) {
	paths := map[string]string{} // of packages, by their names in the file
	for _, imp := range s.file.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		name := strings.TrimSuffix(p, "/v2")
		name = name[strings.LastIndexByte(name, '/')+1:]
		if imp.Name != nil {
			name = imp.Name.Name
		}
		paths[name] = p
	}
	for _, imp := range s.file.Imports {
		if p, _ := strconv.Unquote(imp.Path.Value); imp.Name != nil && imp.Name.Name == "." && len(systemCalls[p].names) > 0 {
			found = append(found, past{imp.Pos(), ".", "import " + p + " by its name, so that a test sees what is used of it"})
		}
	}
	// zero returns the type of net/http that a declaration, or new, makes without a Transport or a DialContext.
	zero := func(typ ast.Expr) {
		if sel, ok := typ.(*ast.SelectorExpr); ok && paths[lastName(sel.X)] == "net/http" && slices.Contains([]string{"Client", "Transport"}, sel.Sel.Name) {
			found = append(found, past{typ.Pos(), sel.Sel.Name, "as a zero value it dials by itself: use the Dial of the options"})
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Values) == 0 {
				zero(n.Type)
			}
		case *ast.CallExpr:
			if fun, ok := n.Fun.(*ast.Ident); ok && fun.Name == "new" && len(n.Args) == 1 {
				zero(n.Args[0])
			}
		case *ast.SelectorExpr:
			id, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			if calls := systemCalls[paths[id.Name]]; slices.Contains(calls.names, n.Sel.Name) {
				found = append(found, past{n.Pos(), n.Sel.Name, calls.instead})
			}
		case *ast.CompositeLit:
			sel, ok := n.Type.(*ast.SelectorExpr)
			if !ok || paths[lastName(sel.X)] != "net/http" {
				return true
			}
			if need := map[string]string{"Client": "Transport", "Transport": "DialContext"}[sel.Sel.Name]; need != "" && !sets(n, need) {
				found = append(found, past{n.Pos(), sel.Sel.Name, "without " + need + " it dials by itself: use the Dial of the options"})
			}
		}
		return true
	})
	return found
}

// sets reports whether a literal of a struct sets a field.
func sets(lit *ast.CompositeLit, field string) bool {
	return slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		kv, ok := e.(*ast.KeyValueExpr)
		return ok && lastName(kv.Key) == field
	})
}

// TestPastSeams plants what TestSeams refuses beside what it lets pass.
func TestPastSeams(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]int{
		`import "net"; var d net.Dialer`:                                                      1,
		`import "net"; func f() { new(net.Dialer).DialContext(ctx, "tcp", a) }`:               1,
		`import "net"; var l net.ListenConfig`:                                                1,
		`import n "net"; func f() { n.Dial("tcp", a) }`:                                       1,
		`import "net/http"; var c = http.Client{}`:                                            1,
		`import "net/http"; var c = &http.Client{Transport: t}`:                               0,
		`import "net/http"; var c = &http.Client{Transport: &http.Transport{}}`:               1,
		`import "net/http"; var c = &http.Client{Transport: &http.Transport{DialContext: d}}`: 0,
		`import sys "os"; func f() { sys.ReadFile(p) }`:                                       1,
		`import "example.org/os"; func f() { os.ReadFile(p) }`:                                0,
		`import "syscall"; func f() { syscall.Open(p, 0, 0) }`:                                1,
		`import "math/rand/v2"; func f() { rand.IntN(3) }`:                                    1,
		`import "crypto/tls"; func f() { tls.Dial("tcp", a, c) }`:                             1,
		`import "crypto/tls"; func f() { tls.Client(conn, c) }`:                               0,
		`import "net"; func f() { net.DialTCP("tcp", nil, a); net.ListenTCP("tcp", a) }`:      2,
		`import "net"; var r = net.Resolver{}`:                                                1,
		`import "net/http"; var c = new(http.Client)`:                                         1,
		`import "net/http"; var c http.Client`:                                                1,
		`import "net/http"; var c *http.Client`:                                               0,
		`import "net/http"; var t http.Transport`:                                             1,
		`import "path/filepath"; func f() { filepath.Glob(p); filepath.Join(p) }`:             1,
		`import "math/rand"; func f() { rand.Intn(3) }`:                                       1,
		`import "os/exec"; var c = exec.Cmd{}`:                                                1,
		`import . "os"; func f() { ReadFile(p) }`:                                             1,
		`import "os"; var e = os.ErrNotExist`:                                                 0,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p; "+src, 0)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		if got := pastSeams(source{file: file, fset: fset}); len(got) != want {
			t.Errorf("%s: %v, want %d", src, got, want)
		}
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
