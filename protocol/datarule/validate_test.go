package datarule

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestValid(t *testing.T) {
	t.Parallel()
	rules := []protocol.DataRule{
		up("a", "", "", "#"),
		{
			Name: "b", Topics: []string{"+/x/#", "/", "ünï"}, Local: "/", Remote: "x/", QoS: 2, Priority: protocol.LowPriority,
			TTLMillis: 1, MaxBytes: MinQueueBytes, MaxAgeMillis: MaxMillis, BatchBytes: MinBatchBytes, BatchMillis: MaxBatchMillis,
			Sample: protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 0.5, Field: "/a~1b/0"},
		},
		{Name: "c", Topics: []string{"x"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 1}},
		{Name: "d", Topics: []string{"x"}, Sample: protocol.Sample{Mode: protocol.SampleChange}},
		down("e", "colonyx/", "", "x"),
	}
	for _, err := range Validate(rules) {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	rule := func(change func(*protocol.DataRule)) []protocol.DataRule {
		r := up("r", "", "", "x")
		change(&r)
		return []protocol.DataRule{r}
	}
	sample := func(s protocol.Sample) []protocol.DataRule {
		return rule(func(r *protocol.DataRule) { r.Sample = s })
	}
	topics := func(of ...string) []protocol.DataRule { return []protocol.DataRule{up("r", "", "", of...)} }
	for _, tt := range []struct {
		rules []protocol.DataRule
		want  string // in the only fault
	}{
		{make([]protocol.DataRule, MaxRules+1), "65 of them"},
		{[]protocol.DataRule{up("R", "", "", "x")}, `data rule 1: name: "R"`},
		{[]protocol.DataRule{up("r", "", "", "x"), up("r", "", "", "y")}, "taken by rule 1"},
		{topics(), `data rule "r": topics: missing`},
		{topics(make([]string, MaxTopics+1)...), "65 of them"},
		{topics(""), "empty"},
		{topics("$share/g/x"), "begins with $"},
		{topics("$SYS/#"), "begins with $"},
		{topics("a/#/b"), "# must be the last"},
		{topics("a/b#"), "whole level"},
		{topics("a+/b"), "whole level"},
		{topics("a\x00"), "null"},
		{topics("a\xff"), "UTF-8"},
		{topics(strings.Repeat("a", MaxTopicBytes+1)), "longer"},
		{topics(strings.Repeat("/", MaxLevels)), "levels"},
		{[]protocol.DataRule{up("r", "plc", "", "x")}, "local: \"plc\": want a prefix that ends in /"},
		{[]protocol.DataRule{up("r", "colony/", "", "x")}, "belong to Colony"},
		{[]protocol.DataRule{up("r", "$SYS/", "", "x")}, "belong to the broker"},
		{[]protocol.DataRule{up("r", "+/", "", "x")}, "no wildcards"},
		{[]protocol.DataRule{up("r", "", "x", "x")}, "remote: \"x\": want a prefix"},
		{[]protocol.DataRule{up("r", "", "x/#/", "x")}, "no wildcards"},
		{rule(func(r *protocol.DataRule) { r.QoS = 3 }), "qos"},
		{rule(func(r *protocol.DataRule) { r.Priority = 3 }), "priority"},
		{rule(func(r *protocol.DataRule) { r.MaxBytes = 1 }), "maxBytes"},
		{rule(func(r *protocol.DataRule) { r.MaxBytes = MaxQueueBytes + 1 }), "maxBytes"},
		{rule(func(r *protocol.DataRule) { r.BatchBytes = MaxBatchBytes + 1 }), "batchBytes"},
		{rule(func(r *protocol.DataRule) { r.BatchMillis = MaxBatchMillis + 1 }), "batchWait"},
		{rule(func(r *protocol.DataRule) { r.TTLMillis = math.MaxUint64 }), "ttl"},
		{rule(func(r *protocol.DataRule) { r.MaxAgeMillis = math.MaxUint64 }), "maxAge"},
		{sample(protocol.Sample{PeriodMillis: 1}), "sample.mode: missing"},
		{sample(protocol.Sample{Mode: "often"}), `"often" is not known`},
		{sample(protocol.Sample{Mode: protocol.SampleLast}), "sample.period: missing"},
		{sample(protocol.Sample{Mode: protocol.SampleChange, PeriodMillis: math.MaxUint64}), "10 years"},
		{sample(protocol.Sample{Mode: protocol.SampleChange, Percent: true}), "mode deadband, not for mode change"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband}), "sample.deadband"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband, Deadband: math.NaN()}), "sample.deadband"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband, Deadband: math.Inf(1)}), "sample.deadband"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 1, Field: "a"}), "JSON pointer"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 1, Field: "/~2"}), "JSON pointer"},
		{sample(protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 1, Field: "/~"}), "JSON pointer"},
		{rule(func(r *protocol.DataRule) {
			r.Down, r.Sample = true, protocol.Sample{Mode: protocol.SampleChange}
		}), "cannot sample"},
	} {
		faults := Validate(tt.rules)
		if len(faults) != 1 || !strings.Contains(faults[0].Error(), tt.want) {
			// The topics of too many rules are not looked at.
			t.Errorf("faults %v; want one with %q", faults, tt.want)
			continue
		}
		if _, err := New("s1", tt.rules); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New: %v; want kind invalid with %q", err, tt.want)
		}
	}
}

func TestEveryFault(t *testing.T) {
	t.Parallel()
	rules := []protocol.DataRule{
		{Name: "a", Topics: []string{"#/x", "$x"}, Local: "x", QoS: 9},
		{Name: "a", MaxBytes: 1},
	}
	got := fmt.Sprint(Validate(rules))
	for _, want := range []string{"#/x", "$x", "local", "qos", "taken", "topics: missing", "maxBytes"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

// Whatever passes Validate makes a table, and every name maps under its
// rule's prefix.
func FuzzValidate(f *testing.F) {
	f.Add("r", "x/#", "plc/", "y/", "plc/x/z")
	f.Fuzz(func(t *testing.T, name, filter, local, remote, message string) {
		rules := []protocol.DataRule{up(name, local, remote, filter)}
		if len(Validate(rules)) > 0 {
			return
		}
		_, to, ok := table(t, rules...).Up(message)
		if ok && (!strings.HasPrefix(to, remote) || len(to) == len(remote)) {
			t.Errorf("%q goes to %q", message, to)
		}
	})
}
