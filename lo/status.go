package lo

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/control"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
)

// A Status is what /status shows.
type Status struct {
	Site    protocol.SiteID `json:"site"`
	Version string          `json:"version"`
	// Problem says what is wrong with the machine and what to do, such as a full disk; "":
	// nothing is.
	Problem string `json:"problem,omitempty"`
	// Position and Commit are of the desired state in force; zero if there is none.
	Position protocol.Position `json:"position"`
	Commit   string            `json:"commit,omitempty"`
	// Checked says that its signatures were checked.
	Checked bool                 `json:"checked"`
	Uplink  uplink.Status        `json:"uplink"`
	Journal journal.Stats        `json:"journal"`
	Nodes   []control.NodeStatus `json:"nodes"`
	// Data are the streams of machine data to the CO, and Retained what the site's
	// broker retains.
	Data     []data.StreamStatus `json:"data"`
	Retained retained.Stats      `json:"retained"`
	// DataFault says why the data rules in force are not the desired ones; "": they are.
	DataFault string `json:"dataFault,omitempty"`
}

func (p *parts) status() Status {
	s := Status{
		Site: p.opts.Site, Version: p.opts.Version, Problem: p.disk.Problem(),
		Uplink: p.uplink.Status(), Journal: p.journal.Stats(), Nodes: p.site.Status(),
		Data: p.data.Status(), Retained: p.data.Retained().Stats(), DataFault: p.data.Fault(),
	}
	if m, ok := p.desired.Current(); ok {
		s.Position, s.Commit, s.Checked = m.Position, m.Commit, p.desired.Checked()
	}
	return s
}

// gauges show the state of the parts that have no collector of their own.
type gauges struct{ parts *parts }

func gauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("colony_lo_"+name, help, nil, nil)
}

// described are the metrics of gauges.
var described = struct {
	depth, bytes, oldest, refused, lost, link, epoch, generation, cached, full, checked *prometheus.Desc
}{
	depth:      gauge("journal_records", "Events that the CO does not have yet."),
	bytes:      gauge("journal_bytes", "Bytes of the journal on disk."),
	oldest:     gauge("journal_oldest_seconds", "Unix time of the oldest event that the CO does not have; 0 for none."),
	refused:    gauge("journal_refused_total", "Writes that a full journal refused."),
	lost:       gauge("journal_lost_total", "Events that the journal lost with damaged records, in this run."),
	link:       gauge("link_up", "1 while the LO is connected to the CO."),
	epoch:      gauge("desired_epoch", "Epoch of the desired state in force."),
	generation: gauge("desired_generation", "Generation of the desired state in force."),
	full:       gauge("disk_full", "1 while the disk of the state directory has no room: nothing that changes is accepted."),
	checked:    gauge("desired_checked", "1 where the signatures of the desired state in force were checked."),
	cached:     gauge("cache_bytes", "Bytes of images that the site holds."),
}

// Describe implements prometheus.Collector. It names no metric: what Collect sends
// differs from time to time.
func (g gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g gauges) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	j := g.parts.journal.Stats()
	send(described.depth, float64(j.Depth))
	send(described.bytes, float64(j.Bytes))
	send(described.oldest, float64(j.OldestUnixMillis)/1000)
	send(described.refused, float64(j.Refused))
	send(described.lost, float64(j.Lost))
	up := 0.0
	if g.parts.link.Up() {
		up = 1
	}
	send(described.link, up)
	full := 0.0
	if g.parts.disk.Problem() != "" {
		full = 1
	}
	send(described.full, full)
	if m, ok := g.parts.desired.Current(); ok {
		send(described.epoch, float64(m.Position.Epoch))
		send(described.generation, float64(m.Position.Generation))
		checked := 0.0
		if g.parts.desired.Checked() {
			checked = 1
		}
		send(described.checked, checked)
	}
	if g.parts.cache != nil {
		send(described.cached, float64(g.parts.cache.Size()))
	}
	g.parts.data.Collect(out)
}
