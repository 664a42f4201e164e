package datarule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

func up(name, local, remote string, topics ...string) protocol.DataRule {
	return protocol.DataRule{Name: name, Topics: topics, Local: local, Remote: remote}
}

func down(name, local, remote string, topics ...string) protocol.DataRule {
	r := up(name, local, remote, topics...)
	r.Down = true
	return r
}

func table(t testing.TB, rules ...protocol.DataRule) *Table {
	t.Helper()
	tab, err := New("s1", rules)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestTable(t *testing.T) {
	t.Parallel()
	tab := table(t,
		up("alarms", "", "", "+/alarm", "alarm/#"),
		up("plc", "plc/", "raw/plc/", "#"),
		up("slash", "/plc/", "", "a/+/c"),
		down("set", "plc/", "ctl/", "set/#"),
		down("plain", "", "", "cfg"),
		up("rest", "", "all/", "#"),
	)
	for _, tt := range []struct{ name, rule, to string }{
		{"colony/v1/s1/data/l1/alarm", "alarms", "l1/alarm"},
		{"colony/v1/s1/data/alarm", "alarms", "alarm"},
		{"colony/v1/s1/data/l1/temp", "rest", "all/l1/temp"},
		{"colony/v1/s2/data/l1/temp", "", ""},
		{"colony/v1/s1/data/", "", ""},
		{"colony/v1/s1/in/cfg", "", ""},
		{"plc/db1/x", "plc", "raw/plc/db1/x"},
		{"plc/", "", ""}, // nothing is left that a filter could match
		{"plc", "", ""},
		{"/plc/a//c", "slash", "a//c"},
		{"/plc/a/c", "", ""},
		{"plc/$x", "", ""},
	} {
		expect(t, tt.name, tt.rule, tt.to, tab.Up)
	}
	for _, tt := range []struct{ name, rule, to string }{
		{"ctl/set/x", "set", "plc/set/x"},
		{"ctl/set", "set", "plc/set"},
		{"set/x", "", ""},
		{"cfg", "plain", "colony/v1/s1/data/cfg"},
	} {
		expect(t, tt.name, tt.rule, tt.to, tab.Down)
	}
	if got := len(tab.Rules()); got != 6 {
		t.Errorf("%d rules", got)
	}
}

func expect(t *testing.T, name, rule, to string, find func(string) (*protocol.DataRule, string, bool)) {
	t.Helper()
	r, got, ok := find(name)
	if ok != (rule != "") || got != to || ok && r.Name != rule {
		t.Errorf("%s: rule %+v to %q, %v; want %q to %q", name, r, got, ok, rule, to)
	}
}

// matches is the oracle: it tries every way to lay the filter on the levels.
func matches(filter, name []string) bool {
	switch {
	case len(filter) == 0:
		return len(name) == 0
	case filter[0] == "#":
		return true
	case len(name) == 0:
		return false
	}
	return (filter[0] == "+" || filter[0] == name[0]) && matches(filter[1:], name[1:])
}

func oracle(filter, name string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(name, "/")
	if name == "" || strings.HasPrefix(name, "$") && (f[0] == "+" || f[0] == "#") {
		return false
	}
	return matches(f, n)
}

func TestMatchAgainstOracle(t *testing.T) {
	t.Parallel()
	words := func(of []string, most int) []string {
		var out []string
		var grow func(prefix string, n int)
		grow = func(prefix string, n int) {
			for _, w := range of {
				out = append(out, prefix+w)
				if n > 1 {
					grow(prefix+w+"/", n-1)
				}
			}
		}
		grow("", most)
		return out
	}
	names := words([]string{"", "a", "b", "$a"}, 4)
	hits := 0
	for _, f := range words([]string{"", "a", "+", "#", "$a"}, 4) {
		if i := strings.Index(f, "#"); i >= 0 && i < len(f)-1 {
			continue // no valid filter
		}
		for _, n := range names {
			want := oracle(f, n)
			if got := topic.Matches(f, n); got != want {
				t.Fatalf("Matches(%q, %q) = %v, want %v", f, n, got, want)
			}
			if want {
				hits++
			}
		}
	}
	if hits < 1000 {
		t.Errorf("only %d of the pairs match: too few to test matching", hits)
	}
}

// The table must find what trying all rules one after the other finds.
func TestFirstRuleWins(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	locals := []string{"", "a/", "a/b/", "b/"}
	found := 0
	for range 400 {
		var rules []protocol.DataRule
		for i := range 1 + rng.IntN(6) {
			var topics []string
			for range 1 + rng.IntN(3) {
				topics = append(topics, pick("#", "+", "a", "b", "a/#", "+/b", "a/+/b", "b/a", "+/+/#"))
			}
			rules = append(rules, up(fmt.Sprintf("r%d", i), pick(locals...), pick("", "x/"), topics...))
		}
		tab := table(t, rules...)
		for range 50 {
			local := pick(locals...)
			name := pick("a", "b", "c") + pick("", "/a", "/b", "/") + pick("", "/b")
			whole := local + name
			if local == "" {
				whole = "colony/v1/s1/data/" + name
			}
			wantRule, wantTo := "", ""
			for _, r := range rules {
				prefix := r.Local
				if prefix == "" {
					prefix = "colony/v1/s1/data/"
				}
				rest, ok := strings.CutPrefix(whole, prefix)
				if ok && slices.ContainsFunc(r.Topics, func(f string) bool { return oracle(f, rest) }) {
					wantRule, wantTo = r.Name, r.Remote+rest
					found++
					break
				}
			}
			expect(t, whole, wantRule, wantTo, tab.Up)
		}
	}
	if found < 1000 {
		t.Errorf("only %d found", found)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("a/+/#", "a/b/c")
	f.Add("#", "$SYS/x")
	f.Fuzz(func(t *testing.T, filter, name string) {
		if badFilter(filter) != "" || strings.ContainsAny(name, "+#") {
			return
		}
		if got, want := topic.Matches(filter, name), oracle(filter, name); got != want {
			t.Errorf("Matches(%q, %q) = %v, want %v", filter, name, got, want)
		}
	})
}

func manyRules() []protocol.DataRule {
	var rules []protocol.DataRule
	for i := range MaxRules {
		rules = append(rules, up(fmt.Sprintf("r%d", i), "", "", fmt.Sprintf("line%d/+/temp", i), fmt.Sprintf("line%d/alarm/#", i)))
	}
	return rules
}

func TestNoAllocation(t *testing.T) {
	tab := table(t, manyRules()...)
	for _, name := range []string{"colony/v1/s1/data/other/x/temp", "plc/x", "colony/v1/s1/data/line63/x/temp"} {
		if n := testing.AllocsPerRun(100, func() { tab.Up(name) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkUpMiss(b *testing.B) {
	tab := table(b, manyRules()...)
	b.ReportAllocs()
	for b.Loop() {
		tab.Up("colony/v1/s1/data/other/x/temp")
	}
}

func BenchmarkUpHitLast(b *testing.B) {
	tab := table(b, manyRules()...)
	b.ReportAllocs()
	for b.Loop() {
		tab.Up("colony/v1/s1/data/line63/x/temp")
	}
}
