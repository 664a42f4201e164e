package rawyaml

import (
	"testing"

	"go.yaml.in/yaml/v4"
)

// A directive of a later minor version of YAML is read, and every line stays where it is.
func TestAnyMinor(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                 "",
		"a: 1\n":                           "a: 1\n",
		"%YAML 1.2\n---\na: 1\n":           "%YAML 1.1\n---\na: 1\n",
		"# c\n\n%YAML\t1.2 # d\n---\na: 1": "# c\n\n%YAML\t1.1 # d\n---\na: 1",
		"\ufeff%YAML 1.12\r\n---\r\na: 1":  "\ufeff%YAML 1.1\r\n---\r\na: 1",
		"%TAG ! x:\n%YAML 1.2\n--- a":      "%TAG ! x:\n%YAML 1.1\n--- a",
		"%YAML 2.0\n---\na: 1\n":           "%YAML 2.0\n---\na: 1\n",
		"---\na: |\n  %YAML 1.2\n":         "---\na: |\n  %YAML 1.2\n",
		"%YAML 1.2":                        "%YAML 1.1",
	} {
		if got := string(AnyMinor([]byte(raw))); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
	var root yaml.Node
	if err := yaml.Load(AnyMinor([]byte("%YAML 1.2\n---\na: 1\n")), &root); err != nil || root.Content[0].Content[0].Line != 3 {
		t.Errorf("%v: a is in line %d, want 3", err, root.Content[0].Content[0].Line)
	}
}
