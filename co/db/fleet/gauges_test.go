package fleetdb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestGauges has the numbers by site be those that the record counts.
func TestGauges(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	must2(t)(s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("d", "1", "c1"), want("e", "1", "c1")}, fleet.SiteData{}))
	must2(t)(s.SaveDesired(ctx, "mill", "c1", []fleet.Desired{want("d", "1", "c1")}, fleet.SiteData{}))
	j := &journal{epoch: "e"}
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.add(protocol.NodeOnlineEvent, "n2", protocol.Presence{V: 1, Online: true})
	j.add(protocol.NodeOfflineEvent, "n2", protocol.Presence{V: 1})
	j.life("d", "n1") // of another version than is wanted: what matters is that both say the same
	if _, err := j.send(ctx, s, 1, len(j.events), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Problem: "the disk is full"}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `insert into streams (site, stream, reported_at, reported_epoch, last, oldest_ms) values ('home', '', now(), 'e', 100, 5000)
		on conflict (site, stream) do update set reported_at = excluded.reported_at, reported_epoch = excluded.reported_epoch, last = excluded.last, oldest_ms = excluded.oldest_ms`); err != nil {
		t.Fatal(err)
	}
	got, err := s.Gauges(ctx)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if age := got[0].BacklogSeconds; age < 5 {
		t.Errorf("the oldest event that is not here is %v s old, want 5 and what has passed since", age)
	}
	got[0].BacklogSeconds = 0
	waits := func(site protocol.SiteID) bool {
		v, err := s.Site(ctx, site)
		if err != nil {
			t.Fatal(err)
		}
		return v.Adopted < v.Generation
	}
	states := func(site protocol.SiteID) map[lifecycle.State]int {
		list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{Site: site}, fleet.Page{})
		if err != nil || len(list) == 0 {
			t.Fatalf("%d deployments of %s: %v", len(list), site, err)
		}
		counts := map[lifecycle.State]int{}
		for _, d := range list {
			counts[d.State]++
		}
		return counts
	}
	want := []fleet.SiteGauges{
		{Site: "home", Online: true, Nodes: 2, NodesOnline: 1, Deployments: states("home"), NotAdopted: waits("home"), Problem: true, Backlog: int64(100 - len(j.events))},
		{Site: "mill", Deployments: states("mill"), NotAdopted: waits("mill")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("gauges (-want +got):\n%s", diff)
	}
}
