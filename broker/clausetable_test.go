package broker_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// How many normative statements the sections of the two standards number: "3.1.2:30" are
// [MQTT-3.1.2-1] to [MQTT-3.1.2-30]. MQTT 5 has 251 in its appendix B; 2.2.1-1 is not among them.
const (
	statements5 = `1.5.4:3 1.5.5:1 1.5.7:1 2.1.3:1 2.2.1:6 2.2.2:1 3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2 3.2.2:22
		3.3.1:13 3.3.2:20 3.3.4:10 3.4.2:3 3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5 3.8.4:8 3.9.2:2 3.9.3:2
		3.10.1:1 3.10.3:2 3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1 3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3
		4.1.0:2 4.2.0:1 4.3.1:1 4.3.2:5 4.3.3:13 4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4 4.8.2:6 4.9.0:3
		4.12.0:7 4.12.1:2 4.13.1:1 4.13.2:1 6.0.0:4`
	statements311 = `1.5.3:3 2.2.2:2 2.3.1:7 3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3 3.3.4:1 3.3.5:2
		3.6.1:1 3.8.1:1 3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1 3.14.1:1 3.14.4:3 4.1.0:2 4.3.1:1
		4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1 4.7.3:4 4.8.0:2 6.0.0:4`
)

// numbered lists statements by the numbers of a list such as statements5.
func numbered(t *testing.T, list string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for entry := range strings.FieldsSeq(list) {
		section, count, _ := strings.Cut(entry, ":")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			all[fmt.Sprintf("%s-%d", section, i+1)] = true
		}
	}
	return all
}

// clauseRow is a row of a table of clauses: 3.1.2-4 to -6, -9; what they say; the tests.
var (
	clauseRow = regexp.MustCompile(`(?m)^\| (\d+\.\d+\.\d+-[^|]+) \| [^|]+ \| ([^|]+) \|$`)
	oneTest   = regexp.MustCompile(`\bTest[A-Z]\w+`)
	clause    = regexp.MustCompile(`(?:(\d+\.\d+\.\d+))?-(\d+)(?: to -(\d+))?`)
)

// clausesIn reads the rows of a table: which statements it has, and how often.
func clausesIn(t *testing.T, table string) (found map[string]int, tests map[string]bool) {
	t.Helper()
	found, tests = map[string]int{}, map[string]bool{}
	for _, row := range clauseRow.FindAllStringSubmatch(table, -1) {
		section := ""
		for _, m := range clause.FindAllStringSubmatch(row[1], -1) {
			if m[1] != "" {
				section = m[1]
			}
			first, _ := strconv.Atoi(m[2]) // digits
			last := first
			if m[3] != "" {
				last, _ = strconv.Atoi(m[3])
			}
			for i := first; i <= last; i++ {
				found[fmt.Sprintf("%s-%d", section, i)]++
			}
		}
		names := oneTest.FindAllString(row[2], -1)
		if len(names) == 0 && !strings.HasPrefix(row[2], "client") && !strings.HasPrefix(row[2], "not claimed") {
			t.Errorf("%s: no test", row[1])
		}
		for _, name := range names {
			tests[name] = true
		}
	}
	return found, tests
}

// DESIGN.md has each normative statement of both standards once, with tests that exist.
func TestClauseTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok5 := strings.Cut(string(doc), "\n### MQTT 5\n")
	table5, rest, ok311 := strings.Cut(rest, "\n### MQTT 3.1.1\n")
	table311, _, ok := strings.Cut(rest, "\n## ")
	if !ok5 || !ok311 || !ok {
		t.Fatal("DESIGN.md lacks the headings MQTT 5 and MQTT 3.1.1")
	}
	defined := testsBelow(t)
	for version, c := range map[string]struct{ table, list string }{"5": {table5, statements5}, "3.1.1": {table311, statements311}} {
		want := numbered(t, c.list)
		delete(want, map[string]string{"5": "2.2.1-1"}[version])
		found, tests := clausesIn(t, c.table)
		for id := range want {
			if found[id] != 1 {
				t.Errorf("MQTT %s: %s is in %d rows, want 1", version, id, found[id])
			}
		}
		for id := range found {
			if !want[id] {
				t.Errorf("MQTT %s: the standard has no statement %s", version, id)
			}
		}
		for name := range tests {
			if !defined[name] {
				t.Errorf("MQTT %s: there is no test %s", version, name)
			}
		}
	}
}

// Every test that DESIGN.md names exists, in the other tables too.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	defined := testsBelow(t)
	for _, name := range oneTest.FindAllString(string(doc), -1) {
		if !defined[name] {
			t.Errorf("there is no test %s", name)
		}
	}
}

// testsBelow lists the tests of the broker's packages.
func testsBelow(t *testing.T) map[string]bool {
	t.Helper()
	defined := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(src, -1) {
			defined[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return defined
}
