package data

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A StreamStatus is the state of the queue of one data rule.
type StreamStatus struct {
	Rule string `json:"rule"`
	// Draining says that the rule is gone, and what is queued still goes to the CO.
	Draining bool `json:"draining,omitempty"`
	// Queued are the records that the CO does not have yet, and Bytes what they take
	// on disk. OldestSeconds is the age of the oldest.
	Queued        uint64  `json:"queued"`
	Bytes         int64   `json:"bytes"`
	MaxBytes      int64   `json:"maxBytes"`
	OldestSeconds float64 `json:"oldestSeconds"`
	// Of this run: messages that the rule took, left out by sampling, were of QoS 0
	// and came while the link was down, were refused, were dropped under the bounds
	// of the queue, or whose time was up before they could be sent.
	Accepted      uint64 `json:"taken"`
	AcceptedBytes uint64 `json:"takenBytes"`
	SampledOut    uint64 `json:"sampledOut"`
	NotStored     uint64 `json:"notKept"`
	Refused       uint64 `json:"refused"`
	Dropped       uint64 `json:"dropped"`
	Expired       uint64 `json:"expired"`
	// Held are the topics of which a sample waits for the end of its period.
	Held int `json:"held"`
	// Connected says that the lane knows of a link to the CO.
	Connected bool `json:"connected"`
	// Acked is the highest sequence that is in the CO's database.
	Acked          uint64  `json:"acked"`
	RTTSeconds     float64 `json:"rttSeconds"`
	BytesPerSecond uint64  `json:"bytesPerSecond"`
}

// Status returns the lanes in the order of their names.
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

// Fault returns why the rules in force are not those that are wanted, or "".
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

// dataMetrics are the metrics of a lane.
var dataMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(StreamStatus) float64
}{
	{perRule("taken_total", "Messages that a data rule took."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Accepted) }},
	{perRule("taken_bytes_total", "Bytes of payload that a data rule took."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.AcceptedBytes) }},
	{perRule("sampled_out_total", "Messages that the sampling of a data rule left out."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.SampledOut) }},
	{perRule("not_kept_total", "Messages of QoS 0 that came while the link was down."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.NotStored) }},
	{perRule("refused_total", "Messages that a queue could not take."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Refused) }},
	{perRule("dropped_total", "Messages dropped under the bounds of a queue, or lost with damaged records of it."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Dropped) }},
	{perRule("expired_total", "Messages whose time was up before they could be sent."), prometheus.CounterValue, func(s StreamStatus) float64 { return float64(s.Expired) }},
	{perRule("queued", "Messages that the CO does not have yet."), prometheus.GaugeValue, func(s StreamStatus) float64 { return float64(s.Queued) }},
	{perRule("queue_bytes", "Bytes of a queue on disk."), prometheus.GaugeValue, func(s StreamStatus) float64 { return float64(s.Bytes) }},
	{perRule("oldest_seconds", "Age of the oldest message that the CO does not have; 0 for none."), prometheus.GaugeValue, func(s StreamStatus) float64 { return s.OldestSeconds }},
}

func perRule(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("colony_lo_data_"+name, help, []string{"rule"}, nil)
}

// Collect sends the metrics of all lanes.
func (f *Forwarder) Collect(out chan<- prometheus.Metric) {
	for _, s := range f.Status() {
		for _, m := range dataMetrics {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), s.Rule)
		}
	}
}
