package broker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/sessions"
)

// metrics are what a dashboard of any MQTT broker shows, and every refusal and
// drop by its reason. All carry the label broker.
type metrics struct {
	refusals      *prometheus.CounterVec // op, reason
	drops         *prometheus.CounterVec // reason
	ends          *prometheus.CounterVec // reason
	acceptSeconds prometheus.Histogram
	acceptErrors  prometheus.Counter
	connects      prometheus.Counter
	takeovers     prometheus.Counter
	waits         prometheus.Counter
	waited        *prometheus.CounterVec // for
	notKept       prometheus.Counter
	wills         prometheus.Counter

	expiredSessions prometheus.Counter
	evictedSessions prometheus.Counter
	storeSeconds    prometheus.Histogram
	all             []prometheus.Collector

	traffic
}

// traffic is counted for Prometheus and for $SYS.
type traffic struct {
	begun                 time.Time
	clients               level
	subscriptions, shared atomic.Int64 // shared ones are counted in both
	inflight              atomic.Int64
	in, out               [3]atomic.Int64 // messages by QoS
	bytesIn, bytesOut     atomic.Int64
	packetsIn, packetsOut atomic.Int64
	droppedMessages       atomic.Int64
}

// A level goes up and down, and remembers the highest.
type level struct{ now, most atomic.Int64 }

func (l *level) up() {
	n := l.now.Add(1)
	for most := l.most.Load(); n > most && !l.most.CompareAndSwap(most, n); most = l.most.Load() {
	}
}

func (l *level) down() { l.now.Add(-1) }

func (t *traffic) received(n int) {
	t.packetsIn.Add(1)
	t.bytesIn.Add(int64(n))
}

func (t *traffic) sent(n int) {
	t.packetsOut.Add(1)
	t.bytesOut.Add(int64(n))
}

func (t *traffic) publishedIn(qos byte) { t.in[qos].Add(1) }

func (t *traffic) publishedOut(qos byte, n int) {
	t.out[qos].Add(1)
	t.sent(n)
}

func (t *traffic) messagesIn() int64 { return t.in[0].Load() + t.in[1].Load() + t.in[2].Load() }

func (t *traffic) messagesOut() int64 { return t.out[0].Load() + t.out[1].Load() + t.out[2].Load() }

func (t *traffic) subscribed(to string, n int64) {
	t.subscriptions.Add(n)
	if filter.Shared(to) {
		t.shared.Add(n)
	}
}

func newMetrics(b *Broker) *metrics {
	own := prometheus.Labels{"broker": b.o.Name}
	counter := func(n, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "colony_broker_" + n, Help: help, ConstLabels: own})
	}
	counters := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "colony_broker_" + n, Help: help, ConstLabels: own}, labels)
	}
	m := &metrics{
		refusals: counters("refused_total", "Connects, publishes and subscribes refused.", "op", "reason"),
		drops:    counters("dropped_total", "Clients cut off, and messages not delivered to them, by reason.", "reason"),
		ends:     counters("disconnects_total", "Sessions ended, by MQTT reason code, or client, network or other.", "reason"),
		acceptSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_broker_accept_seconds", Help: "Time to store a message before its acknowledgement.", ConstLabels: own,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		acceptErrors: counter("accept_errors_total", "Failed accepts, such as for want of file descriptors."),
		connects:     counter("connects_total", "Accepted connects."),
		takeovers:    counter("takeovers_total", "Connections whose place a new one of the same client took."),
		waits:        counter("publish_waits_total", "Times that a publisher waited in vain for a subscriber that lags behind."),
		waited:       counters("publish_wait_seconds_total", "Time that publishers waited for subscribers that lag behind: for the fastest of a message, or for others.", "for"),
		notKept:      counter("sessions_not_kept_total", "Accepted connects that asked for a session that outlives its connection, which there is not."),
		wills:        counter("wills_total", "Last wills sent."),

		expiredSessions: counter("sessions_expired_total", "Sessions that ended as their clients stayed away."),
		evictedSessions: counter("sessions_evicted_total", "Sessions that held nothing and ended as another client needed their place."),
		storeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_broker_store_seconds", Help: "Time to store a message for sessions before its acknowledgement.", ConstLabels: own,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	m.begun = time.Now()
	m.all = []prometheus.Collector{m.refusals, m.drops, m.ends, m.acceptSeconds, m.acceptErrors, m.connects, m.takeovers, m.waits, m.waited, m.notKept, m.wills, m.expiredSessions, m.evictedSessions, m.storeSeconds}
	m.addTraffic(b, own)
	return m
}

// addTraffic makes collectors of what is counted without Prometheus.
func (m *metrics) addTraffic(b *Broker, own prometheus.Labels) {
	for _, g := range []struct {
		name, help string
		value      func() int64
	}{
		{"clients_connected", "Clients connected now.", m.clients.now.Load},
		{"clients_maximum", "The most clients connected at once.", m.clients.most.Load},
		{"retained_messages", "Retained messages, without those of $SYS.", func() int64 { return int64(b.retained.Count()) }},
		{"retained_bytes", "Memory of the retained messages, about: topics, properties, payloads, and 256 bytes for each.", b.retained.Bytes},
		{"subscriptions", "Subscriptions.", m.subscriptions.Load},
		{"shared_subscriptions", "Shared subscriptions.", m.shared.Load},
		{"inflight_messages", "Messages that await an acknowledgement.", m.inflight.Load},
		{"write_buffer_bytes", "Bytes that wait in memory for clients to read them, or for the rest of their packets.", b.pending.Load},
		{"sessions", "Sessions that outlive their connection, with one or without.", func() int64 { return b.stats().Sessions }},
		{"session_messages", "Messages in the queues of those sessions.", func() int64 { return b.stats().Messages }},
		{"session_bytes", "Bytes of those messages, each once.", func() int64 { return b.stats().Bytes }},
		{"session_log_bytes", "Bytes of the log of sessions on disk.", func() int64 { return b.stats().LogBytes }},
		{"session_records_damaged", "Records and files of sessions that could not be read since the start.", func() int64 { return b.stats().Damaged }},
		{"start_time_seconds", "When the broker was made, in Unix time.", m.begun.Unix},
	} {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "colony_broker_" + g.name, Help: g.help, ConstLabels: own},
			func() float64 { return float64(g.value()) }))
	}
	count := func(name, help string, labels prometheus.Labels, v *atomic.Int64) {
		all := prometheus.Labels{}
		for k, v := range own {
			all[k] = v
		}
		for k, v := range labels {
			all[k] = v
		}
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "colony_broker_" + name, Help: help, ConstLabels: all},
			func() float64 { return float64(v.Load()) }))
	}
	for qos := range m.in {
		l := prometheus.Labels{"qos": fmt.Sprint(qos)}
		count("messages_received_total", "Messages published to the broker.", l, &m.in[qos])
		count("messages_sent_total", "Messages sent to clients.", l, &m.out[qos])
	}
	count("bytes_received_total", "Bytes received.", nil, &m.bytesIn)
	count("bytes_sent_total", "Bytes sent.", nil, &m.bytesOut)
	count("packets_received_total", "MQTT packets received.", nil, &m.packetsIn)
	count("packets_sent_total", "MQTT packets sent.", nil, &m.packetsOut)
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

func (m *metrics) dropped(reason string) {
	m.drops.WithLabelValues(reason).Inc()
	m.droppedMessages.Add(1)
}

// droppedStored counts messages that sessions have lost.
func (m *metrics) droppedStored(n int, reason string) {
	m.drops.WithLabelValues(reason).Add(float64(n))
	m.droppedMessages.Add(int64(n))
}

// stats are those of the sessions that are stored.
func (b *Broker) stats() (s sessions.Stats) {
	if b.store != nil {
		s = b.store.Stats()
	}
	return s
}

// expired counts messages whose time was up before the client could get them.
func (m *metrics) expired(n int) {
	m.drops.WithLabelValues("expired").Add(float64(n))
	m.droppedMessages.Add(int64(n))
}

// disconnected counts the end of a session.
func (m *metrics) disconnected(s *session, err error) {
	reason := "network"
	if code := s.conn.Ending(); code != 0 {
		reason = fmt.Sprintf("0x%02x", code)
	} else if errors.Is(err, errBye) {
		reason = "client"
	}
	m.ends.WithLabelValues(reason).Inc()
}
