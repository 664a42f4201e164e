package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestResponses measures the first report of an assignment, and nothing else.
func TestResponses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New()
		rec := nodes.New("n1")
		rec.ApplyPresence(protocol.Presence{Online: true, Session: "1", Agent: "a"}, time.Now())
		status := func(state lifecycle.State, attempt uint32) protocol.DeploymentStatus {
			return protocol.DeploymentStatus{Node: "n1", Deployment: "web", Digest: "sha256:1", Attempt: attempt, State: state, Actor: lifecycle.EN}
		}
		wants := func(what string, count int, last float64) {
			t.Helper()
			seconds, _ := m.lastOf("n1")
			if n := len(m.asked["n1"]); seconds != last || n != count {
				t.Errorf("%s: the last took %g s, and %d are not answered; want %g and %d", what, seconds, n, last, count)
			}
		}
		ask := []protocol.Assignment{{Deployment: "web", Digest: "sha256:1", Attempt: 1}}
		m.Asked(rec, ask, time.Now())
		time.Sleep(2 * time.Second)
		m.Asked(rec, ask, time.Now()) // the same once more: it waits since the first time
		own := status(lifecycle.Installing, 1)
		own.Actor = lifecycle.LO
		m.Answered(own)
		m.Answered(status(lifecycle.Installing, 7))
		wants("reports of something else", 1, 0)
		time.Sleep(time.Second)
		m.Answered(status(lifecycle.Installing, 1))
		wants("the first report", 0, 3)
		time.Sleep(time.Second)
		m.Answered(status(lifecycle.Installed, 1))
		wants("a further report", 0, 3)

		rec.Deployments = map[protocol.DeploymentName]*nodes.Deployment{"web": {Status: status(lifecycle.Installed, 1)}}
		m.Asked(rec, ask, time.Now())
		wants("what the node has begun already", 0, 3)
		ask[0].Attempt = 2
		m.Asked(rec, ask, time.Now())
		wants("another attempt", 1, 3)
		m.Left("n1")
		m.Answered(status(lifecycle.Updating, 2))
		wants("after it was offline", 0, 0)
		rec.ApplyPresence(protocol.Presence{Session: "1", Agent: "a"}, time.Now())
		m.Asked(rec, ask, time.Now())
		wants("while it is offline", 0, 0)
		if n := testutil.CollectAndCount(m.seconds); n != 1 {
			t.Errorf("%d series, want 1: nodes are no label of a histogram", n)
		}
	})
}
