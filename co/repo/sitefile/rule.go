package sitefile

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

// defaultQoS is the QoS of a rule that does not say one: what a rule is for is that
// nothing is lost.
const defaultQoS = 1

// maxFields bounds the series of one rule and topic.
const maxFields = 64

var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]{0,199}$`)

var priorities = map[string]protocol.DataPriority{
	"": protocol.NormalPriority, "normal": protocol.NormalPriority, "high": protocol.HighPriority, "low": protocol.LowPriority,
}

// rule reads one item of the list of rules.
func (r *reader) rule(i item) fleet.DataRule {
	o := r.object(i.node, i.path, "name", "direction", "topics", "local", "remote", "qos", "keepQoS0", "priority",
		"ttl", "maxBytes", "maxAge", "batch", "sample", "store", "prometheus")
	var d fleet.DataRule
	if r.required(o, "name") {
		d.Name, _ = r.text(o, "name")
	}
	if r.required(o, "direction") {
		d.Down = r.oneOf(o, "direction", "up", "down") == "down"
	}
	if r.required(o, "topics") {
		d.Topics = r.texts(o, "topics")
	}
	d.Local, _ = r.text(o, "local")
	d.Remote, _ = r.text(o, "remote")
	d.QoS = defaultQoS
	if s, ok := r.scalar(o.fields["qos"], join(o.path, "qos"), "0, 1 or 2", "!!int"); ok {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil || n > 2 {
			r.problem(join(o.path, "qos"), o.fields["qos"].Line, "%s: want 0, 1 or 2", s)
		}
		d.QoS = uint8(n)
	}
	d.KeepQoS0 = r.flag(o, "keepQoS0")
	d.Priority = priorities[r.oneOf(o, "priority", "high", "normal", "low")]
	d.TTLMillis, d.MaxBytes, d.MaxAgeMillis = r.duration(o, "ttl"), r.size(o, "maxBytes"), r.duration(o, "maxAge")
	r.batch(o, &d)
	r.sample(o, &d)
	r.store(o, &d)
	return d
}

func (r *reader) batch(o object, d *fleet.DataRule) {
	b := r.child(o, "batch", "bytes", "wait", "compression")
	// A value that does not fit into the field is above its bound, so that validation refuses it.
	d.BatchBytes = uint32(min(r.size(b, "bytes"), math.MaxUint32))
	d.BatchMillis = uint32(min(r.duration(b, "wait"), math.MaxUint32))
	d.Uncompressed = r.oneOf(b, "compression", "zstd", "none") == "none"
}

func (r *reader) sample(o object, d *fleet.DataRule) {
	s := r.child(o, "sample", "mode", "period", "deadband", "field")
	if !s.there || !r.required(s, "mode") {
		return
	}
	d.Sample.Mode = protocol.SampleMode(r.oneOf(s, "mode", "last", "change", "deadband"))
	d.Sample.PeriodMillis = r.duration(s, "period")
	d.Sample.Field, _ = r.text(s, "field")
	text, ok := r.scalar(s.fields["deadband"], join(s.path, "deadband"), "a number such as 1.5, or a part such as 2%", "!!float", "!!int", "!!str")
	if !ok {
		return
	}
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		r.problem(join(s.path, "deadband"), s.fields["deadband"].Line, "%q: want a number above 0 such as 1.5, or a part such as 2%%", text)
		return
	}
	d.Sample.Deadband, d.Sample.Percent = v, percent
}

// store reads what only the CO does.
func (r *reader) store(o object, d *fleet.DataRule) {
	s := r.child(o, "store", "keep")
	d.Store = s.there
	keep := r.duration(s, "keep")
	if keep > datarule.MaxMillis {
		r.problem(join(s.path, "keep"), r.lines[join(s.path, "keep")], "want at most 10 years; without keep they stay for ever")
		keep = 0
	}
	d.Keep = time.Duration(keep) * time.Millisecond
	p := r.child(o, "prometheus", "metric", "fields")
	if d.Down {
		for _, side := range []object{s, p} {
			if side.there {
				r.problem(side.path, side.line, "only for a rule that goes up; remove it")
			}
		}
		return
	}
	if !p.there {
		return
	}
	if !d.Store {
		r.problem(p.path, p.line, "needs store, because it is sent from there: add store: {keep: 7d}")
	}
	if r.required(p, "metric") {
		d.Metric, _ = r.text(p, "metric")
		if !metricName.MatchString(d.Metric) {
			r.problem(join(p.path, "metric"), r.lines[join(p.path, "metric")],
				"%q: want the name of a Prometheus metric: letters, digits, _ and :, not beginning with a digit", d.Metric)
		}
	}
	d.Fields = r.texts(p, "fields")
	if len(d.Fields) > maxFields {
		r.problem(join(p.path, "fields"), r.lines[join(p.path, "fields")], "%d of them: a rule has at most %d", len(d.Fields), maxFields)
	}
	for i, f := range d.Fields {
		if !pointer(f) {
			path := fmt.Sprintf("%s[%d]", join(p.path, "fields"), i)
			r.problem(path, r.lines[path], "%q: want a JSON pointer (RFC 6901), such as /temperature", f)
		}
	}
}

// pointer reports whether s is a JSON pointer to a part of a document.
func pointer(s string) bool {
	if s == "" || s[0] != '/' || len(s) > datarule.MaxFieldBytes {
		return false
	}
	rest := strings.NewReplacer("~0", "", "~1", "").Replace(s)
	return !strings.Contains(rest, "~")
}

// fieldOf has the path of each field that the rules' own check calls otherwise.
var fieldOf = map[string]string{"batchBytes": "batch.bytes", "batchWait": "batch.wait"}

// validate applies the check that every tier makes of the rules, and finds for each
// fault where in the file it is.
func (r *reader) validate(rules []fleet.DataRule) {
	const list = "spec.data.rules"
	if len(rules) > datarule.MaxRules {
		r.problem(list, r.lines[list], "%d rules: a site has at most %d; one rule may have many topics", len(rules), datarule.MaxRules)
		return
	}
	named := map[string]int{}
	for i, rule := range rules {
		path := fmt.Sprintf("%s[%d]", list, i)
		if first, taken := named[rule.Name]; taken {
			r.problem(path+".name", r.lines[path+".name"], "%q is the name of rule %d of the list already; a name is for one rule", rule.Name, first+1)
		} else {
			named[rule.Name] = i
		}
		for _, err := range datarule.Validate([]protocol.DataRule{rule.DataRule}) {
			r.fault(path, rule.Name, err.Error())
		}
	}
}

// fault notes a fault of a rule, whose text begins with the rule and the field.
func (r *reader) fault(path, name, text string) {
	for _, rule := range []string{"data rule " + strconv.Quote(name) + ": ", "data rule 1: "} {
		text = strings.TrimPrefix(text, rule)
	}
	field, message, ok := strings.Cut(text, ": ")
	if known := fieldOf[field]; known != "" {
		field = known
	}
	if !ok || strings.ContainsAny(field, " \"") {
		r.problem(path, r.lines[path], "%s", text)
		return
	}
	// A field that is not there is missed where the mapping is that should have it.
	line, at := 0, path+"."+field
	for part := at; line == 0 && part != ""; part = part[:max(0, strings.LastIndex(part, "."))] {
		line = r.lines[part]
	}
	r.problem(at, line, "%s", message)
}

// Rules writes rules as a file and the API have them.
func Rules(rules []fleet.DataRule) []Rule {
	out := make([]Rule, len(rules))
	for i, d := range rules {
		out[i] = show(d)
	}
	return out
}

func show(d fleet.DataRule) Rule {
	r := Rule{
		Name: d.Name, Direction: "up", Topics: d.Topics, Local: d.Local, Remote: d.Remote, QoS: &d.QoS, KeepQoS0: d.KeepQoS0,
		TTL: formatDuration(d.TTLMillis), MaxBytes: formatSize(d.MaxBytes), MaxAge: formatDuration(d.MaxAgeMillis),
	}
	if d.Down {
		r.Direction = "down"
	}
	switch d.Priority {
	case protocol.HighPriority:
		r.Priority = "high"
	case protocol.LowPriority:
		r.Priority = "low"
	default:
	}
	if b := (Batch{Bytes: formatSize(uint64(d.BatchBytes)), Wait: formatDuration(uint64(d.BatchMillis))}); b != (Batch{}) || d.Uncompressed {
		if d.Uncompressed {
			b.Compression = "none"
		}
		r.Batch = &b
	}
	if s := d.Sample; s.Mode != protocol.SampleAll {
		r.Sample = &Sample{Mode: string(s.Mode), Period: formatDuration(s.PeriodMillis), Field: s.Field}
		if s.Deadband != 0 {
			r.Sample.Deadband = strconv.FormatFloat(s.Deadband, 'g', -1, 64)
		}
		if s.Percent {
			r.Sample.Deadband += "%"
		}
	}
	if d.Store {
		r.Store = &Store{Keep: formatKeep(d.Keep)}
	}
	if d.Metric != "" {
		r.Prometheus = &Prometheus{Metric: d.Metric, Fields: d.Fields}
	}
	return r
}
