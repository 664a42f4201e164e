package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
)

// windows gives the site a maintenance window that is closed for hours: an update and a removal wait and say so, a policy lets an update
// through, and what waits begins without windows.
func windows(t *testing.T, c *colony) {
	start := time.Now().UTC().Add(12 * time.Hour).Format("15:04")
	if out, code := c.cli("site", "maintenance", "set", site, "--time-zone", "Europe/Berlyn", "--window", start+" 5m"); code == 0 || !strings.Contains(out, "Europe/Berlyn") {
		t.Errorf("a time zone of nobody: %d\n%s", code, out)
	}
	if out, code := c.cli("site", "maintenance", "set", site, "--time-zone", "UTC", "--window", "soon"); code != 2 || !strings.Contains(out, `"sat,sun 22:00 4h"`) {
		t.Errorf("a window that is none: %d\n%s", code, out)
	}
	c.must("deploy", "hello", "--site", site, "--name", "windowed", "--set", fmt.Sprintf("port=%d", freeport.Ports(t, 1)[0]), "--wait", "--healthy-for", "1s")
	c.says("2 maintenance windows", "site", "maintenance", "set", site, "--time-zone", "UTC", "--window", start+" 5m", "--window", "mon,sun "+start+" 10m")
	testpart.Eventually(t, "the site has its windows", func() bool {
		return strings.Contains(c.must("events", "--site", site, "--kind", "maintenance_changed"), "maintenance windows: 2, in UTC")
	})
	c.says("closed until", "site", "maintenance", "show", site)
	waits := func(what string) {
		t.Helper()
		testpart.Eventually(t, what+" waits", func() bool {
			out := c.must("deployment", "show", site+"/windowed")
			return strings.Contains(out, what+" waits: the site is outside of its maintenance windows until") && strings.Contains(out, "INSTALLED")
		})
	}
	c.must("deploy", "hello", "--site", site, "--name", "windowed", "--set", "addressee=Window")
	waits("the update")
	c.must("deploy", "hello", "--site", site, "--name", "windowed", "--set", "addressee=Anytime", "--any-time", "--wait", "--healthy-for", "1s")
	c.must("deploy", "hello", "--site", site, "--name", "windowed", "--any-time=false", "--set", "addressee=Window")
	waits("the update")
	c.must("deployment", "delete", site+"/windowed")
	waits("the removal")
	c.says("no maintenance windows", "site", "maintenance", "clear", site)
	c.says("none: changes are carried out at any time", "site", "maintenance", "show", site)
	testpart.Eventually(t, "it is removed", func() bool {
		return !strings.Contains(c.must("deployment", "list", "--site", site), "windowed")
	})
}
