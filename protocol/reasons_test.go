package protocol

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// firstCodes are those of the first release with a schema: a later one says since which release it is there.
var firstCodes = []Code{
	ImageNotFound, ImageUnauthorized, DigestMismatch, NoSpace, CreateFailed, StartFailed, ProbeFailed,
	CrashLoop, Timeout, NodeLost, Incompatible, SignatureInvalid, EngineUnavailable, InternalError,
}

// TestReasons holds docs/reasons.md to the comments of the codes: UPDATE=1 writes it.
func TestReasons(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "status.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(`# Why a deployment failed

Made of the comments in ` + "`protocol/status.go`" + ` by ` + "`UPDATE=1 go test ./protocol`" + `; do not edit it.

A deployment that is FAILED, or that was rolled back, has one of these codes and a message that names the object. After the cure of a version that was
given up, ` + "`colony deployment retry`" + ` has the nodes try it again.

| code | cause | cure |
|---|---|---|
`)
	var documented []Code
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Code" {
			return true
		}
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		name := spec.Names[0].Name
		text := strings.Join(strings.Fields(spec.Doc.Text()), " ")
		cause, cure, ok := strings.Cut(strings.TrimPrefix(text, name+": "), " Cure: ")
		if !ok || !strings.HasPrefix(text, name+": ") {
			t.Errorf("the comment of %s is %q: want %q", name, text, name+": <cause>. Cure: <cure>.")
		}
		if said := since.MatchString(cause); said == slices.Contains(firstCodes, Code(code)) || since.MatchString(cure) {
			t.Errorf("the comment of %s is %q: want Since and the release before Cure:, but for the codes of the first release", name, text)
		}
		documented = append(documented, Code(code))
		fmt.Fprintf(&page, "| `%s` | %s | %s |\n", code, upper(cause), upper(cure))
		return true
	})
	if !slices.Equal(documented, Codes) {
		t.Errorf("declared codes %q, Codes has %q", documented, Codes)
	}
	const path = "../docs/reasons.md"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(held) != page.String() {
		t.Errorf("%s is not what the code says: run UPDATE=1 go test ./protocol", path)
	}
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// TestCodesOfVersions wants a decision about each code: whether it says how the containers of
// a version behaved, so that no rollback goes to the version.
func TestCodesOfVersions(t *testing.T) {
	t.Parallel()
	ofVersion := map[Code]bool{
		ImageNotFound: false, ImageUnauthorized: false, DigestMismatch: false, NoSpace: false, CreateFailed: false,
		StartFailed: true, ProbeFailed: true, CrashLoop: true, Timeout: true,
		RegistryUnavailable: false, NodeLost: false, Incompatible: false, SignatureInvalid: false, EngineUnavailable: false, InternalError: false,
	}
	for _, code := range Codes {
		want, ok := ofVersion[code]
		if !ok {
			t.Errorf("%s: decide whether OfVersion is true of it, and add it here", code)
		} else if got := code.OfVersion(); got != want {
			t.Errorf("%s: OfVersion is %t, want %t", code, got, want)
		}
	}
}
