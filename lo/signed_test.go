package lo

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

// TestSigned gives an LO the root key: what the CO did not sign is refused, with an event, a
// metric and the reason, what is in force goes on, and what the CO signs is adopted.
func TestSigned(t *testing.T) {
	t.Parallel()
	keys := signtest.New(t, 1)
	encoded, err := keyfile.EncodePublic(keys.Root())
	if err != nil {
		t.Fatal(err)
	}
	co := newFakeCO(t)
	o := localOptions(t, co, t.TempDir(), "127.0.0.1:0")
	o.RootKeyFile = filepath.Join(t.TempDir(), "root.pub")
	if err := os.WriteFile(o.RootKeyFile, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	l := startLO(t, o)
	at := func(generation uint64) protocol.SiteDesired {
		return protocol.SiteDesired{V: 1, Site: o.Site, Position: protocol.Position{Epoch: 1, Generation: generation}}
	}
	inForce := func() uint64 {
		m, _ := l.desired.Current()
		return m.Position.Generation
	}
	co.want(keys.Sign(at(1)))
	eventually(t, "the signed state is in force", func() bool { return inForce() == 1 })
	co.want(at(2))
	eventually(t, "the state that nobody signed is refused", func() bool {
		got := refusals(t, l)
		return len(got) == 1 && strings.HasPrefix(got[0].Reason, "unsigned: ") && got[0].Position.Generation == 2 && got[0].Held.Position.Generation == 1
	})
	r := get(t, l, "/metrics")
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if m := string(body); !strings.Contains(m, `colony_lo_desired_refused_total{reason="unsigned"} 1`) || !strings.Contains(m, "colony_lo_desired_checked 1\n") {
		t.Errorf("metrics:\n%s", m)
	}
	if inForce() != 1 {
		t.Errorf("in force is %d", inForce())
	}
	co.want(keys.Sign(at(3)))
	eventually(t, "the next signed state is in force", func() bool { return inForce() == 3 })
}

// TestCitations has an LO hand the CO's statements on to a node: the key set, and what each
// assignment, removal and purge follows from.
func TestCitations(t *testing.T) {
	t.Parallel()
	keys := signtest.New(t, 1)
	co := newFakeCO(t)
	l := startLO(t, localOptions(t, co, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	defer a.stop()
	m := site1(1, "1", protocol.Policy{})
	for i := range m.Deployments {
		m.Deployments[i].Position = m.Position
	}
	name := m.Deployments[0].Deployment
	m.Purges = []protocol.Purge{{Node: "n1", Deployment: "older", Position: m.Position}}
	co.want(keys.Sign(m))
	d := a.next("the assignment", func(d protocol.NodeDesired) bool { return assigned(d) && len(d.Purges) == 1 })
	trust, err := sign.NewTrust(keys.Root())
	if err == nil {
		trust, err = trust.Follow(d.KeySet)
	}
	if err != nil || trust.Number() != 1 {
		t.Fatalf("key set %d, %v", trust.Number(), err)
	}
	if e, err := trust.Entry("s1", d.Assignments[0].Signature); err != nil || e.Digest != d.Assignments[0].Digest {
		t.Errorf("assignment: %+v, %v", e, err)
	}
	if p, err := trust.Purge("s1", d.Purges[0].Signature); err != nil || p.Deployment != "older" {
		t.Errorf("purge: %+v, %v", p, err)
	}
	gone := m
	gone.Position.Generation++
	gone.Deployments, gone.Removals = nil, []protocol.Removal{{Deployment: name, Position: gone.Position}}
	co.want(keys.Sign(gone))
	d = a.next("the removal", func(d protocol.NodeDesired) bool { return len(d.Removals) == 1 })
	if r, err := trust.Tombstone("s1", d.Removals[0].Signature); err != nil || r.Deployment != name {
		t.Errorf("removal: %+v, %v", r, err)
	}
}
