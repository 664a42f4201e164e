package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// privateWords are the words that Colony's code used for itself once, with the word of
// the field that stands for each now. docs/glossary.md lists the words in use.
var privateWords = map[string]string{
	"lane":      "stream",
	"told":      "reported, sent, observed or requested",
	"untold":    "unreported",
	"gone":      "removed, offline, closed or expired",
	"poke":      "notify",
	"kick":      "notify",
	"wish":      "desired",
	"doubt":     "stale, markStale",
	"doubted":   "stale",
	"certainty": "freshness",
	"willed":    "willUnsaved",
	"plane":     "forwarder",
	"centre":    "CO",
	"hears":     "receives",
	"speaks":    "reports",
	"mend":      "fix, repair",
	"mended":    "fixed, repaired",
	"mends":     "fixes, repairs",
	"harsh":     "thorough",
}

// privateNames are whole names that are private words, though their parts are not.
var privateNames = map[string]string{
	"again":   "retryDelay, retransmitted",
	"wanted":  "desired",
	"kept":    "retained",
	"behind":  "firstUnsaved",
	"central": "co",
	"place":   "position",
	"places":  "positions",
	"move":    "transition",
	"moves":   "transitions",
	"order":   "assignment, desired",
	"Order":   "Assignment, Desired",
	"orders":  "assignments, desired",
	"Orders":  "Assignments, Desired",
	"Move":    "Transition",
	"Moves":   "Transitions",
	"Pass":    "Reconcile",
	"Plane":   "Forwarder",
	"Lane":    "Stream",
	"Told":    "Reported",
	"Gone":    "Removed",
}

// sparedNames are the names with a private word that mean something else.
var sparedNames = exceptions{
	"co/compiler.order":          "the order in which containers start",
	"en/engine.order":            "less than, as the slices package wants it",
	"bench/broker.order":         "the order in which idle clients ping",
	"lo/reconciler.place":        "to place a deployment on nodes, as schedulers say",
	"lo/control.place":           "to place deployments on nodes, as schedulers say",
	"placement.place":            "to place a deployment on nodes, as schedulers say",
	"co/compiler.kept":           "how many volumes of a service were kept",
	"margo/v1rc3.kept":           "the components that were kept",
	"internal/statefile.kept":    "where a damaged file was kept, for the log",
	"en/plan.again":              "whether an assignment was tried before",
	"broker/topictree.again":     "whether a session stood in the list before",
	"en/engine/enginetest.again": "a second look at a container, or a second engine",
}

// sparedSigns are the packages, metrics and log keys with a private word that mean
// something else.
var sparedSigns = exceptions{
	"lo/journal.kept_as": "where a damaged file was kept",
}

// privatePhrases are what a comment does not say, and no test in its name or failure
// text. The list is short and unambiguous: ordinary English stays free.
var privatePhrases = regexp.MustCompile(`(?i)\b(lanes?|by and by|for good|the centre|mend(s|ed|ing)?|harsh(er|est)?|is of use|pok(e|es|ed)|tells? of|hears of|told)\b`)

// sparedPhrases are the packages that name what had a private word once.
var sparedPhrases = exceptions{
	"co/api":           "its test looks for the former words in the documents of the API",
	"lo/data/downlink": "a test reads the file of positions of before release 0.1.0",
	"migrations":       "a table had the name lanes before 005_words.sql",
}

// TestWordsOfNames refuses private words in the names that the code declares, and in
// the names of tests.
func TestWordsOfNames(t *testing.T) {
	t.Parallel()
	spared := sparedNames.use(t)
	for _, s := range sources(t) {
		declared(s.file, func(id *ast.Ident) {
			better, bad := privateWord(id.Name)
			if bad && !spared(s.dir+"."+id.Name) {
				t.Errorf("%s: %s has a private word: write %s", s.fset.Position(id.Pos()), id.Name, better)
			}
		})
	}
	for _, s := range tests(t) {
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			if better, bad := privateWord(f.Name.Name); bad {
				t.Errorf("%s: %s has a private word: write %s", s.fset.Position(f.Pos()), f.Name.Name, better)
			}
		}
	}
}

// metricName is the name of a metric in a text.
var metricName = regexp.MustCompile(`colony_(?:co|lo|en|broker)_(\w+)`)

// TestWordsOfSigns refuses private words in what people and programs see by its name: the
// packages, the metrics and the keys of log lines.
func TestWordsOfSigns(t *testing.T) {
	t.Parallel()
	spared := sparedSigns.use(t)
	metrics, keys := 0, 0
	refuse := func(s source, pos token.Pos, kind, name string) {
		for part := range strings.SplitSeq(name, "_") {
			if better, bad := privateWord(part); bad && !spared(s.dir+"."+name) {
				t.Errorf("%s: the %s %s has a private word: write %s", s.fset.Position(pos), kind, name, better)
			}
		}
	}
	for _, s := range sources(t) {
		refuse(s, s.file.Name.Pos(), "package", s.file.Name.Name)
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				for _, m := range metricName.FindAllStringSubmatch(n.Value, -1) {
					metrics++
					refuse(s, n.Pos(), "metric", m[1])
				}
			case *ast.CallExpr:
				for _, key := range logKeys(n) {
					keys++
					refuse(s, n.Pos(), "log key", key)
				}
			}
			return true
		})
	}
	if metrics < 30 || keys < 200 {
		t.Errorf("%d metrics and %d log keys found: the test looks in the wrong place", metrics, keys)
	}
}

// logKeys returns the keys of the line that a call logs, as far as they are texts.
func logKeys(call *ast.CallExpr) (keys []string) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	first := 1 // after the message
	name, context := strings.CutSuffix(sel.Sel.Name, "Context")
	if context {
		first = 2
	}
	switch name {
	case "Debug", "Info", "Warn", "Error":
	case "With":
		first = 0
	default:
		return nil
	}
	for i := first; i+1 < len(call.Args); i += 2 {
		lit, ok := call.Args[i].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return keys // an attribute, or no log line
		}
		key, _ := strconv.Unquote(lit.Value)
		keys = append(keys, key)
	}
	return keys
}

// privateWord reports whether a name is or has a private word, and what stands for it.
func privateWord(name string) (better string, bad bool) {
	better, bad = privateNames[name]
	for _, w := range wordsOf(name) {
		if b, ok := privateWords[w]; ok {
			better, bad = b, true
		}
	}
	return better, bad
}

// tests parses every test file of the module.
func tests(t *testing.T) []source {
	t.Helper()
	return parse(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// TestWordsOfComments refuses private phrases in comments, and in the texts of tests.
func TestWordsOfComments(t *testing.T) {
	t.Parallel()
	spared := sparedPhrases.use(t)
	check := func(s source, pos token.Pos, text string) {
		if m := privatePhrases.FindString(text); m != "" && s.dir != "internal/archtest" && !spared(s.dir) {
			t.Errorf("%s: %q: write what it means in the words of docs/glossary.md", s.fset.Position(pos), m)
		}
	}
	for _, s := range parse(t, func(string) bool { return true }) {
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				check(s, c.Pos(), c.Text)
			}
		}
	}
	for _, s := range tests(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				check(s, lit.Pos(), lit.Value)
			}
			return true
		})
	}
}

// wordsOf splits a Go name at its capitals and underscores.
func wordsOf(name string) []string {
	var words []string
	var word strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if r == '_' || i > 0 && unicode.IsUpper(r) && !unicode.IsUpper(runes[i-1]) {
			words = append(words, word.String())
			word.Reset()
		}
		if r != '_' {
			word.WriteRune(unicode.ToLower(r))
		}
	}
	return append(words, word.String())
}
