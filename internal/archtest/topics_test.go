package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTopicsAreBuiltInOnePlace checks that no package but protocol/topic writes a
// topic of Colony, or puts something before or behind one. Texts for people and the
// tags of struct fields, which are documentation, may name one.
func TestTopicsAreBuiltInOnePlace(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.dir == "protocol/topic" || strings.HasPrefix(s.dir, "protocol/topic/") {
			continue
		}
		for _, f := range topicFaults(s) {
			t.Error(f)
		}
	}
}

// topicFaults returns where a file builds or parses a topic of Colony.
func topicFaults(s source) (faults []string) {
	refuse := func(pos token.Pos, what string) {
		faults = append(faults, s.fset.Position(pos).String()+": "+what)
	}
	tags, built := map[*ast.BasicLit]bool{}, map[string]bool{} // built are the variables that hold a topic of package topic
	for _, imp := range s.file.Imports {
		if p, _ := strconv.Unquote(imp.Path.Value); p == ownPath+"protocol/topic" && imp.Name != nil {
			refuse(imp.Pos(), "import protocol/topic by its name, so that a test sees what is done with topics")
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 && buildsTopic(a.Rhs[0]) {
			built[lastName(a.Lhs[0])] = true
		}
		return true
	})
	extends := func(e, by ast.Expr) bool {
		text, _ := textOf(by)
		id, ok := e.(*ast.Ident)
		return ok && built[id.Name] && strings.HasPrefix(text, "/")
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			tags[n.Tag] = true
		case *ast.BasicLit:
			if text, ok := textOf(n); ok && !tags[n] && isTopic(text) {
				refuse(n.Pos(), "the text "+strconv.Quote(text)+" holds a topic: build and parse topics with protocol/topic")
			}
		case *ast.BinaryExpr:
			first, _ := textOf(n.X)
			next, _ := textOf(n.Y)
			if n.Op == token.ADD && (buildsTopic(n.X) || buildsTopic(n.Y) || extends(n.X, n.Y) || first == "colony" && strings.HasPrefix(next, "/")) {
				refuse(n.Pos(), "a topic is extended with +: add what is missing to protocol/topic")
			}
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch {
			case isPackage(sel, "fmt") && (strings.HasPrefix(sel.Sel.Name, "Sprint") || strings.HasPrefix(sel.Sel.Name, "Append")) || isPackage(sel, "strings") && sel.Sel.Name == "Join" || isPackage(sel, "path") && sel.Sel.Name == "Join":
				format, _ := textOf(n.Args[0])
				levels := isPackage(sel, "path") && format == "colony" || strings.HasPrefix(format, "%s/%s") && slices.ContainsFunc(n.Args[1:], isColony)
				if (levels || slices.ContainsFunc(n.Args, joinsTopic)) && !forPeople(n.Args[0]) {
					refuse(n.Pos(), "a topic is put together: add what is missing to protocol/topic")
				}
			case isPackage(sel, "strings") && slices.Contains(takesApart, sel.Sel.Name) && len(n.Args) > 1:
				if strings.HasSuffix(strings.ToLower(lastName(n.Args[0])), "topic") && !broker(s.dir) || buildsTopic(n.Args[1]) {
					refuse(n.Pos(), "a topic is taken apart: let protocol/topic parse it")
				}
			}
		}
		return true
	})
	return faults
}

// isColony reports whether an expression is the text of the first level of a topic.
func isColony(e ast.Expr) bool {
	text, _ := textOf(e)
	return text == "colony"
}

// takesApart are the functions of package strings by which a topic is parsed.
var takesApart = []string{"Split", "SplitN", "SplitSeq", "SplitAfter", "Cut", "CutPrefix", "CutSuffix", "HasPrefix", "HasSuffix", "TrimPrefix", "TrimSuffix"}

// broker reports whether a package is of the broker, for which the topics of Colony are as good as any.
func broker(dir string) bool { return dir == "broker" || strings.HasPrefix(dir, "broker/") }

// forPeople reports whether a format makes a text that people read.
func forPeople(format ast.Expr) bool {
	text, _ := textOf(format)
	return strings.Contains(text, " ")
}

// joinsTopic reports whether an argument makes a call of Sprintf or Join the making of a topic: a
// topic itself, or its first level beside the version of the protocol.
func joinsTopic(e ast.Expr) bool {
	if buildsTopic(e) {
		return true
	}
	if text, ok := textOf(e); ok {
		return strings.HasPrefix(text, "%s/v1/")
	}
	list, ok := e.(*ast.CompositeLit)
	if !ok || len(list.Elts) == 0 {
		return false
	}
	first, _ := textOf(list.Elts[0])
	return first == "colony" || slices.ContainsFunc(list.Elts, buildsTopic)
}

// TestPropertiesInOnePlace checks that the user properties of MQTT messages, which are part of
// the contract of streams, are named in protocol/stream alone.
func TestPropertiesInOnePlace(t *testing.T) {
	t.Parallel()
	property, found := regexp.MustCompile(`^colony-(time|time-unsynced|stream|seq)$`), 0
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok {
				return true
			}
			if text, _ := textOf(lit); property.MatchString(text) {
				if found++; s.dir != "protocol/stream" {
					t.Errorf("%s: the property %s: use the constant of protocol/stream", s.fset.Position(lit.Pos()), text)
				}
			}
			return true
		})
	}
	if found < 4 {
		t.Errorf("%d properties found: the test looks in the wrong place", found)
	}
}

// isTopic reports whether a text is a topic, or the beginning of one. apiVersion is
// the one text that only looks so.
func isTopic(text string) bool {
	const apiVersion = "colony/v1"
	return strings.HasPrefix(text, "colony/") && text != apiVersion && !strings.ContainsAny(text, " \n")
}

// buildsTopic reports whether an expression is a call of a builder of package topic.
func buildsTopic(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(f.Sel.Name, "For") {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "topic"
}

// TestTopicFaults plants what TestTopicsAreBuiltInOnePlace refuses beside what it lets pass.
func TestTopicFaults(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`_ = "colony/v1/x/up"`:                                      1,
		`_ = "colony" + "/v1/" + site`:                              1,
		`_ = path.Join("colony", "v1", site)`:                       1,
		`_ = fmt.Sprintf("%s/%s/%s", "colony", "v1", site)`:         1,
		`_ = fmt.Sprintf("%s/%s", a, b)`:                            0,
		`_ = fmt.Appendf(nil, "%s/x", topic.ForSite(k, s))`:         1,
		`t := topic.ForSite(k, s); _ = t + "/x"`:                    1,
		`t := topic.ForSite(k, s); _ = "topic " + t`:                0,
		`_ = "colony/v1"`:                                           0,
		`_ = topic.ForSite(k, s) + "/more"`:                         1,
		`_ = fmt.Sprintf("%s/v1/%s/up", "colony", site)`:            1,
		`_ = strings.Join([]string{"colony", "v1", site}, "/")`:     1,
		`_ = strings.Join([]string{topic.ForSite(k, s), "x"}, "/")`: 1,
		`_ = fmt.Sprintf("%s/more", topic.ForSite(k, s))`:           1,
		`_ = strings.Split(m.Topic, "/")`:                           1,
		`_ = strings.HasPrefix(name, topic.ForTail(k, s, ""))`:      1,
		`_, _, _ = strings.Cut(dataTopic, "/")`:                     1,
		`_ = strings.Split(path, "/")`:                              0,
		`_ = fmt.Sprintf("%s: %w", m.Topic, err)`:                   0,
		`_ = strings.Join(words, ", ")`:                             0,
		`_ = fmt.Sprintf("want %s", topic.ForSite(k, s))`:           0,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p\nfunc f() { "+body+" }", 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := topicFaults(source{dir: "lo/data", file: file, fset: fset}); len(got) != want {
			t.Errorf("%s: %q, want %d", body, got, want)
		}
	}
}
