package metricstest

import (
	"cmp"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A Metric is one of a tier, as the page of all metrics shows it.
type Metric struct {
	Name string
	// Type is counter, gauge or histogram.
	Type string
	Help string
	// Labels are the names of its labels, sorted.
	Labels []string
}

// described is a prometheus.Desc as its String shows it.
var described = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// Of returns the metrics of a registry whose names begin with one of prefixes, by name: all that its
// collectors describe, whether there are values of them or not. The type of one without a value follows from
// its name, so that a histogram must have one.
func Of(t testing.TB, r *prometheus.Registry, prefixes ...string) map[string]Metric {
	t.Helper()
	all := map[string]Metric{}
	for _, d := range descs(r) {
		parts := described.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("what describes a metric cannot be read: %s", d)
		}
		m := Metric{Name: unquote(t, parts[1]), Help: unquote(t, parts[2])}
		for _, l := range strings.Split(parts[3], ",") {
			if name, _, ok := strings.Cut(l, "="); ok {
				m.Labels = append(m.Labels, name)
			}
		}
		for _, l := range strings.Split(parts[4], ",") {
			if l != "" {
				m.Labels = append(m.Labels, l)
			}
		}
		slices.Sort(m.Labels)
		m.Type = typeOf(m.Name)
		if begins(m.Name, prefixes) {
			all[m.Name] = m
		}
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m, ok := all[f.GetName()]
		if begins(f.GetName(), prefixes) && !ok {
			t.Errorf("metric %s: its collector does not describe it", f.GetName())
		}
		if ok {
			m.Type = strings.ToLower(f.GetType().String())
			all[m.Name] = m
		}
	}
	return all
}

// sample is a line of the text format: a name, its labels, and a value.
var (
	sample = regexp.MustCompile(`^([a-z_0-9]+)(?:\{(.*)\})? \S+$`)
	label  = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
)

// OfText is Of for what is written in the text format without a registry. A metric without a value is left out: its labels are not known.
func OfText(t testing.TB, page []byte) map[string]Metric {
	t.Helper()
	all, valued := map[string]Metric{}, map[string]bool{}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSuffix(line, "\n")
		if help, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, text, _ := strings.Cut(help, " ")
			all[name] = Metric{Name: name, Help: text}
			continue
		}
		if typed, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(typed, " ")
			m := all[name]
			m.Type = kind
			all[name] = m
			continue
		}
		parts := sample.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("no line of metrics: %q", line)
		}
		name := parts[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); all[base].Type == "histogram" {
				name = base
			}
		}
		m := all[name]
		if !valued[name] {
			for _, l := range label.FindAllStringSubmatch(parts[2], -1) {
				if l[1] != "le" {
					m.Labels = append(m.Labels, l[1])
				}
			}
			slices.Sort(m.Labels)
		}
		all[name], valued[name] = m, true
	}
	maps.DeleteFunc(all, func(name string, _ Metric) bool { return !valued[name] })
	return all
}

// descs returns what describes the metrics of a collector.
func descs(c prometheus.Collector) (all []*prometheus.Desc) {
	out := make(chan *prometheus.Desc)
	go func() {
		defer close(out)
		c.Describe(out)
	}()
	for d := range out {
		all = append(all, d)
	}
	return all
}

func typeOf(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

func unquote(t testing.TB, s string) string {
	t.Helper()
	text, err := strconv.Unquote(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Table returns metrics as a table of Markdown, in the order of their names.
func Table(metrics map[string]Metric) string {
	list := make([]Metric, 0, len(metrics))
	for _, m := range metrics {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range list {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, strings.ReplaceAll(m.Help, "|", `\|`))
	}
	return b.String()
}

// promtool has Prometheus' own program check what a tier answers, without what comes from libraries.
func promtool(t testing.TB, page []byte) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is not installed: run scripts/setup --with-test-peers as root")
	}
	var own strings.Builder
	for line := range strings.Lines(string(page)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !begins(name, libraries) {
			own.WriteString(line)
		}
	}
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(own.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
