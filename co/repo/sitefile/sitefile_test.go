package sitefile_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const day = uint64(24 * time.Hour / time.Millisecond)

func example(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile("../../../examples/sites/berlin/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestExample(t *testing.T) {
	t.Parallel()
	got, err := sitefile.Parse("berlin", example(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []fleet.DataRule{
		{
			DataRule: protocol.DataRule{Name: "alarms", Topics: []string{"alarms/#"}, QoS: 1, Priority: protocol.HighPriority},
			Store:    true, Keep: 365 * 24 * time.Hour,
		},
		{
			DataRule: protocol.DataRule{
				Name: "temperatures", Topics: []string{"line/+/temperature"}, QoS: 1, KeepQoS0: true, TTLMillis: 7 * day,
				MaxBytes: 256 << 20, BatchBytes: 512 << 10, BatchMillis: 2000,
				Sample: protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 0.5, PeriodMillis: 600_000, Field: "/value"},
			},
			Store: true, Keep: 30 * 24 * time.Hour, Metric: "line_temperature_celsius", Fields: []string{"/value"},
		},
		{DataRule: protocol.DataRule{
			Name: "pictures", Topics: []string{"+/jpeg"}, Local: "cameras/", Remote: "cameras/", QoS: 1, Priority: protocol.LowPriority,
			MaxBytes: 2 << 30, MaxAgeMillis: day, Uncompressed: true,
		}},
		{DataRule: protocol.DataRule{
			Name: "recipes", Down: true, Topics: []string{"#"}, Local: "mes/recipes/", Remote: "recipes/", QoS: 1, TTLMillis: day / 2,
		}},
	}
	if d := cmp.Diff(want, got.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
}

// TestWrittenRulesReadTheSame writes what was read and reads it again.
func TestWrittenRulesReadTheSame(t *testing.T) {
	t.Parallel()
	want, err := sitefile.Parse("berlin", example(t))
	if err != nil {
		t.Fatal(err)
	}
	want.Rules = append(want.Rules, fleet.DataRule{DataRule: protocol.DataRule{
		Name: "odd", Topics: []string{"a: b/#", "- x", "+"}, TTLMillis: 90_061_001, MaxBytes: 65_537, BatchBytes: 1025,
		Sample: protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 2.25, Percent: true},
	}, Store: true, Metric: "m"}, fleet.DataRule{DataRule: protocol.DataRule{
		Name: "last", Topics: []string{"x"}, QoS: 2, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 1500},
	}, Store: true, Keep: 1500 * time.Millisecond})
	raw, err := sitefile.Marshal("berlin", sitefile.Rules(want.Rules), want.Further())
	if err != nil {
		t.Fatal(err)
	}
	got, err := sitefile.Parse("berlin", raw)
	if err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rules (-want +got):\n%s\n%s", d, raw)
	}
	for _, text := range []string{"ttl: 1d1h1m1s1ms", "maxBytes: 65537B", "deadband: 2.25%", "qos: 0", "keep: 1s500ms", "bytes: 512KiB"} {
		if !strings.Contains(string(raw), text) {
			t.Errorf("no %q in\n%s", text, raw)
		}
	}
}

func TestNoRules(t *testing.T) {
	t.Parallel()
	raw, err := sitefile.Marshal("berlin", nil, sitefile.Further{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := sitefile.Parse("berlin", raw)
	if err != nil || len(file.Rules)+len(file.Devices) != 0 {
		t.Errorf("%v, %v of\n%s", file, err, raw)
	}
}

const head = "apiVersion: colony/v1\nkind: Site\nmetadata: {id: berlin}\nspec:\n  data:\n    rules:\n"

// rule makes a file of one rule, which begins in line 7, with more keys.
func rule(more string) string {
	return head + "      - name: r\n        direction: up\n        topics: [a]\n" + more
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file string
		want []string
	}{
		"empty":           {" \n", []string{"the file is empty: to have no rules, write rules: [] below spec.data"}},
		"no YAML":         {"a: [", []string{"not valid YAML"}},
		"a list":          {"- a", []string{"line 1: want a mapping, got a list"}},
		"nothing said":    {"{}", []string{"line 1: apiVersion: required, and missing", "line 1: kind: required", "line 1: metadata: required"}},
		"other version":   {strings.Replace(head, "colony/v1", "colony/v2", 1) + "      []", []string{`line 1: apiVersion: "colony/v2": want colony/v1; `}},
		"other kind":      {strings.Replace(head, "Site", "Node", 1) + "      []", []string{`line 2: kind: "Node": want Site`}},
		"other site":      {strings.Replace(head, "berlin", "munich", 1) + "      []", []string{`line 3: metadata.id: "munich": want berlin; the file is in the folder of that site`}},
		"unknown key":     {rule("        tll: 7d\n"), []string{"line 10: spec.data.rules[0].tll: unknown key; known here: name, direction"}},
		"unknown deep":    {rule("        batch: {size: 1}\n"), []string{"line 10: spec.data.rules[0].batch.size: unknown key; known here: bytes, wait, compression"}},
		"key twice":       {rule("        qos: 1\n        qos: 2\n"), []string{"line 11: spec.data.rules[0].qos: the key stands twice; keep one"}},
		"no value":        {rule("        store:\n"), []string{"line 10: spec.data.rules[0].store: has no value"}},
		"alias":           {rule("        local: &x a/\n        remote: *x\n"), []string{"line 11: spec.data.rules[0].remote: want a text, got an alias, which is not read here"}},
		"several at once": {rule("        ttl: soon\n        maxBytes: much\n        qos: 3\n"), []string{`line 10: spec.data.rules[0].ttl: "soon": want a duration`, `line 11: spec.data.rules[0].maxBytes: "much": want a size`, "line 12: spec.data.rules[0].qos: 3: want 0, 1 or 2"}},
		"missing keys":    {head + "      - {}\n", []string{"line 7: spec.data.rules[0].name: required", "rules[0].direction: required", "rules[0].topics: required"}},
		"direction":       {strings.Replace(rule(""), "up", "sideways", 1), []string{`line 8: spec.data.rules[0].direction: "sideways": want one of up, down`}},
		"number as text":  {strings.Replace(rule(""), "name: r", "name: 7", 1), []string{"line 7: spec.data.rules[0].name: want a text, got int 7; put it in quotes"}},
		"ttl as number":   {rule("        ttl: 7\n"), []string{"line 10: spec.data.rules[0].ttl: want a duration such as 30s, 12h or 7d, got int 7"}},
		"negative":        {rule("        ttl: -7d\n"), []string{`"-7d": want a duration`}},
		"huge":            {rule("        ttl: 99999999999999w\n"), []string{"want a duration"}},
		"filter":          {rule("        remote: x\n") + "      - {name: s, direction: up, topics: [a, 'b#']}\n", []string{"line 10: spec.data.rules[0].remote: ", "line 11: spec.data.rules[1].topics: \"b#\": a wildcard must be a whole level"}},
		"name":            {strings.Replace(rule(""), "name: r", "name: R!", 1), []string{`line 7: spec.data.rules[0].name: "R!": want 1 to 63 of a-z`}},
		"batch bound":     {rule("        batch: {bytes: 8GiB, wait: 2h}\n"), []string{"line 10: spec.data.rules[0].batch.bytes: ", "line 10: spec.data.rules[0].batch.wait: "}},
		"name twice":      {rule("") + "      - {name: r, direction: down, topics: [b]}\n", []string{`line 10: spec.data.rules[1].name: "r" is the name of rule 1 of the list already`}},
		"deadband":        {rule("        sample: {mode: deadband, deadband: wide}\n"), []string{`line 10: spec.data.rules[0].sample.deadband: "wide": want a number above 0`}},
		"deadband none":   {rule("        sample: {mode: deadband}\n"), []string{"line 10: spec.data.rules[0].sample.deadband: 0: want"}},
		"period none":     {rule("        sample: {mode: last}\n"), []string{"line 10: spec.data.rules[0].sample.period: missing"}},
		"no store":        {rule("        prometheus: {metric: m}\n"), []string{"line 10: spec.data.rules[0].prometheus: needs store, because it is sent from there: add store: {keep: 7d}"}},
		"metric":          {rule("        store: {}\n        prometheus: {metric: 9-x, fields: [value]}\n"), []string{`line 11: spec.data.rules[0].prometheus.metric: "9-x": want the name`, `line 11: spec.data.rules[0].prometheus.fields[0]: "value": want a JSON pointer (RFC 6901), such as /temperature`}},
		"down and stored": {strings.Replace(rule("        store: {}\n"), "up", "down", 1), []string{"line 10: spec.data.rules[0].store: only for a rule that goes up; remove it"}},
		"keep":            {rule("        store: {keep: 1000w}\n"), []string{"line 10: spec.data.rules[0].store.keep: want at most 10 years"}},
		"too large":       {strings.Repeat("#", sitefile.MaxBytes+1), []string{"the file has 262145 bytes, the limit is 262144"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := sitefile.Parse("berlin", []byte(tt.file))
			if _, ok := errors.AsType[v1rc3.Problems](err); !ok || got.Rules != nil {
				t.Fatalf("%v, %v; want problems", got, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got\n%v\nwant %q", err, want)
				}
			}
			if n := strings.Count(err.Error(), "\n") + 1; n > max(len(tt.want), 1) {
				t.Errorf("%d problems, want %d:\n%v", n, len(tt.want), err)
			}
		})
	}
}

func TestManyRules(t *testing.T) {
	t.Parallel()
	file := head
	for i := range 65 {
		file += "      - {name: r" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + ", direction: up, topics: [a]}\n"
	}
	_, err := sitefile.Parse("berlin", []byte(file))
	if err == nil || !strings.Contains(err.Error(), "spec.data.rules: 65 rules: a site has at most 64") {
		t.Errorf("got %v", err)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	if folder, ok := sitefile.SiteOf(sitefile.Path("berlin")); !ok || folder != "berlin" {
		t.Errorf("got %q, %t", folder, ok)
	}
	for _, p := range []string{"sites/site.yaml", "sites/a/b/site.yaml", "deployments/a/site.yaml", "sites/a/site.yml"} {
		if folder, ok := sitefile.SiteOf(p); ok {
			t.Errorf("%s is said to be of %q", p, folder)
		}
	}
}

// FuzzParse checks that no document stops the reader, and that what it accepts it
// can write.
func FuzzParse(f *testing.F) {
	f.Add([]byte(rule("        ttl: 7d\n        sample: {mode: deadband, deadband: 2%}\n")))
	f.Add([]byte("a: &b [*b]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		want, err := sitefile.Parse("berlin", raw)
		if err != nil {
			return
		}
		again, err := sitefile.Marshal("berlin", sitefile.Rules(want.Rules), want.Further())
		if err != nil {
			t.Fatal(err)
		}
		got, err := sitefile.Parse("berlin", again)
		if err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		if d := cmp.Diff(want, got); d != "" && len(want.Rules)+len(want.Devices) > 0 {
			t.Errorf("(-read +written)\n%s", d)
		}
	})
}
