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
