package en_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/colonyfleet/colony/protocol/topic"
)

// publishDesired publishes a desired state of the node, retained, as an attacker in the LO's place
// can.
func (s *site) publishDesired(t *testing.T, d protocol.NodeDesired) {
	t.Helper()
	d.V, d.Node = 1, "n1"
	m := broker.Message{Topic: topic.ForNode(topic.NodeDesired, "plant", "n1"), Payload: protocol.Marshal(d), QoS: 1, Retain: true}
	if err := s.broker.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// metrics returns what the agent says of itself.
func metrics(t *testing.T, addr string) string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics") //nolint:noctx // one call of a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMaliciousBroker has an agent at a broker that is not the LO's, and has everything that the
// CO ever signed for the site: what it makes up is refused, reported and counted with its reason,
// and the version that runs keeps its container.
func TestMaliciousBroker(t *testing.T) {
	t.Parallel()
	co, s, machine := signtest.New(t, 1), newSite(t), memory.New(memory.Options{})
	o := s.options(t, t.TempDir(), machine)
	o.RootKeyFile = filepath.Join(t.TempDir(), "root.pub")
	encoded, err := keyfile.EncodePublic(co.Root())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.RootKeyFile, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	signed := func(site protocol.SiteID, node protocol.NodeID, generation uint64) protocol.Assignment {
		a, at := assignment(), protocol.Position{Epoch: 1, Generation: generation}
		m := co.Attached(protocol.SiteDesired{V: 1, Site: site, Position: at, Deployments: []protocol.SiteEntry{{
			Deployment: a.Deployment, Digest: a.Digest, Position: at, Placement: protocol.Placement{Node: node},
		}}})
		a.Signature, a.Site = m.Deployments[0].Signature, at
		return a
	}
	generation := uint64(0)
	send := func(d protocol.NodeDesired) {
		generation++
		d.Position, d.KeySet = protocol.Position{Epoch: 1, Generation: generation}, co.KeySet
		s.publishDesired(t, d)
	}
	send(protocol.NodeDesired{Assignments: []protocol.Assignment{signed("plant", "n1", 5)}})
	e := start(t, o)
	defer stop(t, e)
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
	before, err := machine.List(t.Context())
	if err != nil || len(before) != 1 {
		t.Fatalf("containers %+v, %v", before, err)
	}
	other := func(a protocol.Assignment) protocol.NodeDesired { // for a deployment that is not here
		return protocol.NodeDesired{Assignments: []protocol.Assignment{a}}
	}
	renamed := func(site protocol.SiteID, node protocol.NodeID) protocol.NodeDesired {
		spec := protocol.Marshal(protocol.DeploymentSpec{V: 1, Deployment: "new", App: "a", AppVersion: "1", Components: []protocol.Component{
			{Name: "m", Containers: []protocol.Container{{Name: "m", Image: "r/m@" + string(protocol.DigestOf(nil))}}},
		}})
		at := protocol.Position{Epoch: 1, Generation: 6}
		m := co.Attached(protocol.SiteDesired{V: 1, Site: site, Position: at, Deployments: []protocol.SiteEntry{{
			Deployment: "new", Digest: protocol.DigestOf(spec), Position: at, Placement: protocol.Placement{Node: node},
		}}})
		return other(protocol.Assignment{Deployment: "new", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: 1, Signature: m.Deployments[0].Signature})
	}
	unsigned := renamed("plant", "n1")
	unsigned.Assignments[0].Signature = nil
	altered := renamed("plant", "n1")
	altered.Assignments[0].Spec = append([]byte(nil), assignment().Spec...)
	altered.Assignments[0].Digest = protocol.DigestOf(altered.Assignments[0].Spec)
	for _, attack := range []struct {
		what string
		d    protocol.NodeDesired
		want sign.Reason
	}{
		{"own spec", unsigned, sign.Unsigned},
		{"altered spec", altered, sign.Mismatch},
		{"other node's", renamed("plant", "n2"), sign.WrongNode},
		{"other site's", renamed("elsewhere", "n1"), sign.WrongSite},
		{"removal of everything", protocol.NodeDesired{Removals: []protocol.NodeRemoval{{Deployment: "app", Site: protocol.Position{Epoch: 9}, Volumes: true}}}, sign.Unsigned},
		{"a move of everything", protocol.NodeDesired{Removals: []protocol.NodeRemoval{{Deployment: "app", Signature: signed("plant", "n1", 5).Signature}}}, sign.WrongNode},
		{"purge of everything", protocol.NodeDesired{Purges: []protocol.NodePurge{{Deployment: "app", Site: protocol.Position{Epoch: 9}}}}, sign.Unsigned},
	} {
		for i := range attack.d.Assignments {
			attack.d.Assignments[i].Attempt = uint32(generation) // each is another one, and is reported
		}
		send(attack.d)
		wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return strings.Contains(i.Problem, string(attack.want)+": ") })
		if len(attack.d.Assignments) > 0 {
			wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool {
				return m.Deployment != "" && m.State == lifecycle.Failed && m.Code == protocol.SignatureInvalid && strings.HasPrefix(m.Message, string(attack.want)+": ")
			})
		}
		s.mu.Lock()
		s.received = nil
		s.mu.Unlock()
		after, err := machine.List(t.Context())
		if err != nil || len(after) != 1 || after[0].Digest != before[0].Digest || after[0].State != before[0].State {
			t.Fatalf("%s: containers %+v, %v; before %+v", attack.what, after, err, before)
		}
	}
	m := metrics(t, e.HTTPAddr())
	for reason, n := range map[sign.Reason]int{sign.Unsigned: 3, sign.Mismatch: 1, sign.WrongNode: 2, sign.WrongSite: 1} {
		if line := fmt.Sprintf("colony_en_desired_refused_total{reason=%q} %d\n", reason, n); !strings.Contains(m, line) {
			t.Errorf("no %q in:\n%s", line, m)
		}
	}
	if !strings.Contains(m, "colony_en_desired_checked 1\n") {
		t.Error("the metrics do not say that the desired state is checked")
	}
	send(protocol.NodeDesired{Assignments: []protocol.Assignment{signed("plant", "n1", 5)}}) // as an honest LO does
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.Problem == "" })
}
