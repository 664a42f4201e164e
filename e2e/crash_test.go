package e2e

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// crashLoop updates to a version whose container runs for 3 s each time and is restarted for ever:
// it is INSTALLED between its exits, which are events, and the command that waits does not take that
// for success. Its only attempt fails at the fourth exit.
func crashLoop(t *testing.T, c *colony) {
	c.must("app", "import", "testdata/apps")
	c.pushComponent("crasher", "services:\n  crasher:\n    image: registry.colony/samples/faulty:1.0.0\n    command: [late]\n    restart: always\n")
	c.refused(6, []string{"crash_loop", "exited 4 times"}, "deploy", "crasher", "--site", site, "--attempts", "1", "--wait")
	d, err := c.deployment("crasher")
	if err != nil || len(d.Nodes) != 1 || d.Nodes[0].State != lifecycle.Failed || len(d.Nodes[0].Components) != 1 || d.Nodes[0].Components[0].Restarts != 3 {
		t.Errorf("%v, %+v; want it FAILED after 3 restarts", err, d.Nodes)
	}
	if out := c.must("events", "--site", site, "--deployment", "crasher"); !strings.Contains(out, "restarts so far: 1") {
		t.Errorf("no event says that the container was restarted:\n%s", out)
	}
	c.must("deployment", "delete", site+"/crasher", "--wait")
}
