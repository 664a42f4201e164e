package fleet

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestExplainNodesAway says of when what is shown of nodes that are offline is, and what a
// removal waits for.
func TestExplainNodesAway(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		state  lifecycle.State
		online bool
		nodes  int
		want   string
	}{
		{lifecycle.Installed, true, 0, ""},
		{lifecycle.Installed, true, 1, "node gw-1 is offline since 2026-11-22T08:00:00Z, and shown as of then"},
		{lifecycle.Installed, true, 3, "3 nodes that hold it are offline, of which node gw-1 is offline since 2026-11-22T08:00:00Z, and shown as of then"},
		{lifecycle.Deleting, true, 1, "the removal waits until a node that is offline is back: node gw-1 is offline since 2026-11-22T08:00:00Z; a node that does not come back is given up by: colony node remove plant/gw-1"},
		{lifecycle.Deleted, true, 1, ""},
		{lifecycle.Installed, false, 1, "site plant has never reported"},
	} {
		d := Deployment{Site: "plant", State: tt.state, Observation: Observation{SiteOnline: tt.online, NodesAway: tt.nodes, AwayNode: "gw-1", AwaySince: &since}}
		if got := d.Explain(""); got != tt.want {
			t.Errorf("%s, site online %t, %d nodes away: reason is %q, want %q", tt.state, tt.online, tt.nodes, got, tt.want)
		}
	}
}
