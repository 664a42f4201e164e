package lifecycle

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestTable proves the table: every state is known, reached and left, each move
// has an actor, and no move stands twice.
func TestTable(t *testing.T) {
	t.Parallel()
	reached, left := map[State]bool{}, map[State]bool{}
	twice := map[[2]State]bool{}
	for _, m := range Transitions() {
		if (m.From != "" && !m.From.Valid()) || !m.To.Valid() {
			t.Errorf("%q → %q: not a state", m.From, m.To)
		}
		if len(m.Actors) == 0 || m.Trigger == "" {
			t.Errorf("%q → %q: no actor or no trigger", m.From, m.To)
		}
		if key := [2]State{m.From, m.To}; twice[key] {
			t.Errorf("%q → %q stands twice", m.From, m.To)
		} else {
			twice[key] = true
		}
		reached[m.To], left[m.From] = true, true
	}
	for _, s := range States {
		if !reached[s] || !left[s] {
			t.Errorf("%s: reached %t, left %t", s, reached[s], left[s])
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from, to State
		actor    Actor
		ok       bool
	}{
		{"", Pending, LO, true},
		{"", Pending, EN, false},
		{Pending, Installing, LO, true},
		{Installing, Installing, EN, true},
		{Installing, Installed, EN, true},
		{Installing, Installed, LO, false},
		{Pending, Installed, EN, false},
		{Installed, Installing, LO, false},
		{Failed, RollingBack, LO, true},
		{Failed, Installed, EN, true},
		{Failed, Installed, LO, false},
		{Deleted, Installed, EN, false},
		{"", "", EN, false},
		{"bogus", "bogus", EN, false},
	} {
		if err := Check(tt.from, tt.to, tt.actor); (err == nil) != tt.ok {
			t.Errorf("Check(%q, %q, %s) = %v, want ok %t", tt.from, tt.to, tt.actor, err, tt.ok)
		}
	}
}

// TestBridge checks that every bridge is a legal way: LO moves up to a state
// from which the last move is allowed.
func TestBridge(t *testing.T) {
	t.Parallel()
	for _, from := range append([]State{""}, States...) {
		for _, to := range States {
			between, ok := Bridge(from, to)
			if !ok {
				t.Errorf("no way from %q to %q", from, to)
				continue
			}
			at := from
			for _, s := range between {
				if err := Check(at, s, LO); err != nil {
					t.Errorf("Bridge(%q, %q) = %v: %v", from, to, between, err)
				}
				at = s
			}
			if Check(at, to, EN) != nil {
				t.Errorf("Bridge(%q, %q) = %v: the last move is not allowed", from, to, between)
			}
		}
	}
	if got, _ := Bridge(Deleted, Installed); len(got) != 2 {
		t.Errorf("Bridge(DELETED, INSTALLED) = %v, want PENDING and INSTALLING", got)
	}
}

func TestWorst(t *testing.T) {
	t.Parallel()
	if got := Worst([]State{Installed, Updating, Pending}); got != Updating {
		t.Errorf("got %s", got)
	}
	if got := Worst(nil); got != Pending {
		t.Errorf("got %s", got)
	}
}

// TestDocumentation holds the table in the documentation to the one in the code.
// UPDATE=1 writes it.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	const path = "../../docs/lifecycle.md"
	const begin, end = "<!-- table -->\n", "<!-- /table -->\n"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %q … %q", path, begin, end)
	}
	want := head + begin + render() + end + tail
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(b) != want {
		t.Errorf("%s is not the table of the code any more; UPDATE=1 go test ./protocol/lifecycle writes it", path)
	}
}

func render() string {
	var b strings.Builder
	b.WriteString("\n| from | to | trigger | actor |\n|---|---|---|---|\n")
	for _, m := range Transitions() {
		from := string(m.From)
		if from == "" {
			from = "(none)"
		}
		actors := make([]string, len(m.Actors))
		for i, a := range m.Actors {
			actors[i] = string(a)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", from, m.To, m.Trigger, strings.Join(actors, ", "))
	}
	b.WriteString("\n```mermaid\nstateDiagram-v2\n")
	for _, m := range Transitions() {
		from := string(m.From)
		if from == "" {
			from = "[*]"
		}
		fmt.Fprintf(&b, "    %s --> %s\n", from, m.To)
	}
	b.WriteString("```\n\n")
	return b.String()
}
