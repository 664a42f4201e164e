package projection_test

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestUnlisted has nodes run what is in neither list of the site's desired state: no version
// is desired, so that none can have been given up or be awaited.
func TestUnlisted(t *testing.T) {
	t.Parallel()
	node := fleet.DeploymentNode{State: lifecycle.Installed, Digest: protocol.DigestOf([]byte("1")), AppVersion: "1.0.0"}
	for desired, want := range map[protocol.Digest]lifecycle.State{"": lifecycle.Installed, node.Digest: lifecycle.Installed, protocol.DigestOf([]byte("2")): lifecycle.Pending} {
		if got := projection.Shows(node, desired); got != want {
			t.Errorf("a node with another version shows %s where %q is desired, want %s", got, desired, want)
		}
	}
	tally := projection.Tally{Recorded: projection.Recorded{Known: true, Broken: true, Generation: 2}}
	tally.Change("n1", nil, &node)
	if got := tally.Derive(1); got != lifecycle.Installed {
		t.Errorf("it is shown as %s, want INSTALLED", got)
	}
	if tally.Fault != "" || tally.FaultNode != "" {
		t.Errorf("node %s has the fault %q, want none", tally.FaultNode, tally.Fault)
	}
	d := fleet.Deployment{State: lifecycle.Installed, AppVersion: "1.0.0", Problem: "it is in neither list"}
	d.SiteOnline, d.DesiredNodes = true, 1
	if why := d.Explain(""); why != "it is in neither list" {
		t.Errorf("the reason is %q", why)
	}
	d.Digest, d.State = node.Digest, lifecycle.Pending
	if why := d.Explain(""); !strings.Contains(why, "1.0.0 runs on 0 of 1 nodes") {
		t.Errorf("the reason of one that is desired is %q", why)
	}
}
