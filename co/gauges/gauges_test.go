package gauges_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/gauges"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestCollect(t *testing.T) {
	t.Parallel()
	reads := 0
	c := gauges.New(func(context.Context) ([]fleet.SiteGauges, error) {
		reads++
		return []fleet.SiteGauges{
			{Site: "a", Online: true, Nodes: 3, NodesOnline: 2, Deployments: map[lifecycle.State]int{lifecycle.Installed: 4, lifecycle.Failed: 1}, NotAdopted: true, Problem: true, EventsLost: 5, CommandsOpen: 3},
			{Site: "b", Nodes: 2, Deployments: map[lifecycle.State]int{lifecycle.Installed: 1}, Backlog: 7, BacklogSeconds: 1.5},
		}, nil
	}, slog.New(slog.DiscardHandler))
	const want = `
# HELP colony_co_deployments Deployments, by state.
# TYPE colony_co_deployments gauge
colony_co_deployments{state="DELETING"} 0
colony_co_deployments{state="FAILED"} 1
colony_co_deployments{state="INSTALLED"} 5
colony_co_deployments{state="INSTALLING"} 0
colony_co_deployments{state="PENDING"} 0
colony_co_deployments{state="ROLLINGBACK"} 0
colony_co_deployments{state="UPDATING"} 0
# HELP colony_co_fleet_readable 1 where the record could be read for the metrics of the fleet; else those are absent.
# TYPE colony_co_fleet_readable gauge
colony_co_fleet_readable 1
# HELP colony_co_nodes Nodes: online, offline, or unknown where their site is offline.
# TYPE colony_co_nodes gauge
colony_co_nodes{state="offline"} 1
colony_co_nodes{state="online"} 2
colony_co_nodes{state="unknown"} 2
# HELP colony_co_site_backlog_events Events that a site said it holds and the CO does not have.
# TYPE colony_co_site_backlog_events gauge
colony_co_site_backlog_events{site="a"} 0
colony_co_site_backlog_events{site="b"} 7
# HELP colony_co_site_backlog_seconds Age of the oldest of those events, as far as is known; 0: there is none.
# TYPE colony_co_site_backlog_seconds gauge
colony_co_site_backlog_seconds{site="a"} 0
colony_co_site_backlog_seconds{site="b"} 1.5
# HELP colony_co_site_commands_open Commands that have not ended at a site.
# TYPE colony_co_site_commands_open gauge
colony_co_site_commands_open{site="a"} 3
colony_co_site_commands_open{site="b"} 0
# HELP colony_co_site_deployments Deployments of a site, by state.
# TYPE colony_co_site_deployments gauge
colony_co_site_deployments{site="a",state="FAILED"} 1
colony_co_site_deployments{site="a",state="INSTALLED"} 4
colony_co_site_deployments{site="b",state="INSTALLED"} 1
# HELP colony_co_site_events_lost Events that a site reported as lost, ever.
# TYPE colony_co_site_events_lost gauge
colony_co_site_events_lost{site="a"} 5
colony_co_site_events_lost{site="b"} 0
# HELP colony_co_site_nodes Nodes of a site: online, offline, or unknown where the site is offline.
# TYPE colony_co_site_nodes gauge
colony_co_site_nodes{site="a",state="offline"} 1
colony_co_site_nodes{site="a",state="online"} 2
colony_co_site_nodes{site="a",state="unknown"} 0
colony_co_site_nodes{site="b",state="offline"} 0
colony_co_site_nodes{site="b",state="online"} 0
colony_co_site_nodes{site="b",state="unknown"} 2
# HELP colony_co_site_not_adopted 1 where a site has not adopted the desired state that was published last.
# TYPE colony_co_site_not_adopted gauge
colony_co_site_not_adopted{site="a"} 1
colony_co_site_not_adopted{site="b"} 0
# HELP colony_co_site_online 1 while a site is online.
# TYPE colony_co_site_online gauge
colony_co_site_online{site="a"} 1
colony_co_site_online{site="b"} 0
# HELP colony_co_site_problem 1 where the machine of a site's LO has a problem, such as a full disk.
# TYPE colony_co_site_problem gauge
colony_co_site_problem{site="a"} 1
colony_co_site_problem{site="b"} 0
# HELP colony_co_sites Sites, by whether they are online.
# TYPE colony_co_sites gauge
colony_co_sites{online="false"} 1
colony_co_sites{online="true"} 1
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if err := prometheus.NewRegistry().Register(c); err != nil {
		t.Error(err)
	}
	if testutil.CollectAndCount(c); reads != 1 {
		t.Errorf("read %d times for scrapes that follow each other at once, want 1", reads)
	}
}

// TestNotReadable has no numbers where there are none that are true.
func TestNotReadable(t *testing.T) {
	t.Parallel()
	c := gauges.New(func(context.Context) ([]fleet.SiteGauges, error) { return nil, errors.New("away") }, slog.New(slog.DiscardHandler))
	if err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP colony_co_fleet_readable 1 where the record could be read for the metrics of the fleet; else those are absent.
# TYPE colony_co_fleet_readable gauge
colony_co_fleet_readable 0
`)); err != nil {
		t.Error(err)
	}
}
