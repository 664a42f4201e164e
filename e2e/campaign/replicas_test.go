package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/mosquittotest"
	"github.com/colonyfleet/colony/internal/testproc"
)

// TestReplicasOfTwoReleases upgrades a CO of two replicas one after the other: while the first one of this release brings the
// schema up to date, the one of the release before goes on with it. Both make changes, both take reports, each shows what the other
// did, and one alone is enough. The old program does not start again on the new schema, and says so.
func TestReplicasOfTwoReleases(t *testing.T) {
	t.Parallel()
	present := built(t)
	all, err := releases("../..")
	if err != nil {
		t.Fatal(err)
	}
	before := programs(t, all[0])
	broker := mosquittotest.Start(t, mosquittotest.Documented(t, "../../docs/broker.md")...)
	c := newColony(t, before, before, before)
	c.shareBroker(broker.Addr)
	second := c.replica(present)
	c.up()
	port := fmt.Sprintf("port=%d", c.port)
	c.must("deploy", "hello@1.0.0", "--site", site, "--set", port, "--set", "addressee=before", "--wait", "--healthy-for", "1s")

	second.co.start()
	second.serves(second.co, second.http, "/readyz")
	plc := second.connect()
	for round, by := range []*colony{c, second, c} {
		name := fmt.Sprintf("replica %d", round)
		by.must("deploy", "hello@1.0.0", "--site", site, "--set", port, "--set", "addressee="+name, "--wait", "--healthy-for", "1s")
		c.eventually("it greets", func() error { return c.greets("Hello, " + name + "!") })
		plc.publish(20)
		for _, shown := range []*colony{c, second} {
			shown.eventually("both show the same", func() error { return errors.Join(shown.online(), shown.runs("hello", "1.0.0"), plc.arrived()) })
		}
	}
	// A removal, whose tombstone one makes and both keep.
	c.must("deploy", "keeper", "--site", site, "--wait", "--healthy-for", "1s")
	second.must("deployment", "delete", site+"/keeper", "--wait")

	c.co.Kill()
	second.must("deploy", "hello@1.1.0", "--site", site, "--wait", "--healthy-for", "1s")
	plc.publish(20)
	second.eventually("one alone is enough", func() error {
		return errors.Join(second.online(), second.runs("hello", "1.1.0"), plc.arrived(), c.greets("I am version 1.1.0."))
	})
	if n, err := c.query(`select count(*) from anomalies`); err != nil || n != 0 {
		t.Errorf("%d anomalies are recorded, want none: %v", n, err)
	}
	if n, err := c.query(`select count(*) from events where kind in ('journal_gap', 'data_lost')`); err != nil || n != 0 {
		t.Errorf("%d gaps are recorded, want none: %v", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.co.program[0], append(c.co.program[1:], "--config", c.co.config)...).CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "later version of this program") {
		t.Errorf("the old program on the new schema: %v\n%s", err, out)
	}
	if err := second.get("/deployments/"+site+"/hello", &fleet.Deployment{}); err != nil {
		t.Errorf("after that the new one answers: %v", err)
	}
}

// shareBroker has the CO, and with it the LO, use an external broker.
func (c *colony) shareBroker(addr string) {
	c.t.Helper()
	c.rewrite(c.co.config, c.co.config, "\nmqtt: ", fmt.Sprintf("\nbroker: {urls: [\"tcp://%s\"], clientID: colony-co-1, username: colony-co}\n# mqtt: ", addr))
	c.rewrite(c.lo.config, c.lo.config, "co: {", fmt.Sprintf("co: {mqtt: [\"tcp://%s\"], http: \"http://%s\", keepAlive: 5s, maxBackoff: 500ms} # ", addr, c.http))
}

// replica returns the same fleet as seen by a second CO, of another release, which has a state directory and an address of its own. It is
// not started.
func (c *colony) replica(r release) *colony {
	c.t.Helper()
	other := *c
	other.http, other.co = freeport.Addr(c.t), c.tier(r, "co")
	other.co.Process = testproc.New(c.t, "co-2", filepath.Join(c.dir, "co-2.log"))
	other.co.config, other.co.state = filepath.Join(c.dir, "co-2.yaml"), filepath.Join(c.dir, "co-2")
	c.rewrite(c.co.config, other.co.config, "stateDir:", fmt.Sprintf("registryDir: %s\nstateDir:", filepath.Join(c.co.state, "registry")), c.http, other.http, "colony-co-1", "colony-co-2", c.co.state+"\n", other.co.state+"\n")
	c.t.Cleanup(other.co.Kill)
	return &other
}

// rewrite writes a configuration, with texts in the place of others, each of which it wants to find.
func (c *colony) rewrite(from, to string, pairs ...string) {
	c.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(string(b), pairs[i]) {
			c.t.Fatalf("%s has no %q:\n%s", from, pairs[i], b)
		}
	}
	if err := os.WriteFile(to, []byte(strings.NewReplacer(pairs...).Replace(string(b))), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// arrived returns nil where the CO has all that the LO acknowledged.
func (p *plc) arrived() error {
	if n := p.missing(); n > 0 {
		return fmt.Errorf("%d messages are missing", n)
	}
	return nil
}
