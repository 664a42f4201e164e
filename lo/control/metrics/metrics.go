// Package metrics counts and measures what control does, for Prometheus.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// Metrics are the counters and gauges of a site. They may be used concurrently.
type Metrics struct {
	// Reports are status reports of nodes by outcome, Damaged files of state by role, and Refused desired states by reason.
	Reports, Damaged, Refused *prometheus.CounterVec
	// ReconcileSeconds are the times that decisions about the whole site took.
	ReconcileSeconds prometheus.Histogram

	responses

	nodes, deployments, waiting               *prometheus.Desc
	load, memory, disk, celsius, uptime, last *prometheus.Desc
}

// A Node is what is shown of one node.
type Node struct {
	Record *nodes.Record
	// Heartbeat is the last one; nil: none arrived in this run.
	Heartbeat *protocol.Heartbeat
}

// New returns metrics that are not registered.
func New() *Metrics {
	gauge := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{label}, nil)
	}
	return &Metrics{
		Reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_reports_total", Help: "Status reports of nodes: accepted, duplicate, stale or anomaly.",
		}, []string{"outcome"}),
		Damaged: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_state_damaged_total", Help: "Files of state that were found damaged and set aside, by what they held; node: at a node, by its agent.",
		}, []string{"role"}),
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_desired_refused_total", Help: "Desired states that were refused, by the reason why a signature does not count, or the kind of the error.",
		}, []string{"reason"}),
		ReconcileSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_lo_reconcile_seconds", Help: "Time to compare what is desired with what is recorded of the nodes that changed, and to publish what follows.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2, 10},
		}),
		responses:   newResponses(),
		last:        gauge("colony_lo_node_last_response_seconds", "The last of those times of a node.", "node"),
		nodes:       gauge("colony_lo_nodes", "Nodes of the site.", "online"),
		deployments: gauge("colony_lo_deployments", "Deployments on nodes, by state.", "state"),
		waiting:     prometheus.NewDesc("colony_lo_deployments_waiting", "Deployments on nodes of which something waits: for a maintenance window, or as the node is held or drained.", nil, nil),
		load:        gauge("colony_lo_node_load1", "1-minute load of a node.", "node"),
		memory:      gauge("colony_lo_node_memory_available_bytes", "Memory of a node that is available.", "node"),
		disk:        gauge("colony_lo_node_disk_free_bytes", "Disk of a node that is free, where its images are.", "node"),
		celsius:     gauge("colony_lo_node_temperature_celsius", "Hottest sensor of a node.", "node"),
		uptime:      gauge("colony_lo_node_uptime_seconds", "Uptime of a node.", "node"),
	}
}

func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.Reports, m.Damaged, m.Refused, m.ReconcileSeconds, m.seconds}
}

// Describe describes all that Collect sends.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(out)
	}
	for _, d := range []*prometheus.Desc{m.nodes, m.deployments, m.waiting, m.load, m.memory, m.disk, m.celsius, m.uptime, m.last} {
		out <- d
	}
}

// Collect sends what was counted, and how the nodes of the site are.
func (m *Metrics) Collect(out chan<- prometheus.Metric, all []Node) {
	for _, c := range m.counted() {
		c.Collect(out)
	}
	send := func(d *prometheus.Desc, v float64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
	}
	online, offline, waiting := 0, 0, 0
	states := map[lifecycle.State]int{}
	for _, n := range all {
		if n.Record.Online() {
			online++
		} else {
			offline++
		}
		waiting += len(n.Record.Waits)
		for _, d := range n.Record.Deployments {
			states[d.Status.State]++
		}
		if seconds, ok := m.lastOf(n.Record.Node); ok {
			send(m.last, seconds, string(n.Record.Node))
		}
		if n.Heartbeat == nil || !n.Record.Online() {
			continue
		}
		id, beat := string(n.Record.Node), n.Heartbeat
		send(m.load, float64(beat.Load1)/100, id)
		send(m.memory, float64(beat.MemAvailable), id)
		send(m.disk, float64(beat.DiskFree), id)
		if beat.MilliCelsius != 0 {
			send(m.celsius, float64(beat.MilliCelsius)/1000, id)
		}
		send(m.uptime, float64(beat.UptimeSec), id)
	}
	out <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting))
	send(m.nodes, float64(online), "true")
	send(m.nodes, float64(offline), "false")
	for _, state := range lifecycle.States {
		send(m.deployments, float64(states[state]), string(state))
	}
}
