package uplink

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of one uplink; they work without a registry too.
type metrics struct {
	connected, inFlight prometheus.Gauge
	batches, events     prometheus.Counter
	rawBytes, wireBytes prometheus.Counter
	acked, gaps, lost   prometheus.Counter
	expired             prometheus.Counter
	restarts            *prometheus.CounterVec
	ackSeconds          prometheus.Histogram

	reg prometheus.Registerer // nil: none
	all []prometheus.Collector
}

// eventsStream is the label of the stream of the events.
const eventsStream = "events"

func newMetrics(reg prometheus.Registerer, stream string, backlog func() float64) *metrics {
	if stream == "" {
		stream = eventsStream
	}
	labels := prometheus.Labels{"stream": stream}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		reg:       reg,
		connected: gauge("colony_lo_uplink_connected", "1 while the link to the CO's broker is up."),
		inFlight:  gauge("colony_lo_uplink_in_flight_bytes", "Bytes of batches without an Ack."),
		batches:   counter("colony_lo_uplink_batches_sent_total", "Batches sent, repeated ones and probes included."),
		events:    counter("colony_lo_uplink_events_sent_total", "Events sent, repeated ones included."),
		rawBytes:  counter("colony_lo_uplink_event_bytes_total", "Bytes of events sent, before compression."),
		wireBytes: counter("colony_lo_uplink_sent_bytes_total", "Bytes of payload sent."),
		acked:     counter("colony_lo_uplink_events_acked_total", "Events that the CO has in its database."),
		gaps:      counter("colony_lo_uplink_gaps_total", "Times that the CO had missed something, and was brought up to date."),
		lost:      counter("colony_lo_uplink_events_lost_total", "Events that the CO will never see, as far as they can be counted."),
		expired:   counter("colony_lo_uplink_events_expired_total", "Events that the CO has as expired: their time was up before they could be sent."),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_uplink_restarts_total",
			Help: "Times that sending began again at the CO's position, by reason.", ConstLabels: labels,
		}, []string{"reason"}),
		ackSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_lo_uplink_ack_seconds", Help: "Time from sending a batch to its Ack.", ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}),
	}
	m.all = []prometheus.Collector{
		m.connected, m.inFlight, m.batches, m.events, m.rawBytes, m.wireBytes, m.acked, m.gaps, m.lost, m.expired, m.restarts, m.ackSeconds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "colony_lo_uplink_backlog_events", Help: "Events in the journal without an Ack.", ConstLabels: labels,
		}, backlog),
	}
	return m
}

// register fails where another stream of this name is in the registry.
func (m *metrics) register() error {
	if m.reg == nil {
		return nil
	}
	for i, c := range m.all {
		if err := m.reg.Register(c); err != nil {
			m.all = m.all[:i] // the others belong to the stream that is there
			m.unregister()
			return err
		}
	}
	return nil
}

func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
	m.all = nil
}
