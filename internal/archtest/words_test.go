package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// privateWords are the words that Colony's code used for itself once, with the word of
// the field that stands for each now. docs/glossary.md lists the words in use.
var privateWords = map[string]string{
	"lane":      "stream",
	"lanes":     "streams",
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

// compoundWords are the words of privateNames that a compound name does not have either.
var compoundWords = map[string]string{
	"wanted":  "desired",
	"kept":    "retained",
	"behind":  "firstUnsaved",
	"central": "co",
	"move":    "transition",
	"moves":   "transitions",
	"orders":  "assignments, desired",
	"again":   "retryDelay, retransmitted",
}

// sparedNames are the names with a private word that mean something else.
var sparedNames = exceptions{
	"co/compiler.order":             "the order in which containers start",
	"en/engine.order":               "less than, as the slices package wants it",
	"bench/broker.order":            "the order in which idle clients ping",
	"lo/reconciler.place":           "to place a deployment on nodes, as schedulers say",
	"lo/control.place":              "to place deployments on nodes, as schedulers say",
	"placement.place":               "to place a deployment on nodes, as schedulers say",
	"co/compiler.kept":              "how many volumes of a service were kept",
	"margo/v1rc3.kept":              "the components that were kept",
	"internal/statefile.kept":       "where a damaged file was kept, for the log",
	"co/api.KeptVolumes":            "volumes that stay on a node are called kept volumes by the API, as release 0.2.0 does",
	"co/fleet.KeptVolume":           "volumes that stay on a node are called kept volumes by the API, as release 0.2.0 does",
	"co/db/fleet/lists.KeptVolumes": "volumes that stay on a node are called kept volumes by the API, as release 0.2.0 does",
	"co/fleet.SiteKept":             "the site stays: the event is called site_kept, as release 0.2.0 does",
	"en/agent.showAgain":            "a method: it shows everything once more",
	"en/agent.ReportAgain":          "a method: it reports everything once more",
	"en/plan.again":                 "whether an assignment was tried before",
	"en/engine/enginetest.again":    "a second look at a container, or a second engine",
}

// sparedSigns are the packages, metrics and log keys with a private word that mean
// something else.
var sparedSigns = exceptions{
	"lo/journal.kept_as": "where a damaged file was kept",
}

// publicWords are words that no JSON key, no column of a command's table and no name in SQL has, beside privateWords: there they stand alone, without the
// code that would say what they mean.
var publicWords = map[string]string{
	"again":   "retry, resent",
	"wanted":  "desired",
	"kept":    "retained",
	"behind":  "incomplete, or what is missing",
	"central": "co",
	"take":    "handle, apply or accept",
	"taken":   "received or accepted",
	"former":  "previous",
	"left":    "remaining, retired, or who left",
	"pass":    "reconcile",
	"order":   "assignment, desired",
	"move":    "transition",
}

// firstJudgedStep is the number of the first step of the database's schema that TestWordsOfSurfaces reads: the steps before it are not edited any more.
// Of their words the schema still has two, which replicas of the release before, or the record of what a site held, use: event_partitions.behind, and
// the table former_bodies.
const firstJudgedStep = 51

// sparedKeys are the JSON keys with a private word that mean something else, or are released or on disks.
var sparedKeys = exceptions{
	"co/fleet.taken":           "a name that another machine has, as in a name that is taken",
	"co/rollout/gates.pass":    "what a gate answers: whether the rollout may pass",
	"lo/journal/ondisk.former": "in files on the disks of LOs",
	"lo/nodes.left":            "in files on the disks of LOs",
}

// jsonKey is the key in the tag of a field, tableHead the head of a table that a command prints, sqlComment what SQL leaves out, sqlName a name in it.
var (
	jsonKey    = regexp.MustCompile(`\bjson:"([A-Za-z0-9_]+)`)
	tableHead  = regexp.MustCompile(`^[A-Z]+( [A-Z]+)+$`)
	sqlComment = regexp.MustCompile(`--[^\n]*|'(?:[^']|'')*'`)
	sqlName    = regexp.MustCompile(`[a-z_][a-z0-9_]*`)
)

// publicWord reports whether a name that others see has a private word, and what stands for it.
func publicWord(name string) (better string, bad bool) {
	for _, w := range wordsOf(name) {
		if b, ok := privateWords[w]; ok {
			return b, true
		}
		if b, ok := publicWords[w]; ok {
			return b, true
		}
	}
	return "", false
}

// wordsOfSQL returns the names with a private word in a step of the schema.
func wordsOfSQL(step string) (faults []string) {
	for _, name := range sqlName.FindAllString(strings.ToLower(sqlComment.ReplaceAllString(step, " ")), -1) {
		if better, bad := publicWord(name); bad && name != "order" { // order by
			faults = append(faults, name+": write "+better)
		}
	}
	return faults
}

// TestWordsOfSurfaces refuses private words in JSON keys, in the columns of the tables that commands print, and in the names of new steps of the
// database's schema.
func TestWordsOfSurfaces(t *testing.T) {
	t.Parallel()
	spared := sparedKeys.use(t)
	keys, heads := 0, 0
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			if m := jsonKey.FindStringSubmatch(text); m != nil {
				keys++
				if better, bad := publicWord(m[1]); bad && !spared(s.dir+"."+m[1]) {
					t.Errorf("%s: the JSON key %s has a private word: write %s", s.fset.Position(lit.Pos()), m[1], better)
				}
			}
			if strings.HasPrefix(s.dir, "cli") && tableHead.MatchString(text) {
				heads++
				for column := range strings.SplitSeq(strings.ToLower(text), " ") {
					if better, bad := publicWord(column); bad {
						t.Errorf("%s: the column %s is a private word: write %s", s.fset.Position(lit.Pos()), strings.ToUpper(column), better)
					}
				}
			}
			return true
		})
	}
	if keys < 500 || heads < 30 {
		t.Errorf("%d JSON keys and %d heads of tables found: the test looks in the wrong place", keys, heads)
	}
	steps, err := filepath.Glob(root + "/migrations/*.sql")
	if err != nil || len(steps) == 0 {
		t.Fatalf("%d steps found: %v", len(steps), err)
	}
	for _, step := range steps {
		if n, _ := strconv.Atoi(filepath.Base(step)[:3]); n < firstJudgedStep {
			continue
		}
		b, err := os.ReadFile(step)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range wordsOfSQL(string(b)) {
			t.Errorf("%s has a private word in %s", filepath.Base(step), fault)
		}
	}
}

// TestPrivateWordsAreFound plants names for the laws of words.
func TestPrivateWordsAreFound(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"movePending": true, "wantedNodes": true, "keptEvents": true, "behindCount": true, "leftLanes": true, "retryAgain": true, "removed": false, "place": true, "placement": false, "orderBy": false} {
		if _, bad := privateWord(name); bad != want {
			t.Errorf("the name %s: private %t, want %t", name, bad, want)
		}
	}
	for name, want := range map[string]bool{"lane": true, "toldAt": true, "takenAt": true, "receivedAt": false, "leftEpochs": true, "keyset": false} {
		if _, bad := publicWord(name); bad != want {
			t.Errorf("the key %s: private %t, want %t", name, bad, want)
		}
	}
	sql := "-- what the lane was told\nalter table streams add column lane_told_at timestamptz; update t set state = 'gone' where former_body is null; select id from sites order by id;"
	if got, want := wordsOfSQL(sql), []string{"lane_told_at: write stream", "former_body: write previous"}; !slices.Equal(got, want) {
		t.Errorf("in SQL: %q, want %q", got, want)
	}
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
			for _, w := range wordsOf(f.Name.Name) { // a sentence, in which compoundWords are plain English
				if better, bad := privateWords[w]; bad {
					t.Errorf("%s: %s has a private word: write %s", s.fset.Position(f.Pos()), f.Name.Name, better)
				}
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
	words := wordsOf(name)
	for _, w := range words {
		if b, ok := privateWords[w]; ok {
			better, bad = b, true
		}
		if b, ok := compoundWords[w]; ok && len(words) > 1 {
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

// TestWordsOfComments refuses private phrases in comments, in the texts of tests, and on the pages of the documentation.
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
	pages := 0
	for _, pattern := range []string{"/docs/*.md", "/docs/*/*.md", "/*.md"} {
		names, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if filepath.Base(name) == "CHANGELOG.md" {
				continue // what it says of a release stays
			}
			pages++
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(b), "\n") {
				if m := privatePhrases.FindString(line); m != "" {
					t.Errorf("%s:%d: %q: write what it means in the words of docs/glossary.md", filepath.Base(name), i+1, m)
				}
			}
		}
	}
	if pages < 30 {
		t.Errorf("%d pages found: the test looks in the wrong place", pages)
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
