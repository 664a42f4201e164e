// Package metricstest checks what a tier answers at /metrics, in a test.
package metricstest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// libraries are the prefixes of what Prometheus' own collectors send.
var libraries = []string{"go_", "process_"}

// Check fails the test where a page of metrics breaks a rule of Prometheus: each metric has a help,
// a name ends with _total if and only if it is a counter, and promtool finds no fault. The names
// begin with one of prefixes.
func Check(t testing.TB, page []byte, prefixes ...string) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatalf("the page of metrics cannot be read: %v", err)
	}
	for _, p := range problems {
		if !begins(p.Metric, libraries) {
			t.Errorf("metric %s: %s", p.Metric, p.Text)
		}
	}
	promtool(t, page)
	found := 0
	for line := range strings.Lines(string(page)) {
		name, typed := strings.CutPrefix(line, "# TYPE ")
		if !typed || begins(name, libraries) {
			continue
		}
		found++
		if !begins(name, prefixes) {
			t.Errorf("metric %s: the name does not begin with one of %q", strings.TrimSpace(name), prefixes)
		}
	}
	if found == 0 {
		t.Error("the page has no metric of the tier")
	}
}

func begins(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
