// Package rawyaml keeps a part of a YAML document as it was written.
package rawyaml

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v4"
)

// A Value is any YAML, which is passed on as it was written. It is not changed once
// it was made, and may be used concurrently.
type Value struct{ node *yaml.Node }

// New returns a copy of n that stands on its own: aliases are replaced by what they
// name, comments are left out. The document must not hold an alias of itself.
func New(n *yaml.Node) Value { return Value{standalone(n)} }

func standalone(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	c := &yaml.Node{Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: n.Value}
	for _, child := range n.Content {
		c.Content = append(c.Content, standalone(child))
	}
	return c
}

// MarshalYAML returns the value as it was written. The encoder gets a copy, because
// it changes what it encodes.
func (v Value) MarshalYAML() (any, error) { return standalone(v.node), nil }

// MarshalJSON returns the value as JSON where it has a form in it, else as the text
// of the YAML.
func (v Value) MarshalJSON() ([]byte, error) {
	var x any
	if err := v.node.Decode(&x); err == nil {
		if b, err := json.Marshal(x); err == nil {
			return b, nil
		}
	}
	text, err := yaml.Dump(standalone(v.node))
	if err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}
	return json.Marshal(string(text))
}

// Equal reports whether two values are written the same.
func (v Value) Equal(other Value) bool { return same(v.node, other.node) }

func same(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || a.ShortTag() != b.ShortTag() || a.Value != b.Value || len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}
