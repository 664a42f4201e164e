package refusals

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestEachIsBounded shows so many lines of each kind and account, and says of each how many more there were: nothing is
// hidden without that.
func TestEachIsBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, nil)))
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l.Summarise(at, false)
	shown := func(what, whom string, n int) (shown int) {
		for i := range n {
			if l.Show(what, whom, fmt.Sprint("reason ", i)) {
				shown++
			}
		}
		return shown
	}
	for whom, n := range map[string]int{"a": 5, "b": 10_000} {
		if got := shown("connect", whom, n); got != min(n, linesEach) {
			t.Errorf("%d lines of %s are shown", got, whom)
		}
	}
	if got := shown("publish", "b", 1); got != 1 {
		t.Error("kinds are counted together")
	}
	l.Summarise(at, false)
	l.Summarise(at.Add(window-time.Second), false)
	if out.Len() > 0 {
		t.Errorf("before the window is over: %s", &out)
	}
	l.Summarise(at.Add(window), false)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "what=connect of=b not_shown=9990 within=1m0s last=\"reason 9999\"") {
		t.Errorf("the summary is %s", got)
	}
	out.Reset()
	if got := shown("connect", "b", 20); got != linesEach {
		t.Errorf("%d lines are shown in the next window", got)
	}
	l.Summarise(at.Add(window), true)
	if got := out.String(); !strings.Contains(got, "not_shown=10 ") {
		t.Errorf("the summary at the end is %s", got)
	}
}

// TestAccountsAreBounded counts accounts together where there are too many: lines are bounded whatever the number of addresses.
func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, nil)))
	shown := 0
	for i := range 3 * mostAccounts {
		if l.Show("connect", fmt.Sprint(i), "x") {
			shown++
		}
	}
	if shown != mostAccounts+linesEach || len(l.counts) != mostAccounts+1 {
		t.Errorf("%d lines are shown of %d accounts", shown, len(l.counts))
	}
	l.Summarise(time.Now(), true)
	if want := fmt.Sprintf("of=others not_shown=%d", 2*mostAccounts-linesEach); !strings.Contains(out.String(), want) {
		t.Errorf("the summary is %s, want %s", &out, want)
	}
}

// TestKeptIsBounded keeps the begin of a reason, whatever its length, and of a topic no part of a rune.
func TestKeptIsBounded(t *testing.T) {
	t.Parallel()
	l := New(slog.New(slog.DiscardHandler))
	l.Show("connect", "a", strings.Repeat("x", 1<<20))
	if n := len(l.counts[key{"connect", "a"}].last); n > mostReason+20 {
		t.Errorf("%d bytes are kept of a reason", n)
	}
	if got, want := Shortened("x"+strings.Repeat("é", 200)), "x"+strings.Repeat("é", 99)+"... (401 bytes)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Shortened("t/1"); got != "t/1" {
		t.Errorf("%q, want it whole", got)
	}
}
