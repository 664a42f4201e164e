package data

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// TestDamageOfALaterRule damages what the sampler of a rule held, and has the rule come
// back by a change of the rules: the damage is reported then.
func TestDamageOfALaterRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sampled := protocol.DataRule{Name: "r", Topics: []string{"#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}}
	d := newForwarder(t, dir, sampled)
	acceptAll(t, d, message("x", "1"))
	change(t, d)
	path := filepath.Join(d.heldDir("r"), "messages.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("not a log, and not the beginning of one"), 0o600); err != nil {
		t.Fatal(err)
	}
	var damaged []string
	d.o.Damaged = func(found *statefile.Damage) { damaged = append(damaged, found.String()) }
	change(t, d, sampled)
	if diff := cmp.Diff([]string{"lo/samples r"}, damaged); diff != "" {
		t.Errorf("reported as damaged (-want +got):\n%s", diff)
	}
}
