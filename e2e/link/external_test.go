package link

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/sim"
)

// TestExternalBroker puts Mosquitto in the CO's broker's place and two COs beside
// each other behind it: batches are shared by both, one of them is killed, then
// the broker, which remembers nothing. What the LO acknowledged is in the database
// once and in order, and both COs go on.
func TestExternalBroker(t *testing.T) {
	r := newRig(t)
	m := newMosquitto(t)
	r.coOptions.Broker.URLs, r.coOptions.Broker.ClientID, r.coOptions.Broker.Username = []string{"tcp://" + m.addr}, "colony-co-1", "colony-co"
	r.loOptions.CO.MQTT, r.loOptions.CO.KeepAlive = []string{"tcp://" + m.addr}, chaosKeepAlive
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
		func() { m.Kill(); m.start() },
	} {
		strike()
		at = arrived(at)
	}
	f.Churn(0)
	eventually(t, time.Minute, "every report is acknowledged by the LO", func() error {
		if !f.Settled() {
			return fmt.Errorf("%+v", f.Stats())
		}
		return nil
	})
	eventually(t, 90*time.Second, "the CO says what is true", func() error { return state(r, f) })
	transitions, _, faults := l.history(r)
	if len(faults) > 0 {
		t.Errorf("%d faults in the CO's history:\n%s", len(faults), strings.Join(faults[:min(10, len(faults))], "\n"))
	}
	whole(t, r)
	// Both of them work: each has committed batches since it was started last.
	for _, addr := range []string{r.coOptions.HTTP, other.HTTP} {
		if n := counter(t, r, addr, "colony_co_site_events_total"); n == 0 {
			t.Errorf("the CO at %s has committed nothing", addr)
		}
	}
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

// A mosquitto is a real MQTT broker of somebody else's.
type mosquitto struct {
	*testproc.Process
	t            *testing.T
	addr, config string
}

func newMosquitto(t *testing.T) *mosquitto {
	t.Helper()
	if _, err := exec.LookPath("mosquitto"); err != nil {
		t.Fatal("mosquitto is not installed: run scripts/setup --with-test-peers as root")
	}
	dir := t.TempDir()
	m := &mosquitto{
		Process: testproc.New(t, "mosquitto", filepath.Join(dir, "log")),
		t:       t, addr: freeport.Addr(t), config: filepath.Join(dir, "mosquitto.conf"),
	}
	_, port, err := net.SplitHostPort(m.addr)
	if err != nil {
		t.Fatal(err)
	}
	access := filepath.Join(dir, "access")
	for path, text := range map[string]string{
		access:   documentedAccess(t),
		m.config: fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nacl_file %s\nmax_queued_messages 0\nuser root\n", port, access),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.start()
	t.Cleanup(m.Kill)
	return m
}

// documentedAccess is the access control that docs/broker.md tells people to set.
func documentedAccess(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/broker.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(doc), "```\nuser colony-co\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("docs/broker.md has no access file for Mosquitto")
	}
	return "user colony-co\n" + text
}

func (m *mosquitto) start() {
	m.t.Helper()
	m.Start("mosquitto", "-c", m.config)
	eventually(m.t, 30*time.Second, "mosquitto listens", func() error {
		c, err := net.Dial("tcp", m.addr)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}
