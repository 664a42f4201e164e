package lo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestStaleTopics removes a node from the site and a deployment from the desired
// state while the LO is away: the site's broker, which owned nothing of it, has
// nothing of it after the restart.
func TestStaleTopics(t *testing.T) {
	t.Parallel()
	c, dir := newFakeCO(t), t.TempDir()
	c.release()
	c.want(site1(1, "1", protocol.Policy{}))
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	addr := l.MQTTAddr()
	for _, node := range []protocol.NodeID{"gw-1", "gw-2"} {
		a := startAgent(t, node, addr)
		a.next("with the deployment", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
		a.stop()
	}
	if got := len(l.broker.Retained("colony/v1/s1/node/#")); got < 4 {
		t.Fatalf("%d topics of nodes are retained, want NodeDesired and presences", got)
	}
	stopLO(t, l)
	records, err := filepath.Glob(filepath.Join(dir, "state", "nodes", "gw-2*"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records of the node: %v %v", records, err)
	}
	if err := os.Remove(records[0]); err != nil {
		t.Fatal(err)
	}
	c.want(protocol.SiteDesired{
		V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 2},
		Removals: []protocol.Removal{{Deployment: "web", Position: protocol.Position{Epoch: 1, Generation: 2}}},
	})
	l = startLO(t, localOptions(t, c, dir, addr))
	eventually(t, "the desired state is adopted", func() bool { m, ok := l.desired.Current(); return ok && m.Position.Generation == 2 })
	if m := l.broker.Retained(topic.ForNode(topic.NodeDesired, "s1", "gw-1")); len(m) > 0 {
		t.Error("the other node has a NodeDesired before it has reported what it holds")
	}
	a := startAgent(t, "gw-1", addr)
	a.next("with the removal", func(d protocol.NodeDesired) bool { return len(d.Removals) == 1 && len(d.Assignments) == 0 })
	for _, m := range l.broker.Retained("colony/v1/s1/#") {
		if !strings.Contains(m.Topic, "gw-1") {
			t.Errorf("retained after the restart: %s", m.Topic)
		}
	}
}
