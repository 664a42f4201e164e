package v1rc3

import (
	"strings"
	"testing"
)

func device(t testing.TB) Capabilities {
	t.Helper()
	c, err := ParseCapabilities(sample(t, "capabilities-standalone.json"))
	if err != nil {
		t.Fatal(err)
	}
	c.Labels = map[string]any{
		"site.example/line": "A", "rank": 3.5, "spare": true, "tags": []string{"wet", "hot"}, "slots": []float64{1, 2},
	}
	return *c
}

func property(e ...Expression) *Constraints {
	return &Constraints{Rules: []Rule{{PropertySelector: &Selector{e}}}}
}

func label(e ...Expression) *Constraints {
	return &Constraints{Rules: []Rule{{LabelSelector: &Selector{e}}}}
}

func item(op Operator, key string, e ...Expression) *Constraints {
	return property(Expression{Key: key, Operator: op, ItemSelector: &Selector{e}})
}

func capacity(cores float64, memory, storage string, architectures ...string) *Constraints {
	return &Constraints{Capacity: &Capacity{
		CPU: &CPURequirement{Cores: cores, Architectures: architectures}, Memory: memory, Storage: storage,
	}}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	gpu := Expression{Key: "/type", Operator: In, Values: []any{"gpu"}}
	nvidia := Expression{Key: "/manufacturer", Operator: In, Values: []any{"NVIDIA"}}
	amd := Expression{Key: "/manufacturer", Operator: In, Values: []any{"AMD"}}
	for name, c := range map[string]struct {
		constraints *Constraints
		why         string // empty: it matches
	}{
		"none":                   {nil, ""},
		"empty":                  {&Constraints{}, ""},
		"capacity":               {capacity(24, "59Gi", "1Ti", "arm64", "amd64"), ""},
		"cores":                  {capacity(24.5, "", ""), "it needs 24.5 cores in one CPU, the device has 24"},
		"architecture":           {capacity(1, "", "", "arm64"), "it needs architecture arm64, the device has amd64"},
		"memory":                 {capacity(1, "60Gi", ""), "it needs 60Gi of memory, the device has 59 Gi"},
		"storage":                {capacity(1, "", "2Ti"), "it needs 2Ti of storage, the device has 1862 Gi"},
		"In a list":              {property(Expression{Key: "/supportedRuntimes", Operator: In, Values: []any{"oci", "x"}}), ""},
		"In is case-sensitive":   {property(Expression{Key: "/supportedRuntimes", Operator: In, Values: []any{"OCI"}}), `/supportedRuntimes In OCI, the device has ["oci"]`},
		"In an absent key":       {property(Expression{Key: "/nothing", Operator: In, Values: []any{"x"}}), "the device does not have it"},
		"In a list of objects":   {property(Expression{Key: "/cpus", Operator: In, Values: []any{"x"}}), "/cpus In x"},
		"NotIn":                  {property(Expression{Key: "/vendor", Operator: NotIn, Values: []any{"Acme"}}), ""},
		"NotIn, is in":           {label(Expression{Key: "tags", Operator: NotIn, Values: []any{"hot"}}), "label tags NotIn hot"},
		"NotIn an absent key":    {label(Expression{Key: "none", Operator: NotIn, Values: []any{"x"}}), "label none NotIn x, the device does not have it"},
		"NotIn objects":          {property(Expression{Key: "/cpus", Operator: NotIn, Values: []any{"x"}}), "/cpus NotIn x"},
		"Exists":                 {label(Expression{Key: "rank", Operator: Exists}), ""},
		"Exists, absent":         {label(Expression{Key: "Rank", Operator: Exists}), "label Rank Exists"},
		"DoesNotExist":           {property(Expression{Key: "/peripherals/7", Operator: DoesNotExist}), ""},
		"DoesNotExist, is there": {property(Expression{Key: "/peripherals/0/type", Operator: DoesNotExist}), `the device has "gpu"`},
		"Gt":                     {label(Expression{Key: "rank", Operator: Gt, Values: []any{"3"}}), ""},
		"Gt, equal":              {label(Expression{Key: "rank", Operator: Gt, Values: []any{3.5}}), "label rank Gt 3.5"},
		"Lt":                     {label(Expression{Key: "rank", Operator: Lt, Values: []any{int64(4)}}), ""},
		"Lt of a size":           {property(Expression{Key: "/memory", Operator: Lt, Values: []any{int64(99)}}), "/memory Lt 99"},
		"number is not text":     {label(Expression{Key: "rank", Operator: In, Values: []any{"3.5"}}), "label rank In 3.5"},
		"bool":                   {label(Expression{Key: "spare", Operator: In, Values: []any{true}}), ""},
		"list of numbers":        {label(Expression{Key: "slots", Operator: In, Values: []any{int64(2)}}), ""},
		"ContainsAll":            {item(ContainsAll, "/peripherals", gpu, nvidia), ""},
		"ContainsAll, one fails": {item(ContainsAll, "/peripherals", gpu, amd), "/peripherals ContainsAll (/type In gpu; /manufacturer In AMD)"},
		"ContainsAny":            {item(ContainsAny, "/peripherals", gpu, amd), ""},
		"ContainsAny, none":      {item(ContainsAny, "/peripherals", amd), "/peripherals ContainsAny"},
		"Contains on a scalar":   {item(ContainsAny, "/vendor", gpu), "/vendor ContainsAny"},
		"ContainsAll across elements does not count": {item(ContainsAll, "/interfaces",
			Expression{Key: "/type", Operator: In, Values: []any{"wifi"}}, Expression{Key: "/type", Operator: In, Values: []any{"ethernet"}}), "/interfaces ContainsAll"},
		"expressions are joined with AND": {label(Expression{Key: "rank", Operator: Exists}, Expression{Key: "none", Operator: Exists}), "label none Exists"},
		"selectors are joined with AND": {&Constraints{Rules: []Rule{{
			PropertySelector: &Selector{[]Expression{{Key: "/vendor", Operator: Exists}}},
			LabelSelector:    &Selector{[]Expression{{Key: "none", Operator: Exists}}},
		}}}, "rule 1: label none Exists"},
		"rules are joined with OR": {&Constraints{Rules: []Rule{
			{LabelSelector: &Selector{[]Expression{{Key: "none", Operator: Exists}}}},
			{LabelSelector: &Selector{[]Expression{{Key: "rank", Operator: Exists}}}},
		}}, ""},
		"no rule holds": {&Constraints{Rules: []Rule{
			{LabelSelector: &Selector{[]Expression{{Key: "a", Operator: Exists}}}},
			{LabelSelector: &Selector{[]Expression{{Key: "b", Operator: Exists}}}},
		}}, "no eligibility rule holds: rule 1: label a Exists, the device does not have it; rule 2: label b Exists, the device does not have it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, why := c.constraints.Match(device(t))
			if ok != (c.why == "") || !strings.Contains(why, c.why) || ok && why != "" {
				t.Errorf("Match = %v, %q; want %q", ok, why, c.why)
			}
		})
	}
}

func TestMatchDoesNotAddUpCPUs(t *testing.T) {
	t.Parallel()
	d := device(t)
	d.Properties.CPUs = []CPU{{Cores: 2, Architecture: "amd64"}, {Cores: 2, Architecture: "amd64"}, {Cores: 8, Architecture: "arm64"}}
	if ok, why := capacity(3, "", "", "amd64").Match(d); ok || why != "it needs 3 cores in one CPU, the device has 2" {
		t.Errorf("Match = %v, %q", ok, why)
	}
	d.Properties.Memory = "sixteen_gb"
	if ok, why := capacity(1, "1Gi", "").Match(d); ok || !strings.Contains(why, "is not a size") {
		t.Errorf("Match = %v, %q", ok, why)
	}
}

func TestParseCapabilities(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"capabilities-standalone.json", "capabilities-gateway-nonhosting.json", "capabilities-gateway-child.json"} {
		if _, err := ParseCapabilities(sample(t, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := string(sample(t, "capabilities-standalone.json"))
	for name, c := range map[string]struct{ old, new, want string }{
		"runtime":       {`"oci"`, `"runc"`, `properties.supportedRuntimes[0]: "runc": want one of oci, custom`},
		"no cores":      {`"cores": 24,`, ``, "properties.cpus[0].cores: required, and missing"},
		"unknown field": {`"properties"`, `"role": 1, "properties"`, "role: unknown key"},
		"mixed label":   {`"properties"`, `"labels": {"a": ["x", 1]}, "properties"`, "labels.a: want a list of texts or of numbers, not of both"},
		"not JSON":      {`"properties"`, `properties`, "not valid JSON"},
	} {
		_, err := ParseCapabilities([]byte(strings.Replace(good, c.old, c.new, 1)))
		if got := strings.Join(problemLines(t, err), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s: problems %q, want %q", name, got, c.want)
		}
	}
}

func TestConstraintProblems(t *testing.T) {
	t.Parallel()
	const head = "    deviceConstraints:\n      eligibilityRules:\n        - propertySelector:\n            matchExpressions:\n"
	for expression, want := range map[string]string{
		"{key: vendor, operator: Exists}":                     "want a JSON pointer",
		"{key: /vendor, operator: Equals}":                    "want one of In, NotIn, Exists",
		"{key: /vendor, operator: In}":                        "values: required, and missing",
		"{key: /vendor, operator: In, values: []}":            "want at least one",
		"{key: /vendor, operator: In, values: [a, 1]}":        "several types (number, text)",
		"{key: /vendor, operator: In, values: [true, false]}": "exactly one true or false",
		"{key: /vendor, operator: Exists, values: [a]}":       "Exists does not take this",
		"{key: /vendor, operator: Gt, values: [a]}":           "Gt takes exactly one number",
		"{key: /vendor, operator: Gt, values: [1, 2]}":        "Gt takes exactly one number",
		"{key: /cpus, operator: ContainsAll}":                 "itemSelector: required, and missing",
		"{key: /cpus, operator: ContainsAll, values: [a], itemSelector: {matchExpressions: [{key: /cores, operator: Exists}]}}":                                                   "ContainsAll does not take this",
		"{key: /cpus, operator: In, values: [a], itemSelector: {matchExpressions: [{key: /cores, operator: Exists}]}}":                                                            "In does not take this",
		"{key: /cpus, operator: ContainsAny, itemSelector: {matchExpressions: [{key: cores, operator: Exists}]}}":                                                                 "want a JSON pointer",
		"{key: /a, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /b, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /c, operator: Exists}]}}]}}": "works on lists of the device's properties only",
	} {
		doc := strings.Replace(small, "parameters:\n", head+"              - "+expression+"\nparameters:\n", 1)
		_, err := ParseApplication([]byte(doc))
		if got := strings.Join(problemLines(t, err), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: problems %q, want %q", expression, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"1Ki": 1 << 10, "59 Gi": 59 << 30, " 2 Ti ": 2 << 40, "15Ei": 15 << 60, "0Mi": 0,
	} {
		if got, ok := ParseSize(text); !ok || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "16", "16GB", "-1Gi", "1.5Gi", "16Ei", "sixteen_gb"} {
		if got, ok := ParseSize(text); ok {
			t.Errorf("ParseSize(%q) = %d, want none", text, got)
		}
	}
}
