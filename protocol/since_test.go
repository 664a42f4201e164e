package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// since is the one form in which a comment says in which release a field came.
	since = regexp.MustCompile(`\bSince\s+(\d+\.\d+\.\d+)[.:]`)
	// otherSince is what says so in another form.
	otherSince = regexp.MustCompile(`(?i)since\s+(the\s+)?release|since\s+the\s+one\s+after|release\s+after|came\s+in\s+\d|\bnew\s+in\s+\d`)
)

// released returns the schemas of the releases that have one, testdata/<release>.cddl, and
// the releases in their order.
func released(t *testing.T) (schemas map[string]cddlSchema, order []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.cddl")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d schemas of releases found: %v", len(files), err)
	}
	schemas = map[string]cddlSchema{}
	for _, file := range files {
		release := strings.TrimSuffix(filepath.Base(file), ".cddl")
		schemas[release], order = readCDDL(t, file), append(order, release)
	}
	slices.SortFunc(order, compareReleases)
	return schemas, order
}

// compareReleases compares two releases by their numbers.
func compareReleases(a, b string) int {
	numbers := func(release string) (n []int) {
		for part := range strings.SplitSeq(release, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(numbers(a), numbers(b))
}

// TestSchemaOfEachRelease wants the schema of the release that VERSION names: what came
// after that release is found by comparing with it.
func TestSchemaOfEachRelease(t *testing.T) {
	t.Parallel()
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	release := strings.TrimSpace(string(version))
	if _, order := released(t); order[len(order)-1] != release {
		t.Errorf("the last schema of a release is testdata/%s.cddl, and VERSION is %s: copy colony.cddl to testdata/%s.cddl", order[len(order)-1], release, release)
	}
}

// TestReleasedFields checks that a key of a release means what it meant there, as long as
// the schema has it: it is never used again, and its type does not change.
func TestReleasedFields(t *testing.T) {
	t.Parallel()
	now := readCDDL(t, "colony.cddl")
	schemas, order := released(t)
	for _, release := range order {
		for message, fields := range schemas[release] {
			for key, was := range fields {
				is, ok := now[message][key]
				switch {
				case !ok:
				case is.typ != was.typ:
					t.Errorf("%s: key %d is %s (%s), and was %s (%s) in %s: take a new key", message, key, is.name, is.typ, was.name, was.typ, release)
				case is.optional != was.optional && !is.optional:
					t.Errorf("%s.%s is required, and was not in %s: its senders may leave it out", message, is.name, release)
				}
			}
		}
	}
}

// TestFieldsSaySince checks that each field that is newer than the first release with a
// schema says since which release it is there: in its own comment, or in that of its
// message, if that is as new.
func TestFieldsSaySince(t *testing.T) {
	t.Parallel()
	now := readCDDL(t, "colony.cddl")
	schemas, order := released(t)
	last, next := order[len(order)-1], ""
	found := 0
	for _, f := range messageFields(t) {
		if _, ok := now[f.message][f.key]; !ok {
			continue // no part of a message
		}
		found++
		name := f.message + "." + f.name
		if bad := otherSince.FindString(f.own + " " + f.doc); bad != "" {
			t.Errorf("%s: %q: write Since and the release, as in Since %s.", name, bad, last)
		}
		want, newMessage := "", false
		if i := slices.IndexFunc(order, func(r string) bool { _, ok := schemas[r][f.message][f.key]; return ok }); i >= 0 {
			want = order[i]
			newMessage = i > 0 && schemas[order[i-1]][f.message] == nil
		} else {
			newMessage = schemas[last][f.message] == nil
		}
		if want == order[0] {
			continue // it is older than the rule
		}
		m := since.FindStringSubmatch(f.own)
		if m == nil && newMessage {
			m = since.FindStringSubmatch(f.doc)
		}
		switch {
		case m == nil:
			t.Errorf("%s is not in %s and does not say since which release it is there: write Since and the release", name, last)
		case want != "" && m[1] != want:
			t.Errorf("%s says since %s, and came in %s", name, m[1], want)
		case want == "" && compareReleases(m[1], last) <= 0:
			t.Errorf("%s says since %s, and the schema of %s does not have it", name, m[1], last)
		case want == "" && next != "" && m[1] != next:
			t.Errorf("%s says since %s, others that are not released since %s", name, m[1], next)
		case want == "":
			next = m[1]
		}
	}
	if found < 300 {
		t.Errorf("%d fields of messages found: the test does not read the package", found)
	}
}

// A messageField is a field of a struct with its comments.
type messageField struct {
	message, name string
	key           uint64
	own, doc      string // its own comment, and that of its message
}

// messageFields returns the fields of the package that have an integer key.
func messageFields(t *testing.T) (fields []messageField) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if st, ok := typ.Type.(*ast.StructType); ok {
					fields = append(fields, keyedFields(typ.Name.Name, gen.Doc.Text()+typ.Doc.Text(), st)...)
				}
			}
		}
	}
	return fields
}

// keyedFields returns the fields of one struct that have an integer key.
func keyedFields(message, doc string, st *ast.StructType) (fields []messageField) {
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		number, _, _ := strings.Cut(reflect.StructTag(tag).Get("cbor"), ",")
		key, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			continue
		}
		for _, id := range f.Names {
			fields = append(fields, messageField{message, id.Name, key, f.Doc.Text() + f.Comment.Text(), doc})
		}
	}
	return fields
}
