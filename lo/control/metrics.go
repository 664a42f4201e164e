package control

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/control/metrics"
)

// Describe implements prometheus.Collector.
func (s *Site) Describe(out chan<- *prometheus.Desc) { s.metrics.Describe(out) }

// Collect implements prometheus.Collector.
func (s *Site) Collect(out chan<- prometheus.Metric) {
	var all []metrics.Node
	for _, n := range s.sorted() {
		shown := metrics.Node{Record: n.shown.Load()}
		if beat := n.beat.Load(); !beat.at.IsZero() {
			shown.Heartbeat = &beat.Heartbeat
		}
		all = append(all, shown)
	}
	s.metrics.Collect(out, all)
}
