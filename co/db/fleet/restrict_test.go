package fleetdb_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/audit"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestRestrictions records what restricts a node: in lists, at the deployment that waits, and in the audit what was done at the site.
func TestRestrictions(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	hold := restriction.Restriction{Kind: restriction.Hold, Reason: "a batch runs", Actor: "uid 1000", SetMillis: 1_700_000_000_000, ForMillis: 7_200_000}
	report := restriction.Report{V: 1, Restrictions: []restriction.Restriction{hold}, Waits: []restriction.Wait{{Deployment: "d", Why: "the update waits"}}}
	local := report
	local.Change = &restriction.Change{Did: "hold", Reason: "a batch runs", Actor: "uid 1000", Local: true}
	j := &journal{epoch: "e"}
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.life("d", "n1")
	j.add(protocol.NodeRestrictions, "n1", local)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))

	shown := restriction.Report{Restrictions: report.Restrictions, Waits: report.Waits}
	list, _, err := s.Nodes(ctx, fleet.NodeFilter{}, fleet.Page{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d nodes, %v", len(list), err)
	}
	if diff := cmp.Diff(shown, list[0].Report); diff != "" {
		t.Errorf("in the list of nodes (-want +got):\n%s", diff)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "d")); len(d.Nodes) != 1 || d.Nodes[0].Waits != "the update waits" {
		t.Errorf("at the deployment: %+v", d.Nodes)
	}
	entries, _, err := auditdb.New(pool).Entries(ctx, audit.Filter{}, fleet.Page{})
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries in the audit, %v", len(entries), err)
	}
	if e := entries[0]; e.Kind != audit.Local || e.Principal != "uid 1000 at site home" || e.Operation != "colony lo node hold" ||
		e.Target != "/api/v1/nodes/home/n1" || !strings.Contains(e.Detail, "a batch runs") {
		t.Errorf("the audit says %+v", e)
	}
	// One that has failed, and whose next attempt waits, says both.
	failed := status("d", "n1", lifecycle.Failed, lifecycle.EN)
	failed.Code, failed.Message = protocol.ProbeFailed, "connection refused"
	j.add(protocol.StatusEvent, "n1", failed)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, len(j.events), len(j.events), 0))
	deployments, _, err := s.Deployments(ctx, fleet.DeploymentFilter{}, fleet.Page{})
	if err != nil || len(deployments) != 1 || !strings.Contains(deployments[0].Reason, "connection refused; n1: the update waits") {
		t.Errorf("deployments %+v, %v", deployments, err)
	}
	// What came before stays as it is, until the site says that it is over.
	j.add(protocol.NodeOfflineEvent, "n1", protocol.Presence{V: 1})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, len(j.events), len(j.events), 0))
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); len(n.Restrictions) != 1 {
		t.Error("a node that is offline is not held any more")
	}
	j.add(protocol.NodeRestrictions, "n1", restriction.Report{V: 1, Change: &restriction.Change{Did: restriction.Expired}})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, len(j.events), len(j.events), 0))
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); len(n.Restrictions)+len(n.Waits) != 0 {
		t.Errorf("after its end %+v restricts the node", n.Report)
	}
}
