package remotewrite

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A series is identified by its labels in Prometheus.
type series struct {
	metric, site, rule, topic, field string
}

func (s series) compare(t series) int {
	return cmp.Or(strings.Compare(s.metric, t.metric), strings.Compare(s.site, t.site), strings.Compare(s.rule, t.rule),
		strings.Compare(s.topic, t.topic), strings.Compare(s.field, t.field))
}

// A sample is one number of one series.
type sample struct {
	series
	millis int64 // Unix time: the arrival at the site where it is known
	value  float64
}

// longestWay is how long a message may have been under way at most, for its time to be believed
// where the site's clock was not synchronised.
const longestWay = 30 * 24 * time.Hour

// wrong reports whether the time of a message cannot be right: the clock was not synchronised,
// and the message is of the future, or was under way for longer than any is kept.
func wrong(m fleet.Message) bool {
	unsynced, _ := stream.Unsynced(m.Message.Properties)
	way := m.Received.Sub(*m.SiteTime)
	return unsynced && (way < -time.Minute || way > longestWay)
}

// samplesOf returns the numbers of a message, and how many values that the rule
// names are no numbers. A deletion of a retained message has neither.
func samplesOf(r fleet.MetricRule, m fleet.Message) (list []sample, skipped int) {
	if len(m.Message.Payload) == 0 {
		return nil, 0
	}
	s := sample{series: series{r.Metric, string(r.Site), r.Rule, m.Message.Topic, ""}, millis: m.Received.UnixMilli()}
	if m.SiteTime != nil && !wrong(m) {
		s.millis = m.SiteTime.UnixMilli()
	}
	if len(r.Fields) == 0 {
		var ok bool
		if s.value, ok = number(string(bytes.TrimSpace(m.Message.Payload))); !ok {
			return nil, 1
		}
		return []sample{s}, 0
	}
	var document any
	d := json.NewDecoder(bytes.NewReader(m.Message.Payload))
	d.UseNumber()
	if d.Decode(&document) != nil {
		return nil, len(r.Fields)
	}
	for _, f := range r.Fields {
		n, _ := find(document, f).(json.Number)
		v, ok := number(string(n))
		if !ok {
			skipped++
			continue
		}
		s.field, s.value = f, v
		list = append(list, s)
	}
	return list, skipped
}

func number(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// find returns the part of a JSON document that a JSON pointer (RFC 6901) leads to,
// nil where there is none.
func find(document any, pointer string) any {
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = unescape.Replace(token)
		switch v := document.(type) {
		case map[string]any:
			document = v[token]
		case []any:
			i, err := strconv.ParseUint(token, 10, 31)
			if err != nil || int(i) >= len(v) {
				return nil
			}
			document = v[i]
		default:
			return nil
		}
	}
	return document
}

// ordered returns the samples by series and time, as the protocol demands. Of those
// of one series and time the last one counts.
func (b *batch) ordered() []sample {
	slices.SortStableFunc(b.samples, func(s, t sample) int {
		return cmp.Or(s.compare(t.series), cmp.Compare(s.millis, t.millis))
	})
	out := b.samples[:0]
	for _, s := range b.samples {
		if n := len(out); n > 0 && out[n-1].series == s.series && out[n-1].millis == s.millis {
			out[n-1] = s
			continue
		}
		out = append(out, s)
	}
	return out
}

// The numbers of the fields of prometheus.WriteRequest (remote write 1.0).
const (
	requestSeries = 1
	seriesLabels  = 1
	seriesSamples = 2
	labelName     = 1
	labelValue    = 2
	sampleValue   = 1
	sampleTime    = 2
)

// encode makes the body of a request: a snappy block of a WriteRequest. Samples of
// one series follow each other.
func encode(samples []sample) []byte {
	var request []byte
	for len(samples) > 0 {
		n := 1
		for n < len(samples) && samples[n].series == samples[0].series {
			n++
		}
		request = protowire.AppendTag(request, requestSeries, protowire.BytesType)
		request = protowire.AppendBytes(request, encodeSeries(samples[:n]))
		samples = samples[n:]
	}
	return snappy.Encode(nil, request)
}

func encodeSeries(samples []sample) []byte {
	s := samples[0].series
	var b []byte
	// Sorted by name; one without a value is no label.
	for _, l := range [...][2]string{{"__name__", s.metric}, {"field", s.field}, {"rule", s.rule}, {"site", s.site}, {"topic", s.topic}} {
		if l[1] == "" {
			continue
		}
		var label []byte
		label = protowire.AppendTag(label, labelName, protowire.BytesType)
		label = protowire.AppendString(label, l[0])
		label = protowire.AppendTag(label, labelValue, protowire.BytesType)
		label = protowire.AppendString(label, l[1])
		b = protowire.AppendTag(b, seriesLabels, protowire.BytesType)
		b = protowire.AppendBytes(b, label)
	}
	for _, v := range samples {
		var sample []byte
		sample = protowire.AppendTag(sample, sampleValue, protowire.Fixed64Type)
		sample = protowire.AppendFixed64(sample, math.Float64bits(v.value))
		sample = protowire.AppendTag(sample, sampleTime, protowire.VarintType)
		sample = protowire.AppendVarint(sample, uint64(v.millis))
		b = protowire.AppendTag(b, seriesSamples, protowire.BytesType)
		b = protowire.AppendBytes(b, sample)
	}
	return b
}
