package broker

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a dashboard of any MQTT broker shows, and every refusal and
// drop by its reason. All carry the label broker.
type metrics struct {
	refusals     *prometheus.CounterVec // op, reason
	drops        *prometheus.CounterVec // reason
	takeSeconds  prometheus.Histogram
	acceptErrors prometheus.Counter
	connects     prometheus.Counter
	wills        prometheus.Counter
	all          []prometheus.Collector
}

func newMetrics(b *Broker) *metrics {
	own := prometheus.Labels{"broker": b.o.Name}
	name := func(n string) string { return "colony_broker_" + n }
	counter := func(n, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name(n), Help: help, ConstLabels: own})
	}
	m := &metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("refused_total"), Help: "Connects, publishes and subscribes refused.", ConstLabels: own,
		}, []string{"op", "reason"}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("dropped_total"), Help: "Clients cut off, and messages not delivered to them, by reason.", ConstLabels: own,
		}, []string{"reason"}),
		takeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("take_seconds"), Help: "Time to store a message before its acknowledgement.", ConstLabels: own,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		acceptErrors: counter("accept_errors_total", "Failed accepts, such as for want of file descriptors."),
		connects:     counter("connects_total", "Accepted connects."),
		wills:        counter("wills_total", "Last wills sent."),
	}
	m.all = []prometheus.Collector{m.refusals, m.drops, m.takeSeconds, m.acceptErrors, m.connects, m.wills}
	info := b.server.Info
	for _, g := range []struct {
		name, help string
		value      *int64
	}{
		{"clients_connected", "Clients connected now.", &info.ClientsConnected},
		{"retained_messages", "Retained messages.", &info.Retained},
		{"subscriptions", "Subscriptions.", &info.Subscriptions},
		{"inflight_messages", "Messages that await an acknowledgement.", &info.Inflight},
	} {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name(g.name), Help: g.help, ConstLabels: own},
			func() float64 { return float64(atomic.LoadInt64(g.value)) }))
	}
	m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: name("write_buffer_bytes"), Help: "Bytes that wait for clients to read them.", ConstLabels: own,
	}, func() float64 { return float64(b.buffered.Load()) }))
	for _, c := range []struct {
		name, help string
		value      *int64
	}{
		{"messages_received_total", "Messages published to the broker.", &info.MessagesReceived},
		{"messages_sent_total", "Messages sent to clients.", &info.MessagesSent},
		{"bytes_received_total", "Bytes received.", &info.BytesReceived},
		{"bytes_sent_total", "Bytes sent.", &info.BytesSent},
		{"packets_received_total", "MQTT packets received.", &info.PacketsReceived},
		{"packets_sent_total", "MQTT packets sent.", &info.PacketsSent},
	} {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name(c.name), Help: c.help, ConstLabels: own},
			func() float64 { return float64(atomic.LoadInt64(c.value)) }))
	}
	return m
}

// register adds all metrics to r, or none.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	var errs []error
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			errs = append(errs, err)
			for _, done := range m.all[:i] {
				r.Unregister(done)
			}
			break
		}
	}
	return errors.Join(errs...)
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.all {
		r.Unregister(c)
	}
}

func (m *metrics) refused(op, reason string) { m.refusals.WithLabelValues(op, reason).Inc() }

func (m *metrics) dropped(reason string) { m.drops.WithLabelValues(reason).Inc() }
