package lo

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// counts are what the LO counts itself; its parts count for themselves.
type counts struct {
	reports, damaged *prometheus.CounterVec
}

func newCounts() *counts {
	return &counts{reports: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "colony_lo_reports_total", Help: "Status reports of nodes, by what became of them.",
	}, []string{"outcome"}), damaged: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "colony_lo_state_damaged_total", Help: "Files of state that were found damaged and set aside, by what they held.",
	}, []string{"role"})}
}

// gauges show the LO's state at the moment they are read.
type gauges struct{ lo *LO }

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("colony_lo_"+name, help, labels, nil)
}

// described are the metrics of gauges.
var described = struct {
	nodes, deployments, depth, bytes, oldest, refused, lost, link, generation, cached *prometheus.Desc
	load, memory, disk, celsius, uptime                                               *prometheus.Desc
}{
	nodes:       gauge("nodes", "Nodes of the site.", "online"),
	deployments: gauge("deployments", "Deployments on nodes, by state.", "state"),
	depth:       gauge("journal_records", "Events that the CO does not have yet."),
	bytes:       gauge("journal_bytes", "Bytes of the journal on disk."),
	oldest:      gauge("journal_oldest_seconds", "Unix time of the oldest event that the CO does not have; 0 for none."),
	refused:     gauge("journal_refused_total", "Writes that a full journal refused."),
	lost:        gauge("journal_lost_total", "Events that the journal lost with damaged records, in this run."),
	link:        gauge("link_up", "1 while the LO is connected to the CO."),
	generation:  gauge("desired_generation", "Generation of the desired state in force."),
	cached:      gauge("cache_bytes", "Bytes of images that the site holds."),
	load:        gauge("node_load1", "1-minute load of a node.", "node"),
	memory:      gauge("node_memory_available_bytes", "Memory of a node that is available.", "node"),
	disk:        gauge("node_disk_free_bytes", "Disk of a node that is free, where its images are.", "node"),
	celsius:     gauge("node_temperature_celsius", "Hottest sensor of a node.", "node"),
	uptime:      gauge("node_uptime_seconds", "Uptime of a node.", "node"),
}

// Describe sends nothing: what Collect sends differs from time to time.
func (g *gauges) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present values.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	online, offline := 0, 0
	states := map[lifecycle.State]int{}
	for _, n := range g.lo.site.sorted() {
		rec, beat := n.shown.Load(), n.beat.Load()
		if rec.Online() {
			online++
		} else {
			offline++
		}
		for _, d := range rec.Deployments {
			states[d.Status.State]++
		}
		if beat.at.IsZero() || !rec.Online() {
			continue
		}
		id := string(n.id)
		send(described.load, float64(beat.Load1)/100, id)
		send(described.memory, float64(beat.MemAvailable), id)
		send(described.disk, float64(beat.DiskFree), id)
		if beat.MilliCelsius != 0 {
			send(described.celsius, float64(beat.MilliCelsius)/1000, id)
		}
		send(described.uptime, float64(beat.UptimeSec), id)
	}
	send(described.nodes, float64(online), "true")
	send(described.nodes, float64(offline), "false")
	for _, s := range lifecycle.States {
		send(described.deployments, float64(states[s]), string(s))
	}
	g.collectLink(send)
	g.lo.data.Collect(out)
}

func (g *gauges) collectLink(send func(d *prometheus.Desc, v float64, labels ...string)) {
	j := g.lo.journal.Stats()
	send(described.depth, float64(j.Depth))
	send(described.bytes, float64(j.Bytes))
	send(described.oldest, float64(j.OldestUnixMillis)/1000)
	send(described.refused, float64(j.Refused))
	send(described.lost, float64(j.Lost))
	up := 0.0
	if g.lo.link.client.Up() {
		up = 1
	}
	send(described.link, up)
	if m, ok := g.lo.desired.Current(); ok {
		send(described.generation, float64(m.Generation))
	}
	if g.lo.cache != nil {
		send(described.cached, float64(g.lo.cache.Size()))
	}
}
