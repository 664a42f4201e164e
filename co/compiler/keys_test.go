package compiler

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/compiler/composefile"
)

var codeSpan = regexp.MustCompile("`([^`]+)`")

// documented returns the keys in the first columns of the tables of docs/compose.md.
func documented(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/compose.md")
	if err != nil {
		t.Fatal(err)
	}
	prefixes := map[string]string{"## Top-level keys": "", "## Keys of a service": "services.*."}
	var all []string
	prefix, inside := "", false
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "## ") {
			prefix, inside = prefixes[strings.TrimSpace(line)], prefixes[strings.TrimSpace(line)] != "" || strings.HasPrefix(line, "## Top-level")
		}
		if !inside || !strings.HasPrefix(line, "| `") {
			continue
		}
		column, _, _ := strings.Cut(line[2:], " |")
		for _, m := range codeSpan.FindAllStringSubmatch(column, -1) {
			all = append(all, prefix+m[1])
		}
	}
	slices.Sort(all)
	return all
}

// The table that users read and the one that refuses keys are the same.
func TestTheDocumentedKeysAreTheSupportedOnes(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(composefile.Keys)), documented(t)); diff != "" {
		t.Errorf("keys in keys.go (-) and in docs/compose.md (+):\n%s", diff)
	}
}

func TestReasonsAndOpenKeysAreConsistent(t *testing.T) {
	t.Parallel()
	for key := range composefile.Reasons {
		if composefile.Keys[key] {
			t.Errorf("%s is supported, and has a reason to be refused", key)
		}
	}
	for key := range composefile.Open {
		if !composefile.Keys[key] {
			t.Errorf("%s is open, and not supported", key)
		}
	}
}
