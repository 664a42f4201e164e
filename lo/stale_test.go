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
	c.want(protocol.SiteDesired{V: protocol.Version, Site: "s1", Generation: 2, Epoch: "db"})
	l = startLO(t, localOptions(t, c, dir, addr))
	eventually(t, "the NodeDesired of the other node is empty", func() bool {
		for _, m := range l.broker.Retained(topic.ForNode(topic.NodeDesired, "s1", "gw-1")) {
			var d protocol.NodeDesired
			if err := protocol.Unmarshal(m.Payload, &d); err != nil {
				t.Fatal(err)
			}
			if len(d.Assignments) == 0 {
				return true
			}
		}
		return false
	})
	for _, m := range l.broker.Retained("colony/v1/s1/#") {
		if strings.Contains(m.Topic, "gw-2") || m.Topic != topic.ForNode(topic.NodeDesired, "s1", "gw-1") {
			t.Errorf("retained after the restart: %s", m.Topic)
		}
	}
}
