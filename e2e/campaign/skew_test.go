package campaign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// orders are how the tiers are upgraded: between them they meet in every mixture of two releases.
var orders = [][]string{{"en", "lo", "co"}, {"co", "en", "lo"}, {"lo", "co", "en"}}

// TestSkew upgrades a fleet of an earlier release tier by tier, in three orders. In each
// mixture a deployment is made, updated, rolled back and removed, machine data crosses, and
// all is shown; what runs is not restarted by an upgrade.
func TestSkew(t *testing.T) {
	t.Parallel()
	present := built(t)
	all, err := releases("../..")
	if err != nil {
		t.Fatal(err)
	}
	// A tier works with those one release older. The newest release is that of the tree
	// itself or of what is ahead of it; the one before it is played, too.
	for _, of := range all[:min(2, len(all))] {
		before := programs(t, of)
		for _, order := range orders {
			t.Run(of.version+" to this, "+strings.Join(order, " "), func(t *testing.T) {
				t.Parallel()
				c := newColony(t, before, before, before)
				c.up()
				s := &skew{plc: c.connect()}
				s.play()
				for _, role := range order {
					s.upgrade(role, present)
					s.play()
				}
			})
		}
	}
}

// skew is a fleet whose tiers are of different releases.
type skew struct {
	*plc
	rounds int
}

// upgrade replaces a tier's program, as kill -9 and the start of another one.
func (s *skew) upgrade(role string, to release) {
	s.t.Helper()
	ran := s.shims()
	p := map[string]*tier{"co": s.co, "lo": s.lo, "en": s.en}[role]
	p.Kill()
	p.program = s.tier(to, role).program
	p.start()
	s.serves(s.co, s.http, "/readyz")
	s.serves(s.lo, s.loHTTP, "/healthz")
	s.eventually("after the upgrade of the "+role+" the fleet is as before", func() error {
		if err := p.Running(); err != nil {
			s.t.Fatal(err)
		}
		want, err := s.versionOf(s.en)
		if err != nil {
			return err
		}
		at, err := s.site()
		if err != nil {
			return err
		}
		if len(at.Nodes) != 1 || at.Nodes[0].Version != want {
			return fmt.Errorf("the LO has nodes %+v, want one of version %s", at.Nodes, want)
		}
		return errors.Join(s.online(), s.runs("hello", "1.0.0"), s.greets("I am version 1.0.0."))
	})
	if now := s.shims(); !slices.Equal(now, ran) {
		s.t.Errorf("the upgrade of the %s restarted containers: shims %v, were %v", role, now, ran)
	}
}

// shims returns the process ids of the shims.
func (s *skew) shims() (pids []int) {
	s.t.Helper()
	found, err := shims.Find(s.daemon.Socket, s.engine.Namespace)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, one := range found {
		pids = append(pids, one.PID)
	}
	return pids
}

// versionOf returns the version that the program of the agent says of itself.
func (s *skew) versionOf(p *tier) (string, error) {
	out, err := run(s.dir, p.program[0], "-version")
	return strings.TrimSpace(strings.TrimPrefix(out, "colony-en ")), err
}

// play has the fleet do once all that crosses the tiers. It ends with hello 1.0.0.
func (s *skew) play() {
	t := s.t
	t.Helper()
	s.rounds++
	port := fmt.Sprintf("port=%d", s.port)
	name := fmt.Sprintf("Round %d", s.rounds)
	s.must("deploy", "hello@1.0.0", "--site", site, "--set", port, "--set", "addressee="+name, "--wait", "--healthy-for", "1s")
	s.eventually("it greets", func() error { return s.greets("Hello, " + name + "! I am version 1.0.0.") })
	s.must("deploy", "hello@1.1.0", "--site", site, "--wait", "--healthy-for", "1s")
	if out, err := s.cli("deploy", "hello@1.2.0-exits", "--site", site, "--attempts", "1", "--wait"); err == nil || !strings.Contains(out, "went back to 1.1.0") {
		t.Errorf("an update that fails: %v\n%s", err, out)
	}
	s.must("deployment", "rollback", site+"/hello", "--wait", "--healthy-for", "1s")
	s.eventually("the version before runs", func() error { return errors.Join(s.runs("hello", "1.1.0"), s.greets("I am version 1.1.0.")) })

	s.must("deploy", "keeper", "--site", site, "--wait", "--healthy-for", "1s")
	data, err := filepath.Glob(filepath.Join(s.en.state, "engine", "volumes", "keeper", "*"))
	if err != nil || len(data) != 1 {
		t.Fatalf("volumes of keeper: %q, %v", data, err)
	}
	if s.rounds > 1 {
		if _, err := os.Stat(filepath.Join(data[0], "marker")); err != nil {
			t.Errorf("the volume, which outlives the deployment and the upgrade: %v", err)
		}
	}
	if err := os.WriteFile(filepath.Join(data[0], "marker"), []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must("deployment", "delete", site+"/keeper", "--wait")

	s.publish(5)
	s.eventually("the CO has the machine data", func() error {
		if n := s.missing(); n > 0 {
			return fmt.Errorf("%d messages are missing", n)
		}
		return nil
	})
	for _, args := range [][]string{
		{"status"}, {"site", "show", site}, {"node", "show", site + "/" + node}, {"deployment", "show", site + "/hello"}, {"deployment", "history", site + "/hello"}, {"events"},
	} {
		s.must(args...)
	}
	if out := s.must("deployment", "history", site+"/keeper"); !strings.Contains(out, string(lifecycle.Deleted)) {
		t.Errorf("the history of keeper does not end with its removal:\n%s", out)
	}
	// A CO of 0.2.0 sends a site of which nothing was ever desired a state without a position.
	if said := s.texts("select kind || ': ' || message from events where kind in ('anomaly', 'desired_refused', 'data_lost', 'journal_gap', 'state_damaged') and message not like 'desired state 0.0:%'"); len(said) > 0 {
		t.Errorf("the CO recorded %q", said)
	}
	s.must("deploy", "hello@1.0.0", "--site", site, "--wait", "--healthy-for", "1s")
}
