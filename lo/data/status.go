package data

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A StreamStatus is the state of the stream of one data rule.
type StreamStatus struct {
	Rule string `json:"rule"` // its name
	// Draining says that the rule was removed, and what is queued still goes to the CO.
	Draining bool `json:"draining,omitempty"`
	// Queued are the records that the CO does not have yet, and Bytes what they take
	// on disk. OldestSeconds is the age of the oldest.
	Queued        uint64  `json:"queued"`
	Bytes         int64   `json:"bytes"`
	MaxBytes      int64   `json:"maxBytes"` // bound of the stream's journal
	OldestSeconds float64 `json:"oldestSeconds"`
	// Accepted counts the messages that the rule accepted in this run of the LO, and
	// AcceptedBytes their payload. The other counters are of this run, too.
	Accepted      uint64 `json:"accepted"`
	AcceptedBytes uint64 `json:"acceptedBytes"`
	// SampledOut are messages that sampling left out.
	SampledOut uint64 `json:"sampledOut"`
	// NotStored are messages of QoS 0 that arrived while the link was down.
	NotStored uint64 `json:"notStored"`
	// Refused are messages that the queue could not store.
	Refused uint64 `json:"refused"`
	// Dropped are messages that were dropped under the bounds of the queue, or lost with
	// damaged records of it.
	Dropped uint64 `json:"dropped"`
	// Expired are messages that expired before they could be sent.
	Expired uint64 `json:"expired"`
	// Held are the topics of which a sample waits for the end of its period.
	Held int `json:"held"`
	// Connected says that the stream has a link to the CO.
	Connected bool `json:"connected"`
	// Acked is the highest sequence that is in the CO's database.
	Acked          uint64  `json:"acked"`
	RTTSeconds     float64 `json:"rttSeconds"`     // round trip of the link as measured
	BytesPerSecond uint64  `json:"bytesPerSecond"` // rate of the link as measured
}

// Status returns the streams in the order of their names.
func (f *Forwarder) Status() []StreamStatus {
	out := []StreamStatus{}
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, s := range f.sorted() {
		out = append(out, s.status())
	}
	return out
}

func (s *stream) status() StreamStatus {
	stats, up := s.queue.Stats(), s.uplink.Status()
	c := s.counts
	held := 0
	if s.held != nil {
		s.mu.Lock()
		held = s.sampler.Topics()
		s.mu.Unlock()
	}
	return StreamStatus{
		Rule: s.rule.Name, Draining: s.draining, Queued: stats.Depth, Bytes: stats.Bytes, MaxBytes: stats.MaxBytes,
		OldestSeconds: float64(up.Backlog.OldestMillis) / 1000,
		Accepted:      c.accepted.Load(), AcceptedBytes: c.bytes.Load(), SampledOut: c.sampledOut.Load(), NotStored: c.offline.Load(), Refused: c.refused.Load(),
		Dropped: c.dropped.Load() + stats.Dropped + stats.Lost, Expired: c.expired.Load() + up.Backlog.Expired,
		Held: held, Connected: up.Connected, Acked: up.Acked, RTTSeconds: float64(up.Backlog.RTTMicros) / 1e6, BytesPerSecond: up.Backlog.BytesPerSecond,
	}
}

// Fault returns why the rules in force are not the desired ones, or why the CO may hold
// stale retained messages; "" if neither is so.
func (f *Forwarder) Fault() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var all []string
	if f.fault != "" {
		all = append(all, f.fault)
	}
	for _, s := range f.sorted() {
		if why := s.tooLarge.Load(); why != nil {
			all = append(all, *why)
		}
	}
	return strings.Join(all, "\n")
}

// dataMetrics are the metrics of a stream.
var dataMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(StreamStatus) float64
}{
	{perRule("colony_lo_data_accepted_total", "Messages that a data rule accepted."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Accepted) }},
	{perRule("colony_lo_data_accepted_bytes_total", "Bytes of payload that a data rule accepted."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.AcceptedBytes) }},
	{perRule("colony_lo_data_sampled_out_total", "Messages that the sampling of a data rule left out."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.SampledOut) }},
	{perRule("colony_lo_data_not_stored_total", "Messages of QoS 0 that arrived while the link was down."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.NotStored) }},
	{perRule("colony_lo_data_refused_total", "Messages that a queue could not store."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Refused) }},
	{perRule("colony_lo_data_dropped_total", "Messages dropped under the bounds of a queue, or lost with damaged records of it."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Dropped) }},
	{perRule("colony_lo_data_expired_total", "Messages that expired before they could be sent."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Expired) }},
	{perRule("colony_lo_data_queued", "Messages that the CO does not have yet."), prometheus.GaugeValue, func(s StreamStatus) float64 { return float64(s.Queued) }},
	{perRule("colony_lo_data_queue_bytes", "Bytes of a queue on disk."), prometheus.GaugeValue, func(s StreamStatus) float64 { return float64(s.Bytes) }},
	{perRule("colony_lo_data_oldest_seconds", "Age of the oldest message that the CO does not have; 0 for none."), prometheus.GaugeValue, func(s StreamStatus) float64 { return s.OldestSeconds }},
}

func perRule(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"rule"}, nil)
}

// Describe describes the metrics that Collect sends.
func (f *Forwarder) Describe(out chan<- *prometheus.Desc) {
	for _, m := range dataMetrics {
		out <- m.desc
	}
}

// Collect sends the metrics of all streams.
func (f *Forwarder) Collect(out chan<- prometheus.Metric) {
	for _, s := range f.Status() {
		for _, m := range dataMetrics {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), s.Rule)
		}
	}
}
