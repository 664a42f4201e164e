// Package metrics counts what a broker does, for Prometheus and for the topics below $SYS.
// What happens for each message is counted without Prometheus, which would cost more.
package metrics

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/sessions"
)

// Metrics are what a dashboard of any MQTT broker shows, and every refusal and
// drop by its reason. All carry the label broker.
type Metrics struct {
	refusals *prometheus.CounterVec // op, reason
	drops    *prometheus.CounterVec // reason
	ends     *prometheus.CounterVec // reason
	// AcceptSeconds is how long the owner of the broker takes to accept a message.
	AcceptSeconds prometheus.Histogram
	// AcceptErrors are failed accepts of connections.
	AcceptErrors prometheus.Counter
	// Connects are accepted, Takeovers are those that took the place of another connection.
	Connects, Takeovers prometheus.Counter
	// Waits are those of publishers in vain, Waited is the time of all, by whom they waited for.
	Waits  prometheus.Counter
	Waited *prometheus.CounterVec
	// NotStored counts connects that asked for a session where none is stored.
	NotStored prometheus.Counter
	// Wills are last wills that were sent.
	Wills prometheus.Counter

	// ExpiredSessions ended as their clients stayed away, EvictedSessions for others.
	ExpiredSessions, EvictedSessions prometheus.Counter
	// StoreSeconds is how long it takes to store a message for sessions.
	StoreSeconds prometheus.Histogram
	all          []prometheus.Collector

	traffic
	held Held
}

// Held reads what the broker holds now. The functions are called at any time.
type Held struct {
	Retained      func() int64 // messages
	RetainedBytes func() int64
	Waiting       func() int64 // bytes that wait in memory for clients
	Sessions      func() sessions.Stats
}

// traffic is counted for Prometheus and for $SYS.
type traffic struct {
	begun                 time.Time
	Clients               level           // that are connected
	subscriptions, shared atomic.Int64    // shared ones are counted in both
	Inflight              atomic.Int64    // messages that await an acknowledgement
	in, out               [3]atomic.Int64 // messages by QoS
	bytesIn, bytesOut     atomic.Int64
	packetsIn, packetsOut atomic.Int64
	droppedMessages       atomic.Int64
}

// A level goes up and down, and remembers the highest.
type level struct{ now, most atomic.Int64 }

// Up counts one more.
func (l *level) Up() {
	n := l.now.Add(1)
	for most := l.most.Load(); n > most && !l.most.CompareAndSwap(most, n); most = l.most.Load() {
	}
}

// Down counts one less.
func (l *level) Down() { l.now.Add(-1) }

// Received counts a packet of so many bytes.
func (t *traffic) Received(n int) {
	t.packetsIn.Add(1)
	t.bytesIn.Add(int64(n))
}

// Sent counts a packet of so many bytes.
func (t *traffic) Sent(n int) {
	t.packetsOut.Add(1)
	t.bytesOut.Add(int64(n))
}

// PublishedIn counts a message that came, by its QoS.
func (t *traffic) PublishedIn(qos byte) { t.in[qos].Add(1) }

// PublishedOut counts a message that was sent in a packet of n bytes, by its QoS.
func (t *traffic) PublishedOut(qos byte, n int) {
	t.out[qos].Add(1)
	t.Sent(n)
}

func (t *traffic) messagesIn() int64 { return t.in[0].Load() + t.in[1].Load() + t.in[2].Load() }

func (t *traffic) messagesOut() int64 { return t.out[0].Load() + t.out[1].Load() + t.out[2].Load() }

// Subscribed counts n more subscriptions to a filter.
func (t *traffic) Subscribed(to string, n int64) {
	t.subscriptions.Add(n)
	if filter.Shared(to) {
		t.shared.Add(n)
	}
}

// New returns the metrics of a broker of a name, which are not registered.
func New(broker string, held Held) *Metrics {
	own := prometheus.Labels{"broker": broker}
	counter := func(n, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: n, Help: help, ConstLabels: own})
	}
	counters := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: n, Help: help, ConstLabels: own}, labels)
	}
	m := &Metrics{
		refusals: counters("colony_broker_refused_total", "Connects, publishes and subscribes refused.", "op", "reason"),
		drops:    counters("colony_broker_dropped_total", "Clients cut off, and messages not delivered to them, by reason.", "reason"),
		ends:     counters("colony_broker_disconnects_total", "Sessions ended, by MQTT reason code, or client, network or other.", "reason"),
		AcceptSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_broker_accept_seconds", Help: "Time to store a message before its acknowledgement.", ConstLabels: own,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		AcceptErrors: counter("colony_broker_accept_errors_total", "Failed accepts, such as for want of file descriptors."),
		Connects:     counter("colony_broker_connects_total", "Accepted connects."),
		Takeovers:    counter("colony_broker_takeovers_total", "Connections whose place a new one of the same client took."),
		Waits:        counter("colony_broker_publish_waits_total", "Times that a publisher waited in vain for a subscriber that lags behind."),
		Waited:       counters("colony_broker_publish_wait_seconds_total", "Time that publishers waited: for subscribers that lag behind, the fastest of a message or others, or as it takes much to match their messages.", "for"),
		NotStored:    counter("colony_broker_sessions_not_stored_total", "Accepted connects that asked for a session that outlives its connection, which there is not."),
		Wills:        counter("colony_broker_wills_total", "Last wills sent."),

		ExpiredSessions: counter("colony_broker_sessions_expired_total", "Sessions that ended as their clients stayed away."),
		EvictedSessions: counter("colony_broker_sessions_evicted_total", "Sessions that held nothing and ended as another client needed their place."),
		StoreSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_broker_store_seconds", Help: "Time to store a message for sessions before its acknowledgement.", ConstLabels: own,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	m.begun, m.held = time.Now(), held
	m.all = []prometheus.Collector{m.refusals, m.drops, m.ends, m.AcceptSeconds, m.AcceptErrors, m.Connects, m.Takeovers, m.Waits, m.Waited, m.NotStored, m.Wills, m.ExpiredSessions, m.EvictedSessions, m.StoreSeconds}
	m.addTraffic(own)
	return m
}

// addTraffic makes collectors of what is counted without Prometheus.
func (m *Metrics) addTraffic(own prometheus.Labels) {
	for _, g := range []struct {
		name, help string
		value      func() int64
	}{
		{"colony_broker_clients_connected", "Clients connected now.", m.Clients.now.Load},
		{"colony_broker_clients_maximum", "The most clients connected at once.", m.Clients.most.Load},
		{"colony_broker_retained_messages", "Retained messages, without those of $SYS.", m.held.Retained},
		{"colony_broker_retained_bytes", "Memory of the retained messages, without those of $SYS, about: topics, properties, payloads, and 256 bytes for each.", m.held.RetainedBytes},
		{"colony_broker_subscriptions", "Subscriptions.", m.subscriptions.Load},
		{"colony_broker_shared_subscriptions", "Shared subscriptions.", m.shared.Load},
		{"colony_broker_inflight_messages", "Messages that await an acknowledgement.", m.Inflight.Load},
		{"colony_broker_write_buffer_bytes", "Bytes that wait in memory for clients to read them, or for the rest of their packets.", m.held.Waiting},
		{"colony_broker_sessions", "Sessions that outlive their connection, with one or without.", func() int64 { return m.held.Sessions().Sessions }},
		{"colony_broker_session_messages", "Messages in the queues of those sessions.", func() int64 { return m.held.Sessions().Messages }},
		{"colony_broker_session_bytes", "Bytes of those messages, each once.", func() int64 { return m.held.Sessions().Bytes }},
		{"colony_broker_session_log_bytes", "Bytes of the log of sessions on disk.", func() int64 { return m.held.Sessions().LogBytes }},
		{"colony_broker_session_disk_refuses", "1 while the disk takes no messages for sessions, or hardly any: they are refused; else 0.", m.refusing},
		{"colony_broker_start_time_seconds", "When the broker was made, in Unix time.", m.begun.Unix},
	} {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help, ConstLabels: own},
			func() float64 { return float64(g.value()) }))
	}
	count := func(name, help string, labels prometheus.Labels, value func() int64) {
		all := prometheus.Labels{}
		for k, v := range own {
			all[k] = v
		}
		for k, v := range labels {
			all[k] = v
		}
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: all},
			func() float64 { return float64(value()) }))
	}
	for qos := range m.in {
		l := prometheus.Labels{"qos": fmt.Sprint(qos)}
		count("colony_broker_messages_received_total", "Messages published to the broker.", l, m.in[qos].Load)
		count("colony_broker_messages_sent_total", "Messages sent to clients.", l, m.out[qos].Load)
	}
	count("colony_broker_session_records_damaged_total", "Records and files of sessions that could not be read since the start.", nil, func() int64 { return m.held.Sessions().Damaged })
	count("colony_broker_bytes_received_total", "Bytes received.", nil, m.bytesIn.Load)
	count("colony_broker_bytes_sent_total", "Bytes sent.", nil, m.bytesOut.Load)
	count("colony_broker_packets_received_total", "MQTT packets received.", nil, m.packetsIn.Load)
	count("colony_broker_packets_sent_total", "MQTT packets sent.", nil, m.packetsOut.Load)
}

// Register adds all metrics to r, or none.
func (m *Metrics) Register(r prometheus.Registerer) error {
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

// Unregister takes back what Register added.
func (m *Metrics) Unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.all {
		r.Unregister(c)
	}
}

// Refused counts what a client was refused: op is connect, publish, subscribe or packet.
func (m *Metrics) Refused(op, reason string) { m.refusals.WithLabelValues(op, reason).Inc() }

// Dropped counts a message that a client does not get.
func (m *Metrics) Dropped(reason string) {
	m.drops.WithLabelValues(reason).Inc()
	m.droppedMessages.Add(1)
}

// refusing is 1 while the disk takes no messages for sessions, else 0.
func (m *Metrics) refusing() int64 {
	if m.held.Sessions().Refusing {
		return 1
	}
	return 0
}

// DroppedStored counts messages that sessions have lost.
func (m *Metrics) DroppedStored(n int, reason string) {
	m.drops.WithLabelValues(reason).Add(float64(n))
	m.droppedMessages.Add(int64(n))
}

// Expired counts messages whose time was up before the client could get them.
func (m *Metrics) Expired(n int) {
	m.drops.WithLabelValues("expired").Add(float64(n))
	m.droppedMessages.Add(int64(n))
}

// Disconnected counts the end of a session: by the broker with a reason code, unless that is
// 0, or by a client that said DISCONNECT.
func (m *Metrics) Disconnected(code byte, bye bool) {
	reason := "network"
	if code != 0 {
		reason = fmt.Sprintf("0x%02x", code)
	} else if bye {
		reason = "client"
	}
	m.ends.WithLabelValues(reason).Inc()
}
