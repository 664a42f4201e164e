package fleetdb_test

import (
	"testing"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestRemovedRowsReturn removes rows of what a site reported: the check of the counters finds that,
// and so does a report about what is missing; the answers to the site then ask for a snapshot until
// one comes, which brings the rows back.
func TestRemovedRowsReturn(t *testing.T) {
	t.Parallel()
	for damage, noticed := range map[string]string{
		`delete from deployment_nodes where deployment = 'd'`:                                    "check",
		`delete from nodes where id = 'n1'`:                                                      "check",
		`truncate deployments cascade`:                                                           "check after the repo",
		`delete from nodes; delete from deployment_nodes`:                                        "check",
		`delete from nodes where id = 'n2'; delete from deployment_nodes where deployment = 'd'`: "report",
	} {
		t.Run(damage+" by "+noticed, func(t *testing.T) {
			t.Parallel()
			pool, ctx := openDB(t), t.Context()
			s := fleetdb.New(pool)
			save := func() {
				must2(t)(s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1"), want("e", "1", "c1")}, fleet.SiteData{}))
			}
			save()
			j := &journal{epoch: "e"}
			for _, n := range []protocol.NodeID{"n1", "n2"} {
				j.add(protocol.NodeOnlineEvent, n, protocol.Presence{V: 1, Online: true})
				j.life("d", string(n))
				j.life("e", string(n))
			}
			sent := len(j.events)
			if ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, sent, 0)); ack.Resync {
				t.Error("a snapshot is asked for although nothing is missing")
			}
			if _, err := pool.Exec(ctx, damage); err != nil {
				t.Fatal(err)
			}
			switch noticed {
			case "check":
				testpart.Must[int](t)(s.CheckCounters(ctx, 0))
			case "check after the repo": // which brings the deployments back
				save()
				testpart.Must[int](t)(s.CheckCounters(ctx, 0))
			case "report":
				j.status("d", "n1", lifecycle.Updating, lifecycle.LO)
				sent++
				if ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, sent, sent, 0)); !ack.Resync {
					t.Error("no snapshot is asked for with the answer to a report about what is missing")
				}
			}
			probe := protocol.Batch{V: 1, Epoch: "e"}
			if ack := testpart.Must[protocol.Ack](t)(s.CommitBatch(ctx, "home", probe, nil)); !ack.Resync {
				t.Error("no snapshot is asked for with the answer to a probe")
			}
			snapshot := protocol.Snapshot{V: 1}
			for _, n := range []protocol.NodeID{"n1", "n2"} {
				snapshot.Nodes = append(snapshot.Nodes, protocol.NodeSnapshot{Node: n, Presence: protocol.Presence{Online: true}, Complete: true})
				for _, d := range []string{"d", "e"} {
					snapshot.Statuses = append(snapshot.Statuses, status(d, string(n), lifecycle.Installed, lifecycle.EN))
				}
			}
			j.add(protocol.SnapshotEvent, "", snapshot)
			if ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, sent+1, sent+1, 0)); ack.Resync {
				t.Error("another snapshot is asked for with the answer to the first")
			}
			if ack := testpart.Must[protocol.Ack](t)(s.CommitBatch(ctx, "home", probe, nil)); ack.Resync {
				t.Error("another snapshot is asked for with the answer to a probe")
			}
			for _, name := range []protocol.DeploymentName{"d", "e"} {
				d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", name))
				if len(d.Nodes) != 2 {
					t.Errorf("%s is on %d nodes, want 2", name, len(d.Nodes))
				}
			}
			if n, err := s.CheckCounters(ctx, 0); err != nil || n != 0 {
				t.Errorf("%d counters differ after the snapshot, %v", n, err)
			}
			if site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); site.Nodes != 2 {
				t.Errorf("%d nodes, want 2", site.Nodes)
			}
		})
	}
}
