package lo

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestDamagedState damages each file of state of a site: the LO starts, reports the
// damage in an event and in its metrics, and keeps the file aside.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	c, dir := newFakeCO(t), t.TempDir()
	c.want(site1(1, "1", protocol.Policy{}))
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	a := startAgent(t, "gw-1", l.MQTTAddr())
	a.next("with the deployment", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
	a.stop()
	stopLO(t, l)
	for i, name := range []string{"state/site.json", "state/nodes/gw-1.json", "desired/desired.cbor", "datarules.cbor", "retained/messages.log", "down/positions"} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 4
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
		if got := kinds(t, l)[protocol.StateDamaged]; got != i+1 {
			t.Errorf("%s: %d events of damage, want %d", name, got, i+1)
		}
		if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) != 1 {
			t.Errorf("%s: aside are %q, %v", name, aside, err)
		}
		m := get(t, l, "/metrics")
		body, err := io.ReadAll(m.Body)
		if err := errors.Join(err, m.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(body), "colony_lo_state_damaged_total{role=") {
			t.Errorf("%s: the damage is not in the metrics", name)
		}
		stopLO(t, l)
	}
}

// TestMissingStores removes each store of a site as a whole: the LO starts, and says once that it is missing and that it
// is not known what is lost. Without a note, as after an upgrade, and at a new site it says nothing.
func TestMissingStores(t *testing.T) {
	t.Parallel()
	c, dir := newFakeCO(t), t.TempDir()
	c.want(site1(1, "1", protocol.Policy{}))
	run := func() (damaged []protocol.Loss) {
		t.Helper()
		l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
		defer stopLO(t, l)
		for _, e := range events(t, l) {
			if e.Kind != protocol.StateDamaged {
				continue
			}
			var loss protocol.Loss
			if err := protocol.Unmarshal(e.Body, &loss); err != nil {
				t.Fatal(err)
			}
			damaged = append(damaged, loss)
		}
		return damaged
	}
	if got := run(); len(got) > 0 {
		t.Fatalf("a new site reports %+v", got)
	}
	stores := []string{"sessions", "retained/messages.log", "datarules.cbor", "down"}
	for i, name := range stores {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got := run()
			if len(got) != i+1 || !got[i].Uncounted {
				t.Errorf("without %s: %+v", name, got)
			}
		}
	}
	for _, name := range append(stores, "state/begun.json") {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(); len(got) != len(stores) {
		t.Errorf("without a note: %+v", got)
	}
}
