package uplink

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of one uplink; they work without a registry too.
type metrics struct {
	connected, inFlight prometheus.Gauge
	batches, events     prometheus.Counter
	rawBytes, wireBytes prometheus.Counter
	acked, gaps, lost   prometheus.Counter
	restarts            *prometheus.CounterVec
	ackSeconds          prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, backlog func() float64) *metrics {
	const ns, sub = "colony", "uplink"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := &metrics{
		connected: gauge("connected", "1 while the link to the CO's broker is up."),
		inFlight:  gauge("in_flight_bytes", "Bytes of batches without an Ack."),
		batches:   counter("batches_sent_total", "Batches sent, repeated ones and probes included."),
		events:    counter("events_sent_total", "Events sent, repeated ones included."),
		rawBytes:  counter("event_bytes_total", "Bytes of events sent, before compression."),
		wireBytes: counter("sent_bytes_total", "Bytes of payload sent."),
		acked:     counter("events_acked_total", "Events that the CO has in its database."),
		gaps:      counter("gaps_total", "Times that the CO had to be given a snapshot of the site."),
		lost:      counter("events_lost_total", "Events that the CO will never see, as far as they can be counted."),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "restarts_total",
			Help: "Times that sending began again at the CO's position, by reason.",
		}, []string{"reason"}),
		ackSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "ack_seconds", Help: "Time from sending a batch to its Ack.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}),
	}
	if reg != nil {
		reg.MustRegister(m.connected, m.inFlight, m.batches, m.events, m.rawBytes, m.wireBytes, m.acked, m.gaps, m.lost, m.restarts, m.ackSeconds,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "backlog_events", Help: "Events in the journal without an Ack."}, backlog))
	}
	return m
}
