package restriction

import (
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/schematest"
)

// whole is a report with every field set: the golden vector.
func whole() Report {
	return Report{
		V:            1,
		Restrictions: []Restriction{{Drain, "new disk", "anna", "0123456789abcdef0123456789abcdef", 1700000000000, 7200000, 1700007200000, true}},
		Waits:        []Wait{{"hello", "no other node can run it", 1700007200000, true}},
		Change:       &Change{"drain", "new disk", "anna", true, "0123456789abcdef0123456789abcdef"},
	}
}

// TestGolden holds the encoding to the vector in testdata. UPDATE=1 writes it; a changed vector is a changed protocol.
func TestGolden(t *testing.T) {
	t.Parallel()
	const path = "testdata/report.hex"
	got := protocol.Marshal(whole())
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the encoding changed (%v):\n got %x\nwant %x", err, got, want)
	}
	var back Report
	if err := Unmarshal(want, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole(), back); diff != "" {
		t.Errorf("decoded differs (-want +got):\n%s", diff)
	}
	if err := Unmarshal(protocol.Marshal(Report{V: 9}), &back); err == nil || !strings.Contains(err.Error(), "upgrade it") {
		t.Errorf("a report of a later major version: %v", err)
	}
}

// TestSchema holds restriction.cddl to the Go types. UPDATE=1 writes it.
func TestSchema(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("; What restricts a node, of Colony's wire protocol, version 1 (RFC 8610). Written from the Go\n; types by their test; docs/protocol.md says what it means.\n")
	schematest.Write(&b, reflect.TypeFor[Report](), map[reflect.Type]bool{})
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("restriction.cddl", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("restriction.cddl"); err != nil || string(got) != b.String() {
		t.Errorf("restriction.cddl is not what the types say; UPDATE=1 go test ./protocol/restriction writes it (%v)", err)
	}
}

func TestCheckTerms(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason string
		lasts  time.Duration
		want   string // part of the error; empty: none
	}{
		"without an end": {"new disk", 0, ""},
		"two hours":      {"new disk", 2 * time.Hour, ""},
		"no reason":      {" ", 0, "reason is missing"},
		"long reason":    {strings.Repeat("a", MaxReason+1), 0, "at most 512"},
		"two lines":      {"a\nb", 0, "one line"},
		"too short":      {"a", time.Millisecond, "want 1s"},
		"too long":       {"a", MaxFor + time.Second, "want 1s"},
		"negative":       {"a", -time.Hour, "want 1s"},
	} {
		err := CheckTerms(tt.reason, tt.lasts)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	m := whole()
	if got, want := m.Restrictions[0].String(), "drained by anna: new disk"; got != want {
		t.Errorf("a drain is %q, want %q", got, want)
	}
	if got := m.Wait("hello"); got != "no other node can run it" {
		t.Errorf("hello waits because of %q", got)
	}
	if got := m.Wait("other"); got != "" {
		t.Errorf("other waits because of %q, and does not wait", got)
	}
}
