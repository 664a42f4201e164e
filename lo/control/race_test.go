package control

import (
	"context"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// siteHook is a store that calls saving, once, before it stores a decided placement.
type siteHook struct {
	Store
	saving func()
}

// SaveSite implements Store.
func (s *siteHook) SaveSite(v nodes.Site) error {
	if f := s.saving; f != nil && v.Reported != nil {
		s.saving = nil
		f()
	}
	return s.Store.SaveSite(v)
}

// TestReportAfterPlacement has a node report what it runs after an LO without records has
// decided the placement, and before it reconciles the nodes: nothing is taken off the node
// by a placement that did not know of it.
func TestReportAfterPlacement(t *testing.T) {
	t.Parallel()
	one := desired(1, "web")
	one.Deployments[0].Placement.Replicas = 1
	for _, c := range []struct {
		name    string
		desired protocol.SiteDesired
		others  []protocol.NodeID // that have reported to run nothing
	}{
		{"placed nowhere", desired(1, "web"), nil},
		{"placed on another node", one, []protocol.NodeID{"n2"}},
	} {
		s := &siteHook{Store: openStore(t)}
		site := openSite(t, openJournal(t), s, &desiredState{m: c.desired})
		var published []protocol.NodeDesired
		l := NewLoop(site, func(_ context.Context, _ string, payload []byte) error {
			var m protocol.NodeDesired
			if err := protocol.Unmarshal(payload, &m); err != nil {
				return err
			}
			published = append(published, m)
			return nil
		})
		now := time.Now().Add(2 * time.Hour) // the LO waits for no node any more
		l.Reconcile(t.Context(), now)
		for _, id := range c.others {
			announce(t, site, id)
		}
		connect(t, site, "n1")
		s.saving = func() {
			held := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 7}, Digest: "x", Site: c.desired.Position}
			reportAll(t, site, "n1", held, protocol.DeploymentStatus{
				Deployment: "web", State: lifecycle.Installed, Actor: lifecycle.EN, Digest: c.desired.Deployments[0].Digest, Attempt: 1, Site: c.desired.Position,
			})
		}
		l.Reconcile(t.Context(), now)
		if s.saving != nil {
			t.Fatalf("%s: no placement was stored, so that nothing arrived meanwhile", c.name)
		}
		for _, m := range published {
			if m.Node == "n1" && len(m.Removals) > 0 {
				t.Errorf("%s: node n1 is to remove %+v, which it runs", c.name, m.Removals)
			}
		}
	}
}

// TestDeadNodeHoldsUpNoRemoval restarts an LO of which one node never comes back, with a
// deployment that matches no node any more: it is taken off the node that runs it, once the
// LO has waited for the other one.
func TestDeadNodeHoldsUpNoRemoval(t *testing.T) {
	t.Parallel()
	m := desired(1, "web")
	m.Deployments[0].Placement.Node = "n9"
	runs := protocol.DeploymentStatus{Deployment: "web", State: lifecycle.Installed, Actor: lifecycle.EN, Digest: m.Deployments[0].Digest, Attempt: 1, Site: m.Position}
	s, d := openStore(t), &desiredState{m: m}
	before := openSite(t, openJournal(t), s, d)
	announce(t, before, "dead")
	announce(t, before, "n1", runs)

	site := openSite(t, openJournal(t), s, d)
	var removals []protocol.NodeRemoval
	l := NewLoop(site, func(_ context.Context, _ string, payload []byte) error {
		var m protocol.NodeDesired
		err := protocol.Unmarshal(payload, &m)
		removals = append(removals, m.Removals...)
		return err
	})
	announce(t, site, "n1", runs)
	now := time.Now()
	l.Reconcile(t.Context(), now)
	if len(removals) > 0 {
		t.Errorf("node n1 is to remove %+v before the LO has waited for the other node", removals)
	}
	l.Reconcile(t.Context(), now.Add(2*time.Hour))
	if len(removals) != 1 || removals[0].Deployment != "web" || removals[0].Volumes {
		t.Errorf("node n1 is to remove %+v after the LO has waited: want web, without volumes", removals)
	}
}
