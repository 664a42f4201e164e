package v1rc3

import (
	"strings"
	"testing"
)

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
