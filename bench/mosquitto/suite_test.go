package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every outcome other than a pass needs its row, of its kind, and every row its test.
func TestJudge(t *testing.T) {
	t.Parallel()
	doc := "| `01-a`, `02-*` | they want another answer |\n| `03-c` | Sometimes: a race of its own |\n| `04-d` | Not run: a key of Mosquitto's |\n"
	reasons := reasonsIn(doc)
	good := []outcome{
		{entry: entry{name: "01-a"}, served: true},
		{entry: entry{name: "02-b"}, served: true},
		{entry: entry{name: "03-c"}, served: true, passed: true},
		{entry: entry{name: "04-d"}, needs: "key"},
		{entry: entry{name: "05-e"}, served: true, passed: true},
	}
	for name, c := range map[string]struct {
		change func(list []outcome) []outcome
		want   string // in the error; "": none
	}{
		"as the table says":      {func(l []outcome) []outcome { return l }, ""},
		"fails":                  {func(l []outcome) []outcome { l[4].passed = false; return l }, "05-e fails"},
		"passes":                 {func(l []outcome) []outcome { l[1].passed = true; return l }, "02-b passes, and the table says why it fails"},
		"passes without us":      {func(l []outcome) []outcome { l[4].served = false; return l }, "05-e passes without this broker"},
		"not run, without why":   {func(l []outcome) []outcome { l[4].needs = "psk"; return l }, "05-e is not run, for want of psk"},
		"not run, for another":   {func(l []outcome) []outcome { l[0].needs = "psk"; return l }, "01-a is not run, for want of psk"},
		"run all the same":       {func(l []outcome) []outcome { l[3].needs = ""; return l }, "04-d is run"},
		"a row without its test": {func(l []outcome) []outcome { return l[1:] }, "01-a is in the table, and no test"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &suite{only: regexp.MustCompile("")}
			err := s.judge(c.change(append([]outcome(nil), good...)), reasons)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v: want %q", err, c.want)
			}
		})
	}
}

// The table of the document has rows of each kind.
func TestTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../broker/DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for name, why := range reasonsIn(string(doc)) {
		switch {
		case strings.HasPrefix(why, sometimes):
			kinds[sometimes]++
		case strings.HasPrefix(why, unrun):
			kinds[unrun]++
		default:
			kinds["fails"]++
		}
		if len(why) < 10 {
			t.Errorf("%s: %q says little", name, why)
		}
	}
	if len(kinds) != 3 {
		t.Errorf("rows by their kind: %v", kinds)
	}
}
