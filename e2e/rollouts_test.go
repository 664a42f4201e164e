package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
)

// fleetDeployments spreads an application over the site, has a version that never becomes healthy stop it, and returns.
func fleetDeployments(t *testing.T, c *colony) {
	file := filepath.Join(t.TempDir(), "greeting.yaml")
	port := freeport.Ports(t, 1)[0]
	write := func(version, strategy string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: colony/v1\nkind: FleetDeployment\nspec:\n  application: {id: hello, version: %s}\n  targets: {sites: [\"*\"]}\n"+
			"  parameters: {port: %d, greeting: Hi}\n  policy: {attempts: 1}\n  strategy: %s\n", version, port, strategy)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(words string) {
		t.Helper()
		testpart.Eventually(t, "the rollout shows "+words, func() bool { return strings.Contains(c.must("rollout", "show", "greeting"), words) })
	}
	const waves = "{waves: [{percent: 50, approval: true}, {percent: 100}]}"
	write("1.0.0", waves)
	plan := c.must("fleet", "plan", "greeting", "-f", file, "--nodes")
	id, _, _ := strings.Cut(strings.TrimPrefix(plan, "plan "), ",")
	if !strings.Contains(plan, "place 1") || !strings.Contains(plan, "1.0.0 is new at 1 sites") {
		t.Errorf("the plan says\n%s", plan)
	}
	c.says("place 1", "fleet", "set", "greeting", "-f", file, "--dry-run")
	c.refused(3, []string{"no fleet deployment"}, "fleet", "show", "greeting")
	c.says("follow it with colony rollout show greeting", "fleet", "set", "greeting", "-f", file, "--plan", id)
	c.refused(4, []string{"whose head is"}, "fleet", "set", "greeting", "-f", file, "--plan", id)
	shows("promote to begin the next one")
	c.says("sites: *", "explain", site+"/greeting")
	c.refused(3, []string{"did you mean greeting?"}, "explain", site, "greting")
	c.says("is paused", "rollout", "pause", "greeting")
	c.says("goes on", "rollout", "resume", "greeting")
	c.says("may go on", "rollout", "promote", "greeting")
	c.says("revision 1 of greeting is done: all waves are through", "rollout", "wait", "greeting")
	c.says("healthy", "rollout", "sites", "greeting")
	c.says("greeting: Hi", "fleet", "show", "greeting")

	c.says("at commit", "fleet", "except", "greeting", site, "-p", "greeting=Moin")
	shows("promote to begin the next one")
	c.must("rollout", "promote", "greeting")
	shows("all waves are through")

	write("1.2.0-sick", waves)
	c.says("update 1", "fleet", "plan", "greeting", "-f", file)
	c.must("fleet", "set", "greeting", "-f", file)
	c.refused(1, []string{"is paused: 1 site failed, and 0 may"}, "rollout", "wait", "greeting")
	c.says(site, "rollout", "sites", "greeting", "--state", "failed")
	c.says("a person resumes the rollout (colony rollout resume greeting)", "explain", site, "greeting")
	c.says("is aborted", "rollout", "abort", "greeting", "--rollback")
	shows("all waves are through") // the content ran here, so that no wave waits for a person
	c.says("returns to hello 1.0.0", "fleet", "revert", "greeting", "--to", "1")
	shows("all waves are through")
	c.says("aborted", "rollout", "list", "--fleet", "greeting")
	c.says("greeting", "fleet", "list")

	write("9.9.9", waves)
	c.refused(2, []string{"body.application", "9.9.9"}, "fleet", "set", "greeting", "-f", file)
	c.says("is removed from all its sites", "fleet", "remove", "greeting")
	testpart.Eventually(t, "nothing of it runs", func() bool { return !strings.Contains(c.must("deployment", "list"), "greeting") })
}
