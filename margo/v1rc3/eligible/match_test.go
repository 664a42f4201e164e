package eligible

import (
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

func device(t testing.TB) v1rc3.Capabilities {
	t.Helper()
	b, err := os.ReadFile("../testdata/capabilities-standalone.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := v1rc3.ParseCapabilities(b)
	if err != nil {
		t.Fatal(err)
	}
	c.Labels = map[string]any{
		"site.example/line": "A", "rank": 3.5, "spare": true, "tags": []string{"wet", "hot"}, "slots": []float64{1, 2},
	}
	return *c
}

func property(e ...v1rc3.Expression) *v1rc3.Constraints {
	return &v1rc3.Constraints{Rules: []v1rc3.Rule{{PropertySelector: &v1rc3.Selector{MatchExpressions: e}}}}
}

func label(e ...v1rc3.Expression) *v1rc3.Constraints {
	return &v1rc3.Constraints{Rules: []v1rc3.Rule{{LabelSelector: &v1rc3.Selector{MatchExpressions: e}}}}
}

func item(op v1rc3.Operator, key string, e ...v1rc3.Expression) *v1rc3.Constraints {
	return property(v1rc3.Expression{Key: key, Operator: op, ItemSelector: &v1rc3.Selector{MatchExpressions: e}})
}

func capacity(cores float64, memory, storage string, architectures ...string) *v1rc3.Constraints {
	return &v1rc3.Constraints{Capacity: &v1rc3.Capacity{
		CPU: &v1rc3.CPURequirement{Cores: cores, Architectures: architectures}, Memory: memory, Storage: storage,
	}}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	gpu := v1rc3.Expression{Key: "/type", Operator: v1rc3.In, Values: []any{"gpu"}}
	nvidia := v1rc3.Expression{Key: "/manufacturer", Operator: v1rc3.In, Values: []any{"NVIDIA"}}
	amd := v1rc3.Expression{Key: "/manufacturer", Operator: v1rc3.In, Values: []any{"AMD"}}
	for name, c := range map[string]struct {
		constraints *v1rc3.Constraints
		why         string // empty: it matches
	}{
		"none":                   {nil, ""},
		"empty":                  {&v1rc3.Constraints{}, ""},
		"capacity":               {capacity(24, "59Gi", "1Ti", "arm64", "amd64"), ""},
		"cores":                  {capacity(24.5, "", ""), "it needs 24.5 cores in one CPU, the device has 24"},
		"architecture":           {capacity(1, "", "", "arm64"), "it needs architecture arm64, the device has amd64"},
		"memory":                 {capacity(1, "60Gi", ""), "it needs 60Gi of memory, the device has 59 Gi"},
		"storage":                {capacity(1, "", "2Ti"), "it needs 2Ti of storage, the device has 1862 Gi"},
		"In a list":              {property(v1rc3.Expression{Key: "/supportedRuntimes", Operator: v1rc3.In, Values: []any{"oci", "x"}}), ""},
		"In is case-sensitive":   {property(v1rc3.Expression{Key: "/supportedRuntimes", Operator: v1rc3.In, Values: []any{"OCI"}}), `/supportedRuntimes In OCI, the device has ["oci"]`},
		"In an absent key":       {property(v1rc3.Expression{Key: "/nothing", Operator: v1rc3.In, Values: []any{"x"}}), "the device does not have it"},
		"In a list of objects":   {property(v1rc3.Expression{Key: "/cpus", Operator: v1rc3.In, Values: []any{"x"}}), "/cpus In x"},
		"NotIn":                  {property(v1rc3.Expression{Key: "/vendor", Operator: v1rc3.NotIn, Values: []any{"Acme"}}), ""},
		"NotIn, is in":           {label(v1rc3.Expression{Key: "tags", Operator: v1rc3.NotIn, Values: []any{"hot"}}), "label tags NotIn hot"},
		"NotIn an absent key":    {label(v1rc3.Expression{Key: "none", Operator: v1rc3.NotIn, Values: []any{"x"}}), "label none NotIn x, the device does not have it"},
		"NotIn objects":          {property(v1rc3.Expression{Key: "/cpus", Operator: v1rc3.NotIn, Values: []any{"x"}}), "/cpus NotIn x"},
		"Exists":                 {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.Exists}), ""},
		"Exists, absent":         {label(v1rc3.Expression{Key: "Rank", Operator: v1rc3.Exists}), "label Rank Exists"},
		"DoesNotExist":           {property(v1rc3.Expression{Key: "/peripherals/7", Operator: v1rc3.DoesNotExist}), ""},
		"DoesNotExist, is there": {property(v1rc3.Expression{Key: "/peripherals/0/type", Operator: v1rc3.DoesNotExist}), `the device has "gpu"`},
		"Gt":                     {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.Gt, Values: []any{"3"}}), ""},
		"Gt, equal":              {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.Gt, Values: []any{3.5}}), "label rank Gt 3.5"},
		"Lt":                     {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.Lt, Values: []any{int64(4)}}), ""},
		"Lt of a size":           {property(v1rc3.Expression{Key: "/memory", Operator: v1rc3.Lt, Values: []any{int64(99)}}), "/memory Lt 99"},
		"number is not text":     {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.In, Values: []any{"3.5"}}), "label rank In 3.5"},
		"bool":                   {label(v1rc3.Expression{Key: "spare", Operator: v1rc3.In, Values: []any{true}}), ""},
		"list of numbers":        {label(v1rc3.Expression{Key: "slots", Operator: v1rc3.In, Values: []any{int64(2)}}), ""},
		"ContainsAll":            {item(v1rc3.ContainsAll, "/peripherals", gpu, nvidia), ""},
		"ContainsAll, one fails": {item(v1rc3.ContainsAll, "/peripherals", gpu, amd), "/peripherals ContainsAll (/type In gpu; /manufacturer In AMD)"},
		"ContainsAny":            {item(v1rc3.ContainsAny, "/peripherals", gpu, amd), ""},
		"ContainsAny, none":      {item(v1rc3.ContainsAny, "/peripherals", amd), "/peripherals ContainsAny"},
		"Contains on a scalar":   {item(v1rc3.ContainsAny, "/vendor", gpu), "/vendor ContainsAny"},
		"ContainsAll across elements does not count": {item(v1rc3.ContainsAll, "/interfaces",
			v1rc3.Expression{Key: "/type", Operator: v1rc3.In, Values: []any{"wifi"}}, v1rc3.Expression{Key: "/type", Operator: v1rc3.In, Values: []any{"ethernet"}}), "/interfaces ContainsAll"},
		"expressions are joined with AND": {label(v1rc3.Expression{Key: "rank", Operator: v1rc3.Exists}, v1rc3.Expression{Key: "none", Operator: v1rc3.Exists}), "label none Exists"},
		"selectors are joined with AND": {&v1rc3.Constraints{Rules: []v1rc3.Rule{{
			PropertySelector: &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "/vendor", Operator: v1rc3.Exists}}},
			LabelSelector:    &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "none", Operator: v1rc3.Exists}}},
		}}}, "rule 1: label none Exists"},
		"rules are joined with OR": {&v1rc3.Constraints{Rules: []v1rc3.Rule{
			{LabelSelector: &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "none", Operator: v1rc3.Exists}}}},
			{LabelSelector: &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "rank", Operator: v1rc3.Exists}}}},
		}}, ""},
		"no rule holds": {&v1rc3.Constraints{Rules: []v1rc3.Rule{
			{LabelSelector: &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "a", Operator: v1rc3.Exists}}}},
			{LabelSelector: &v1rc3.Selector{MatchExpressions: []v1rc3.Expression{{Key: "b", Operator: v1rc3.Exists}}}},
		}}, "no eligibility rule holds: rule 1: label a Exists, the device does not have it; rule 2: label b Exists, the device does not have it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, why := Match(c.constraints, device(t))
			if ok != (c.why == "") || !strings.Contains(why, c.why) || ok && why != "" {
				t.Errorf("Match = %v, %q; want %q", ok, why, c.why)
			}
		})
	}
}

func TestMatchDoesNotAddUpCPUs(t *testing.T) {
	t.Parallel()
	d := device(t)
	d.Properties.CPUs = []v1rc3.CPU{{Cores: 2, Architecture: "amd64"}, {Cores: 2, Architecture: "amd64"}, {Cores: 8, Architecture: "arm64"}}
	if ok, why := Match(capacity(3, "", "", "amd64"), d); ok || why != "it needs 3 cores in one CPU, the device has 2" {
		t.Errorf("Match = %v, %q", ok, why)
	}
	d.Properties.Memory = "sixteen_gb"
	if ok, why := Match(capacity(1, "1Gi", ""), d); ok || !strings.Contains(why, "is not a size") {
		t.Errorf("Match = %v, %q", ok, why)
	}
}
