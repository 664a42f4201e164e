package document

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// IsNull reports whether null stands there, or nothing after the key.
func (v Value) IsNull() bool {
	return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null"
}

// Kind names what stands there, for a message.
func (v Value) Kind() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return strings.TrimPrefix(v.node.ShortTag(), "!!") + " " + v.node.Value
	}
}

// List reads a sequence.
func (v Value) List() []Value {
	if !v.Exists() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.Report("want a list, got %s", v.Kind())
		return nil
	}
	items := make([]Value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = v.at(n, fmt.Sprintf("%s[%d]", v.path, i)).deref()
	}
	return items
}

// Some reads a sequence that has at least one item.
func (v Value) Some() []Value {
	items := v.List()
	if len(items) == 0 && v.Exists() {
		v.Note("want at least one")
	}
	return items
}

// Text reads a string.
func (v Value) Text() string {
	if !v.Exists() {
		return ""
	}
	if v.node.Kind != yaml.ScalarNode {
		v.Report("want a text, got %s", v.Kind())
		return ""
	}
	if tag := v.node.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		v.Report("want a text, got %s; put it in quotes", v.Kind())
		return ""
	}
	return v.node.Value
}

// Match reads a string that a pattern matches.
func (v Value) Match(pattern *regexp.Regexp, want string) string {
	s := v.Text()
	if v.Exists() && !pattern.MatchString(s) {
		v.Report("%q: want %s", s, want)
	}
	return s
}

// Name reads a string that is not empty.
func (v Value) Name() string {
	s := v.Text()
	if v.Exists() && strings.TrimSpace(s) == "" {
		v.Report("want a text that is not empty")
	}
	return s
}

// OneOf reads a string of a closed list.
func (v Value) OneOf(words ...string) string {
	s := v.Text()
	if v.Exists() && !slices.Contains(words, s) {
		v.Report("%q: want one of %s", s, strings.Join(words, ", "))
	}
	return s
}

// Texts reads a list of strings.
func (v Value) Texts() []string {
	var all []string
	for _, item := range v.List() {
		all = append(all, item.Name())
	}
	return all
}

// Bool reads true or false.
func (v Value) Bool() *bool {
	if !v.Exists() {
		return nil
	}
	b, ok := v.Scalar().(bool)
	if !ok {
		v.Report("want true or false, got %s", v.Kind())
		return nil
	}
	return &b
}

// Number reads an integer or a decimal number.
func (v Value) Number() *float64 {
	if !v.Exists() {
		return nil
	}
	var f float64
	switch n := v.Scalar().(type) {
	case int64:
		f = float64(n)
	case float64:
		f = n
	default:
		v.Report("want a number, got %s", v.Kind())
		return nil
	}
	return &f
}

// Count reads an integer of zero or more.
func (v Value) Count() *int64 {
	if !v.Exists() {
		return nil
	}
	n, ok := v.Scalar().(int64)
	if !ok || n < 0 {
		v.Report("want an integer of 0 or more, got %s", v.Kind())
		return nil
	}
	return &n
}

// Uint32 reads an integer from 0 to 2^32-1.
func (v Value) Uint32() uint32 {
	n := v.Count()
	if n == nil {
		return 0
	}
	if *n > math.MaxUint32 {
		v.Report("%d is too large", *n)
		return 0
	}
	return uint32(*n)
}

// StringMap reads a mapping of texts; nil where it is empty.
func (v Value) StringMap() map[string]string {
	o := v.Object()
	if len(o.Keys) == 0 {
		return nil
	}
	m := make(map[string]string, len(o.Keys))
	for _, key := range o.Keys {
		m[key] = o.Fields[key].Text()
	}
	return m
}

// Scalar returns a string, int64, float64 or bool; nil for anything else.
func (v Value) Scalar() any {
	if v.node.Kind != yaml.ScalarNode {
		return nil
	}
	var x any
	if tag := v.node.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
		return v.node.Value
	} else if err := v.node.Decode(&x); err != nil {
		return nil
	}
	switch n := x.(type) {
	case int:
		return int64(n)
	case int64, bool:
		return n
	case float64:
		if !math.IsNaN(n) && !math.IsInf(n, 0) {
			return n
		}
	}
	return nil
}
