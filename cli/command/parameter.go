package command

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// ParameterValue returns the value of a parameter: a list for a YAML list of scalars, such
// as [a, b], and else the text as it stands. The CO makes of a text what the schema of the
// parameter says; to read it as YAML here would change it, 1.10 to 1.1 and 0644 to 420.
func ParameterValue(text string) any {
	if !strings.HasPrefix(text, "[") {
		return text
	}
	var list []yaml.Node
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		return text
	}
	values := make([]any, len(list))
	for i, n := range list {
		if n.Kind != yaml.ScalarNode {
			return text
		}
		values[i] = n.Value
	}
	return values
}
