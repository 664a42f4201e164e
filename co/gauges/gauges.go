// Package gauges has the metrics of the CO that say how the fleet is: its sites, nodes and deployments, in all and by site. They are read from the
// record when they are asked for, so that each replica says the same.
package gauges

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const (
	// fresh is how long what was read is given out again: several may scrape.
	fresh = 10 * time.Second
	// timeout bounds the reading.
	timeout = 8 * time.Second
)

// A Collector collects the metrics. It may be used concurrently.
type Collector struct {
	read func(ctx context.Context) ([]fleet.SiteGauges, error)
	log  *slog.Logger

	mu   sync.Mutex // protects what follows, and has one read at a time
	at   time.Time
	list []fleet.SiteGauges

	up, sites, nodes, deployments                           *prometheus.Desc
	siteUp, siteNodes, siteDeployments, notAdopted, problem *prometheus.Desc
	backlog, backlogSeconds, eventsLost, siteCommands       *prometheus.Desc
}

// New returns a Collector of what read returns.
func New(read func(ctx context.Context) ([]fleet.SiteGauges, error), log *slog.Logger) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &Collector{
		read: read, log: log,
		up:              desc("colony_co_fleet_readable", "1 where the record could be read for the metrics of the fleet; else those are absent."),
		sites:           desc("colony_co_sites", "Sites, by whether they are online.", "online"),
		nodes:           desc("colony_co_nodes", "Nodes: online, offline, or unknown where their site is offline.", "state"),
		deployments:     desc("colony_co_deployments", "Deployments, by state.", "state"),
		siteUp:          desc("colony_co_site_online", "1 while a site is online.", "site"),
		siteNodes:       desc("colony_co_site_nodes", "Nodes of a site: online, offline, or unknown where the site is offline.", "site", "state"),
		siteDeployments: desc("colony_co_site_deployments", "Deployments of a site, by state.", "site", "state"),
		notAdopted:      desc("colony_co_site_not_adopted", "1 where a site has not adopted the desired state that was published last.", "site"),
		problem:         desc("colony_co_site_problem", "1 where the machine of a site's LO has a problem, such as a full disk.", "site"),
		backlog:         desc("colony_co_site_backlog_events", "Events that a site said it holds and the CO does not have.", "site"),
		backlogSeconds:  desc("colony_co_site_backlog_seconds", "Age of the oldest of those events, as far as is known; 0: there is none.", "site"),
		eventsLost:      desc("colony_co_site_events_lost", "Events that a site reported as lost, ever.", "site"),
		siteCommands:    desc("colony_co_site_commands_open", "Commands that have not ended at a site.", "site"),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.up, c.sites, c.nodes, c.deployments, c.siteUp, c.siteNodes, c.siteDeployments, c.notAdopted, c.problem, c.backlog, c.backlogSeconds, c.eventsLost, c.siteCommands,
	} {
		out <- d
	}
}

// gauges returns how the sites are, at most fresh old; ok is false where that cannot be read.
func (c *Collector) gauges() (list []fleet.SiteGauges, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < fresh {
		return c.list, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	list, err := c.read(ctx)
	if err != nil {
		c.log.WarnContext(ctx, "metrics of the fleet not read", "err", err)
		return nil, false
	}
	c.list, c.at = list, time.Now()
	return list, true
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	list, ok := c.gauges()
	if !ok {
		send(c.up, 0)
		return
	}
	send(c.up, 1)
	var all total
	for _, g := range list {
		all.add(g)
		site := string(g.Site)
		online, offline, unknown := nodes(g)
		send(c.siteUp, flag(g.Online), site)
		send(c.siteNodes, online, site, "online")
		send(c.siteNodes, offline, site, "offline")
		send(c.siteNodes, unknown, site, "unknown")
		for state, n := range g.Deployments {
			send(c.siteDeployments, n, site, string(state))
		}
		send(c.notAdopted, flag(g.NotAdopted), site)
		send(c.problem, flag(g.Problem), site)
		send(c.backlog, int(g.Backlog), site)
		out <- prometheus.MustNewConstMetric(c.backlogSeconds, prometheus.GaugeValue, g.BacklogSeconds, site)
		send(c.eventsLost, int(g.EventsLost), site)
		send(c.siteCommands, g.CommandsOpen, site)
	}
	send(c.sites, all.sitesOnline, "true")
	send(c.sites, len(list)-all.sitesOnline, "false")
	send(c.nodes, all.online, "online")
	send(c.nodes, all.offline, "offline")
	send(c.nodes, all.unknown, "unknown")
	for _, state := range lifecycle.States {
		if state != lifecycle.Deleted {
			send(c.deployments, all.deployments[state], string(state))
		}
	}
}

// total is the sum over all sites.
type total struct {
	sitesOnline, online, offline, unknown int
	deployments                           map[lifecycle.State]int
}

func (t *total) add(g fleet.SiteGauges) {
	online, offline, unknown := nodes(g)
	t.sitesOnline += flag(g.Online)
	t.online, t.offline, t.unknown = t.online+online, t.offline+offline, t.unknown+unknown
	if t.deployments == nil {
		t.deployments = map[lifecycle.State]int{}
	}
	for state, n := range g.Deployments {
		t.deployments[state] += n
	}
}

// nodes returns how many nodes of a site are online, offline, and neither as far as is known.
func nodes(g fleet.SiteGauges) (online, offline, unknown int) {
	if !g.Online {
		return 0, 0, g.Nodes
	}
	return g.NodesOnline, g.Nodes - g.NodesOnline, 0
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
