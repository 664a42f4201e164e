package reconciler

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// TestCitations checks that each part of what a node is to do has the CO's statement that it
// follows from, and the key set.
func TestCitations(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	rec := nodes.New("n1")
	rec.ApplyPresence(protocol.Presence{V: 1, Online: true, Agent: "a", Session: "s"}, now)
	rec.Inventory, rec.Complete = &protocol.Inventory{Unknown: []protocol.DeploymentName{"lost"}}, true
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	entry := func(name protocol.DeploymentName) protocol.SiteEntry {
		return protocol.SiteEntry{Deployment: name, Digest: digest(string(name)), Position: at(1)}
	}
	all := map[protocol.DeploymentName]protocol.SiteEntry{"stays": entry("stays"), "moves": entry("moves"), "goes": entry("goes")}
	in := Input{
		Now: now, Desired: all, Entries: all, KeySet: []byte("keys"), LostAfter: time.Minute, Jitter: rand.New(rand.NewPCG(1, 1)),
		Specs: func(d protocol.Digest) (Spec, bool) {
			return Spec{Bytes: []byte(d), Signature: []byte("entry " + d)}, true
		},
	}
	Step(rec, in)
	in.Desired = map[protocol.DeploymentName]protocol.SiteEntry{"stays": all["stays"]}
	in.Entries = map[protocol.DeploymentName]protocol.SiteEntry{"stays": all["stays"], "moves": all["moves"]}
	in.Moved = map[protocol.DeploymentName]bool{"moves": true}
	in.Removals = map[protocol.DeploymentName]protocol.Removal{
		"goes": {Deployment: "goes", Position: at(2), Signature: []byte("tombstone goes")}, "lost": {Deployment: "lost", Position: at(2), Signature: []byte("tombstone lost")},
	}
	got := Step(rec, in).Desired
	if string(got.KeySet) != "keys" || len(got.Assignments) != 1 || string(got.Assignments[0].Signature) != "entry "+string(digest("stays")) {
		t.Errorf("key set %q, assignments %+v", got.KeySet, got.Assignments)
	}
	want := map[protocol.DeploymentName]string{"moves": "entry " + string(digest("moves")), "goes": "tombstone goes", "lost": "tombstone lost"}
	for _, r := range got.Removals {
		if string(r.Signature) != want[r.Deployment] {
			t.Errorf("removal of %s cites %q, want %q", r.Deployment, r.Signature, want[r.Deployment])
		}
		delete(want, r.Deployment)
	}
	if len(want) > 0 {
		t.Errorf("not removed: %v", want)
	}
}

// TestStatementInForce checks that a version cites the entry in force, and not what was stored with
// its spec for a state that did not come into force.
func TestStatementInForce(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	rec := nodes.New("n1")
	rec.ApplyPresence(protocol.Presence{V: 1, Online: true, Agent: "a", Session: "s"}, now)
	rec.Inventory, rec.Complete = &protocol.Inventory{}, true
	entry := protocol.SiteEntry{Deployment: "web", Digest: digest("1"), Position: protocol.Position{Epoch: 1, Generation: 1}, Signature: []byte("in force")}
	all := map[protocol.DeploymentName]protocol.SiteEntry{"web": entry}
	in := Input{
		Now: now, Desired: all, Entries: all, LostAfter: time.Minute, Jitter: rand.New(rand.NewPCG(1, 1)),
		Specs: func(d protocol.Digest) (Spec, bool) { return Spec{Bytes: []byte(d), Signature: []byte("later")}, true },
	}
	if got := Step(rec, in).Desired.Assignments; len(got) != 1 || string(got[0].Signature) != "in force" {
		t.Errorf("assigned: %+v", got)
	}
	in.Desired, in.Moved = nil, map[protocol.DeploymentName]bool{"web": true}
	if got := Step(rec, in).Desired.Removals; len(got) != 1 || string(got[0].Signature) != "in force" {
		t.Errorf("removed: %+v", got)
	}
}
