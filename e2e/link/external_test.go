package link

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/mosquittotest"
	"github.com/colonyfleet/colony/sim"
)

// TestExternalBroker puts Mosquitto in the CO's broker's place and two COs beside
// each other behind it: batches are shared by both, one of them is killed, then
// the broker, which remembers nothing. What the LO acknowledged is in the database
// once and in order, and both COs go on.
func TestExternalBroker(t *testing.T) {
	r := newRig(t)
	m := mosquittotest.Start(t, mosquittotest.Documented(t, "../../docs/broker.md")...)
	r.coOptions.Broker.URLs, r.coOptions.Broker.ClientID, r.coOptions.Broker.Username = []string{"tcp://" + m.Addr}, "colony-co-1", "colony-co"
	r.loOptions.CO.MQTT, r.loOptions.CO.KeepAlive = []string{"tcp://" + m.Addr}, chaosKeepAlive
	other := r.coOptions
	other.StateDir, other.HTTP, other.Broker.ClientID = filepath.Join(r.dir, "co-2"), freeport.Addr(t), "colony-co-2"
	second := newProcess(t, "co-2", "co", r.program, r.dir)
	t.Cleanup(second.Stop)
	r.startCO()
	second.start(other)
	r.serves(second, other.HTTP)
	r.desire("app", "gateway")
	r.startLO()
	l := newLedger()
	f := r.fleet(sim.Options{
		Nodes: chaosNodes, Seed: 1, KeepAlive: 5 * time.Second, MaxBackoff: 200 * time.Millisecond, SelfHeal: true, Acknowledged: l.acknowledged,
	})
	f.Churn(chaosChurn)
	arrived := func(after int64) int64 {
		t.Helper()
		var now int64
		eventually(t, time.Minute, "reports arrive at the CO", func() error {
			if now = query[struct{ N int64 }](r, `select coalesce(max(journal_seq), 0) from sites where id = $1`, site)[0].N; now <= after+500 {
				return fmt.Errorf("at %d, after %d", now, after)
			}
			return nil
		})
		return now
	}
	at := arrived(0)
	for _, strike := range []func(){
		func() { r.co.Kill(); at = arrived(at); r.startCO() },
		func() { second.Kill(); at = arrived(at); second.start(other); r.serves(second, other.HTTP) },
		func() { m.Kill(); m.Again() },
	} {
		strike()
		at = arrived(at)
	}
	// Both of them work: each commits batches after it was started last.
	for _, addr := range []string{r.coOptions.HTTP, other.HTTP} {
		eventually(t, time.Minute, "the CO at "+addr+" commits events", func() error {
			if n := counter(t, r, addr, "colony_co_site_events_total"); n == 0 {
				return errors.New("it has committed nothing")
			}
			return nil
		})
	}
	f.Churn(0)
	settled(t, f)
	eventually(t, 90*time.Second, "the CO says what is true", func() error { return state(r, f) })
	transitions, _, faults := l.history(r)
	if len(faults) > 0 {
		t.Errorf("%d faults in the CO's history:\n%s", len(faults), strings.Join(faults[:min(10, len(faults))], "\n"))
	}
	whole(t, r)
	restarts := counter(t, r, r.loOptions.HTTP, `colony_lo_uplink_restarts_total`)
	t.Logf("%d reports acknowledged, %d moves in the history, each once and in order; the uplink began again %v times", f.Stats().Acknowledged, transitions, restarts)
}

// counter returns the sum of a metric's values.
func counter(t *testing.T, r *rig, addr, name string) (sum float64) {
	t.Helper()
	resp, err := r.http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}
