package nodes

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestBegunAfterAnEarlierRemoval has a node report that it began a version after the removal that its report before ended, while the LO has taken that for the
// end of a later removal: the report counts, so that the version is removed.
func TestBegunAfterAnEarlierRemoval(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	r := New("n1")
	r.Agent = "x"
	r.Deployments["web"] = &Deployment{
		Status: protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "web", Agent: "x", State: lifecycle.Deleted, Actor: lifecycle.EN},
		Agent:  "x", Seq: 2, Removed: true, Assigned: Assignment{Position: at(6)},
	}
	out := r.ApplyReport(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: "x", Seq: 3, State: lifecycle.Installing, Actor: lifecycle.EN, Digest: "sha256:a", Attempt: 1, Position: at(4),
	}, time.Now())
	if got := r.State("web"); got != lifecycle.Installing || out.Stale || !out.Changed {
		t.Errorf("the LO has it in %s after %+v, want INSTALLING", got, out)
	}
}
