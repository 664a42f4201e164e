package refusals

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestBounded passes on what is short as it is, and shortens long texts wherever they stand.
func TestBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(Bounded(slog.NewTextHandler(&out, nil)))
	log.Info("short", "text", "a", "err", errors.New("b"), "n", 1, "list", []string{"c"})
	if got := out.String(); !strings.Contains(got, "msg=short text=a err=b n=1 list=[c]") {
		t.Errorf("what is short: %s", got)
	}
	long := strings.Repeat("x", 60_000)
	for what, write := range map[string]func(){
		"a text":              func() { log.Info("m", "k", long) },
		"an error":            func() { log.Info("m", "k", errors.New(long)) },
		"a list":              func() { log.Info("m", "k", []string{long}) },
		"one of all lines":    func() { log.With("k", long).Info("m") },
		"a group":             func() { log.Info("m", slog.Group("g", "k", long)) },
		"one within a group":  func() { log.WithGroup("g").Info("m", "k", long) },
		"more of the handler": func() { log.WithGroup("g").With("k", long).Info("m") },
	} {
		out.Reset()
		write()
		if n := out.Len(); n > mostReason+200 || !strings.Contains(out.String(), " bytes)") {
			t.Errorf("%s: a line of %d bytes: %.300s", what, n, out.String())
		}
	}
	out.Reset()
	log.Error("panic", "stack", long)
	if n := out.Len(); n < mostStack || n > mostStack+200 {
		t.Errorf("a stack: %d bytes", n)
	}
}
