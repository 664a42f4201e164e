package control

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// metrics are the counters and gauges of a Site.
type metrics struct {
	reports, damaged, refused *prometheus.CounterVec

	nodes, deployments                  *prometheus.Desc
	load, memory, disk, celsius, uptime *prometheus.Desc
}

func newMetrics() *metrics {
	gauge := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{label}, nil)
	}
	return &metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_reports_total", Help: "Status reports of nodes: accepted, duplicate, stale or anomaly.",
		}, []string{"outcome"}),
		damaged: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_state_damaged_total", Help: "Files of state that were found damaged and set aside, by what they held; node: at a node, by its agent.",
		}, []string{"role"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_desired_refused_total", Help: "Desired states that were refused, by the reason why a signature does not count, or the kind of the error.",
		}, []string{"reason"}),
		nodes:       gauge("colony_lo_nodes", "Nodes of the site.", "online"),
		deployments: gauge("colony_lo_deployments", "Deployments on nodes, by state.", "state"),
		load:        gauge("colony_lo_node_load1", "1-minute load of a node.", "node"),
		memory:      gauge("colony_lo_node_memory_available_bytes", "Memory of a node that is available.", "node"),
		disk:        gauge("colony_lo_node_disk_free_bytes", "Disk of a node that is free, where its images are.", "node"),
		celsius:     gauge("colony_lo_node_temperature_celsius", "Hottest sensor of a node.", "node"),
		uptime:      gauge("colony_lo_node_uptime_seconds", "Uptime of a node.", "node"),
	}
}

// Describe implements prometheus.Collector. It names no metric: which nodes there are
// differs from time to time.
func (s *Site) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Site) Collect(out chan<- prometheus.Metric) {
	m := s.metrics
	m.reports.Collect(out)
	m.damaged.Collect(out)
	m.refused.Collect(out)
	send := func(d *prometheus.Desc, v float64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
	}
	online, offline := 0, 0
	states := map[lifecycle.State]int{}
	for _, n := range s.sorted() {
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
		send(m.load, float64(beat.Load1)/100, id)
		send(m.memory, float64(beat.MemAvailable), id)
		send(m.disk, float64(beat.DiskFree), id)
		if beat.MilliCelsius != 0 {
			send(m.celsius, float64(beat.MilliCelsius)/1000, id)
		}
		send(m.uptime, float64(beat.UptimeSec), id)
	}
	send(m.nodes, float64(online), "true")
	send(m.nodes, float64(offline), "false")
	for _, state := range lifecycle.States {
		send(m.deployments, float64(states[state]), string(state))
	}
}
