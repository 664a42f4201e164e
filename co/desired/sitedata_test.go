package desired

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

const sitePath = "sites/berlin/site.yaml"

// siteYAML is the file of berlin with rules of these names.
func siteYAML(names ...string) string {
	b := "apiVersion: colony/v1\nkind: Site\nmetadata: {id: berlin}\nspec:\n  data:\n    rules:\n"
	if len(names) == 0 {
		return strings.TrimSuffix(b, "\n") + " []\n"
	}
	for _, n := range names {
		b += "      - {name: " + n + ", direction: up, topics: [" + n + "/#]}\n"
	}
	return b
}

func rules(m message) string {
	var all []string
	for _, r := range m.Data {
		all = append(all, r.Name)
	}
	return strings.Join(all, " ")
}

func (w *world) problems() (p []string) {
	w.store.set(func() { p = slices.Clone(w.store.problems) })
	return p
}

// TestSiteFileIsFollowed changes, adds and removes rules, alone and together with a
// deployment: one commit makes one generation.
func TestSiteFileIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	commit := w.commit(map[string]string{sitePath: siteYAML("a", "b"), path("munich", "x"): deployment("munich", "x", "1.0.0")})
	m := w.next("berlin")
	want := protocol.DataRule{Name: "a", Topics: []string{"a/#"}, QoS: 1}
	if d := cmp.Diff(want, m.Data[0]); d != "" || rules(m) != "a b" || m.Position.Generation != 1 || m.Commit != commit {
		t.Errorf("message = %+v\n%s", m, d)
	}
	if m := w.next("munich"); len(m.Data) != 0 {
		t.Errorf("munich was sent rules: %+v", m.Data)
	}
	w.commit(map[string]string{sitePath: siteYAML("b", "c"), path("berlin", "x"): deployment("berlin", "x", "1.0.0")})
	if m := w.next("berlin"); rules(m) != "b c" || names(m) != "x" || m.Position.Generation != 2 {
		t.Errorf("message = %+v", m)
	}
	w.commit(map[string]string{path("berlin", "x"): ""})
	if m := w.next("berlin"); rules(m) != "b c" || names(m) != "" || m.Position.Generation != 3 {
		t.Errorf("message = %+v", m)
	}
	w.commit(map[string]string{sitePath: siteYAML("b", "c") + "# no change\n"})
	w.until("the commit is recorded", func() bool {
		same := false
		w.store.set(func() { same = w.store.sites["berlin"].data.Commit == hash(4) })
		return same
	})
	w.quiet()
	if p := w.problems(); len(p) != 0 {
		t.Errorf("problems = %q", p)
	}
	w.commit(map[string]string{sitePath: "", "sites/berlin/site.yml": siteYAML("b")})
	w.until("it is reported that the file is missing", func() bool { return len(w.problems()) == 1 })
	w.quiet()
	if p := w.problems()[0]; !strings.Contains(p, "it is missing: its 2 data rules, 0 device accounts and 0 maintenance windows stay in force") {
		t.Errorf("problem %q", p)
	}
	w.commit(map[string]string{"README.md": "x"})
	w.quiet()
	if p := w.problems(); len(p) != 1 {
		t.Errorf("problems = %q", p)
	}
	w.commit(map[string]string{sitePath: siteYAML()})
	if m := w.next("berlin"); rules(m) != "" || m.Position.Generation != 4 {
		t.Errorf("message = %+v", m)
	}
	w.commit(map[string]string{sitePath: ""}) // it had nothing
	w.quiet()
	if p := w.problems(); len(p) != 1 {
		t.Errorf("problems = %q", p)
	}
}

// TestExecIsKept checks that what a file said of programs in containers stays recorded while it is bad or missing, also where it
// says nothing else.
func TestExecIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	exec := func() (allowed bool) {
		w.store.set(func() { allowed = w.store.sites["berlin"].data.Exec })
		return allowed
	}
	w.commit(map[string]string{sitePath: "apiVersion: colony/v1\nkind: Site\nmetadata: {id: berlin}\nspec: {exec: allowed}\n", path("berlin", "x"): deployment("berlin", "x", "1.0.0")})
	w.next("berlin")
	w.until("it is recorded", exec)
	for i, content := range []string{"", "spec: {exec: refused}\n"} {
		w.commit(map[string]string{sitePath: content})
		w.until("it is reported", func() bool { return len(w.problems()) == i+1 })
		if !exec() {
			t.Errorf("with the file %q programs are refused", content)
		}
	}
	if p := w.problems()[0]; !strings.Contains(p, "programs in containers stay allowed") {
		t.Errorf("problem %q", p)
	}
	w.commit(map[string]string{sitePath: siteYAML()})
	w.until("a file that does not allow it refuses it", func() bool { return !exec() })
}

func TestBadSiteFileKeepsTheLastGoodRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{sitePath: siteYAML("a"), path("berlin", "x"): deployment("berlin", "x", "1.0.0")})
	w.next("berlin")
	bad := w.commit(map[string]string{
		sitePath:              strings.Replace(siteYAML("b"), "up", "sideways", 1),
		path("berlin", "x"):   deployment("berlin", "x", "2.0.0"),
		path("munich", "y"):   deployment("munich", "y", "1.0.0"),
		"sites/Bad/site.yaml": siteYAML("a"),
	})
	if m := w.next("berlin"); rules(m) != "a" || m.Position.Generation != 2 {
		t.Errorf("message = %+v; the deployment goes on, and the rules stay", m)
	}
	w.next("munich")
	want := sitePath + " at commit " + bad[:12] + `: line 7: spec.data.rules[0].direction: "sideways": want one of up, down`
	if d := cmp.Diff([]string{want}, w.problems()); d != "" {
		t.Error(d)
	}
	w.quiet()
	w.stop()
	w.start() // nothing is reported twice, and nothing was forgotten
	if m := w.next("berlin"); rules(m) != "a" {
		t.Errorf("message = %+v", m)
	}
	w.next("munich")
	w.quiet()
	w.commit(map[string]string{sitePath: siteYAML("b")})
	if m := w.next("berlin"); rules(m) != "b" || len(w.problems()) != 1 {
		t.Errorf("message = %+v, problems = %q", m, w.problems())
	}
	w.store.set(func() {
		if p := w.store.sites["berlin"].data.Problem; p != "" {
			t.Errorf("problem of the corrected file: %q", p)
		}
	})
}

// TestNewDatabaseAndBadSiteFile begins with an empty record and a bad file: the site
// must not be sent a state without rules.
func TestNewDatabaseAndBadSiteFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.add("berlin")
	w.commit(map[string]string{sitePath: "{"})
	w.start()
	w.until("it is reported", func() bool { return len(w.problems()) == 1 })
	w.quiet()
	w.commit(map[string]string{sitePath: siteYAML("a")})
	if m := w.next("berlin"); rules(m) != "a" || m.Position.Generation != 1 {
		t.Errorf("message = %+v", m)
	}
}

func TestSkippedSiteFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{sitePath: siteYAML("a")})
	w.next("berlin")
	w.set(func() { w.skipped[sitePath] = "a symbolic link is not followed" })
	w.commit(map[string]string{sitePath: ""})
	w.until("it is reported", func() bool { return len(w.problems()) == 1 })
	w.quiet()
	w.set(func() { delete(w.skipped, sitePath) })
	w.commit(map[string]string{"README.md": "x"})
	w.until("it is reported that there is none", func() bool { return len(w.problems()) == 2 })
	w.quiet()
}
