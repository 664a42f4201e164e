package metrics

import (
	"bytes"
	"strconv"
	"strings"
)

// A Text is written in the text format of Prometheus, version 0.0.4. The zero value is empty. It is for one goroutine.
type Text struct{ b bytes.Buffer }

// The types of metrics.
const (
	Counter   = "counter" // it only grows
	Gauge     = "gauge"   // it goes up and down
	histogram = "histogram"
)

// Begin begins a metric, whose samples follow.
func (t *Text) Begin(name, kind, help string) {
	for _, line := range [][]string{{"# HELP ", name, " ", help, "\n# TYPE "}, {name, " ", kind, "\n"}} {
		for _, part := range line {
			t.b.WriteString(part)
		}
	}
}

// labelValue has what a value of a label may not contain as it is.
var labelValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Sample writes one value, with the names and values of its labels in turn.
func (t *Text) Sample(name string, value float64, labels ...string) {
	t.b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		t.b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		t.b.WriteString(labels[i])
		t.b.WriteString(`="`)
		t.b.WriteString(labelValue.Replace(labels[i+1]))
		t.b.WriteByte('"')
	}
	if len(labels) > 0 {
		t.b.WriteByte('}')
	}
	t.b.WriteByte(' ')
	t.b.Write(strconv.AppendFloat(nil, value, 'g', -1, 64))
	t.b.WriteByte('\n')
}

// Single writes a metric that has one value.
func (t *Text) Single(name, kind, help string, value float64, labels ...string) {
	t.Begin(name, kind, help)
	t.Sample(name, value, labels...)
}

// Bytes returns what was written.
func (t *Text) Bytes() []byte { return t.b.Bytes() }

// bounds of the buckets of a pull, in seconds: from an image that is there to one of a gigabyte over a slow link.
var bounds = [...]float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800}

// durations is a histogram of them.
type durations struct {
	counts [len(bounds) + 1]uint64
	sum    float64 // seconds
}

func (d *durations) observe(seconds float64) {
	i := 0
	for i < len(bounds) && seconds > bounds[i] {
		i++
	}
	d.counts[i]++
	d.sum += seconds
}

func (t *Text) durations(name, help string, d durations) {
	t.Begin(name, histogram, help)
	n := uint64(0)
	for i, bound := range bounds {
		n += d.counts[i]
		t.Sample(name+"_bucket", float64(n), "le", strconv.FormatFloat(bound, 'g', -1, 64))
	}
	n += d.counts[len(bounds)]
	t.Sample(name+"_bucket", float64(n), "le", "+Inf")
	t.Sample(name+"_sum", d.sum)
	t.Sample(name+"_count", float64(n))
}
