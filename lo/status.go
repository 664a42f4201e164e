package lo

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// A Status is what /status shows.
type Status struct {
	Site    protocol.SiteID `json:"site"`
	Version string          `json:"version"` // of the program
	// Problem says what is wrong with the machine and what to do, such as a full disk; "":
	// nothing is.
	Problem string `json:"problem,omitempty"`
	// ClockUnsynced says that the machine's clock is not synchronised: the times that the site
	// gives may be wrong, its durations are not.
	ClockUnsynced bool `json:"clockUnsynced,omitempty"`
	// COAheadSeconds says by how much the clock of the CO, as its certificate shows it, is ahead of the site's where
	// one of the two must be wrong; 0: neither need be.
	COAheadSeconds int64 `json:"coAheadSeconds,omitempty"`
	// Position and Commit are of the desired state in force; zero if there is none.
	Position protocol.Position `json:"position"`
	Commit   string            `json:"commit,omitempty"`
	// Checked says that its signatures were checked.
	Checked bool `json:"checked"`
	// Closed says why updates and removals wait for a maintenance window; "": they do not.
	Closed  string                  `json:"closed,omitempty"`
	Uplink  uplink.Status           `json:"uplink"`  // of the stream of events
	Journal journal.Stats           `json:"journal"` // of the stream of events
	Nodes   []nodestatus.NodeStatus `json:"nodes"`   // by name
	// NotEnrolled are the nodes that never enrolled, where the LO lets no other ones in.
	NotEnrolled []protocol.NodeID `json:"notEnrolled,omitempty"`
	// Pending are the nodes without a join token that wait until their keys are approved.
	Pending []protocol.NodeID `json:"pending,omitempty"`
	// Data are the streams of machine data to the CO, and Retained what the site's
	// broker retains.
	Data     []data.StreamStatus `json:"data"`
	Retained retained.Stats      `json:"retained"`
	// DataFault says why the data rules in force are not the desired ones; "": they are.
	DataFault string `json:"dataFault,omitempty"`
}

func (p *parts) status() Status {
	s := Status{
		Site: p.opts.Site, Version: p.opts.Version, Problem: p.problem(), ClockUnsynced: p.opts.Unsynced(),
		Uplink: p.uplink.Status(), Journal: p.journal.Stats(), Nodes: p.site.Status(),
		Closed: p.site.Closed(), Data: p.data.Status(), Retained: p.data.Retained().Stats(), DataFault: p.data.Fault(),
	}
	if p.holder != nil {
		s.COAheadSeconds = int64(p.holder.Clock().Ahead().Seconds())
	}
	if p.machines != nil {
		s.Pending = p.machines.PendingNodes()
		s.NotEnrolled = p.machines.NotEnrolled(nodestatus.Offline(s.Nodes))
	}
	if m, ok := p.desired.Current(); ok {
		s.Position, s.Commit, s.Checked = m.Position, m.Commit, p.desired.Checked()
	}
	return s
}

// partMetrics show the state of the parts that have no collector of their own, and what they
// count.
type partMetrics struct{ parts *parts }

// desc describes a metric without labels; its name is that which is scraped.
func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, nil, nil)
}

// described are the metrics of partMetrics.
var described = struct {
	info, depth, bytes, oldest, refused, lost, link, epoch, generation, cached, full, checked, unsynced, closed, list, listRefused *prometheus.Desc
	cacheLimit, cacheRequests, cacheFetched, cacheEvicted                                                                          *prometheus.Desc
}{
	info:        prometheus.NewDesc("colony_lo_info", "1. Its labels say which site the LO is of, and its release.", []string{"site", "version"}, nil),
	depth:       desc("colony_lo_journal_records", "Events that the CO does not have yet."),
	bytes:       desc("colony_lo_journal_bytes", "Bytes of the journal on disk."),
	oldest:      desc("colony_lo_journal_oldest_seconds", "Unix time of the oldest event that the CO does not have; 0 for none."),
	refused:     desc("colony_lo_journal_refused_total", "Writes that a full journal refused."),
	lost:        desc("colony_lo_journal_lost_total", "Events that the journal lost with damaged records, in this run."),
	link:        desc("colony_lo_link_up", "1 while the LO is connected to the CO."),
	epoch:       desc("colony_lo_desired_epoch", "Epoch of the desired state in force."),
	generation:  desc("colony_lo_desired_generation", "Generation of the desired state in force."),
	full:        desc("colony_lo_disk_full", "1 while the disk of the state directory has no room: nothing that changes is accepted."),
	checked:     desc("colony_lo_desired_checked", "1 where the signatures of the desired state in force were checked."),
	unsynced:    desc("colony_lo_clock_unsynced", "1 while the machine's clock is not synchronised: times of the site may be wrong."),
	closed:      desc("colony_lo_maintenance_closed", "1 while updates and removals wait for a maintenance window; 0 also without any."),
	list:        desc("colony_lo_revocations_number", "Number of the list of revoked keys in force; 0: there is none."),
	listRefused: prometheus.NewDesc("colony_lo_revocations_refused_total", "Lists of revoked keys that were refused, by the reason.", []string{"reason"}, nil),
	cached:      desc("colony_lo_cache_bytes", "Bytes of images that the site holds."),

	cacheLimit:    desc("colony_lo_cache_limit_bytes", "The most bytes of images that the site may hold."),
	cacheRequests: prometheus.NewDesc("colony_lo_cache_requests_total", "Requests of nodes to the image cache: hit, it was held; miss, a registry was asked for it; failed, it could not be answered.", []string{"result"}, nil),
	cacheFetched:  desc("colony_lo_cache_fetched_bytes_total", "Bytes of images that came from registries."),
	cacheEvicted:  desc("colony_lo_cache_evicted_bytes_total", "Bytes of images that were removed to make room."),
}

// flag is 1 for what is true.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (g partMetrics) Describe(out chan<- *prometheus.Desc) {
	d := described
	for _, one := range []*prometheus.Desc{
		d.info, d.depth, d.bytes, d.oldest, d.refused, d.lost, d.link, d.epoch, d.generation, d.cached, d.full, d.checked, d.unsynced, d.closed, d.list, d.listRefused,
		d.cacheLimit, d.cacheRequests, d.cacheFetched, d.cacheEvicted,
	} {
		out <- one
	}
	g.parts.data.Describe(out)
}

// Collect implements prometheus.Collector.
func (g partMetrics) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count := func(d *prometheus.Desc, n uint64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	out <- prometheus.MustNewConstMetric(described.info, prometheus.GaugeValue, 1, string(g.parts.opts.Site), g.parts.opts.Version)
	j := g.parts.journal.Stats()
	send(described.depth, float64(j.Depth))
	send(described.bytes, float64(j.Bytes))
	send(described.oldest, float64(j.OldestUnixMillis)/1000)
	count(described.refused, j.Refused)
	count(described.lost, j.Lost)
	send(described.link, flag(g.parts.link.Up()))
	send(described.full, flag(g.parts.disk.Problem() != ""))
	send(described.unsynced, flag(g.parts.opts.Unsynced()))
	send(described.closed, flag(g.parts.site.Closed() != ""))
	if m, ok := g.parts.desired.Current(); ok {
		send(described.epoch, float64(m.Position.Epoch))
		send(described.generation, float64(m.Position.Generation))
		send(described.checked, flag(g.parts.desired.Checked()))
	}
	if g.parts.cache != nil {
		c := g.parts.cache.Stats()
		send(described.cached, float64(c.Bytes))
		send(described.cacheLimit, float64(c.MaxBytes))
		for result, n := range map[string]uint64{"hit": c.Hits, "miss": c.Misses, "failed": c.Failed} {
			out <- prometheus.MustNewConstMetric(described.cacheRequests, prometheus.CounterValue, float64(n), result)
		}
		count(described.cacheFetched, uint64(c.Fetched))
		count(described.cacheEvicted, uint64(c.Evicted))
	}
	if list := g.parts.revocations; list != nil {
		send(described.list, float64(list.Number()))
		refused := list.Refused()
		for _, reason := range sign.Reasons() {
			out <- prometheus.MustNewConstMetric(described.listRefused, prometheus.CounterValue, float64(refused[reason]), string(reason))
		}
	}
	g.parts.data.Collect(out)
}
