package nodestatus

import (
	"slices"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestOffline leaves out a node that is online: it is not asked whether it has enrolled.
func TestOffline(t *testing.T) {
	t.Parallel()
	all := make([]NodeStatus, 3)
	for i, n := range []protocol.NodeID{"a", "online", "b"} {
		all[i].Node, all[i].Online = n, n == "online"
	}
	if got := Offline(all); !slices.Equal(got, []protocol.NodeID{"a", "b"}) {
		t.Errorf("offline are %q, want a and b", got)
	}
}
