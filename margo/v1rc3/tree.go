package v1rc3

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/colonyfleet/colony/margo/rawyaml"
)

// The bounds of a document. They are far above any real one, and keep the work
// that a hostile one causes small.
const (
	MaxDocument = 1 << 20 // bytes
	maxNodes    = 20_000  // with every alias expanded
	maxDepth    = 40
)

var (
	extensionKey = regexp.MustCompile(`^x-[a-z][a-z0-9-]*-extensions$`)
	placeholder  = regexp.MustCompile(`\{\{[^{}]*\}\}`)
)

// A document is one YAML document while it is read: its problems, and the nodes
// that were reported already, so that one mistake makes one problem.
type document struct {
	problems Problems
	reported map[*yaml.Node]bool
	nodes    int
}

// A value is a node of a document with its path. The node is nil where the
// document does not have the value: such a value reads as zero without a problem.
type value struct {
	doc  *document
	node *yaml.Node
	path string
}

// read parses raw. Without an error the tree is bounded, has string keys only and
// no key twice; what of that fails short of the syntax is in document.problems.
func read(raw []byte) (value, *document, error) {
	doc := &document{reported: map[*yaml.Node]bool{}}
	if len(raw) > MaxDocument {
		return value{}, nil, Problems{{Message: fmt.Sprintf("the document has %d bytes, the limit is %d", len(raw), MaxDocument)}}
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return value{}, nil, Problems{{Message: "the document is empty"}}
	}
	var root yaml.Node
	// Duplicate keys are found below, each with its path. Aliases are counted below.
	limits := loaderlimits.New(loaderlimits.DepthValue(2*maxDepth), loaderlimits.AliasNone())
	if err := yaml.Load(raw, &root, yaml.WithUniqueKeys(false), yaml.WithPlugin(limits)); err != nil {
		return value{}, nil, syntaxProblem(err)
	}
	top := value{doc: doc, node: &root}
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		top.node = root.Content[0]
	}
	if !doc.check(top, 0, false) {
		return value{}, nil, doc.problems
	}
	return top, doc, nil
}

func syntaxProblem(err error) Problems {
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		return Problems{{Line: e.Mark.Line, Message: "not valid YAML: " + e.Message}}
	}
	return Problems{{Message: "not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}}
}

// check walks the whole tree once. It returns false when the tree is too large to
// go on with. A placeholder is a mistake but where the author may write any text: in
// what is open.
func (d *document) check(v value, depth int, open bool) bool {
	if d.nodes++; d.nodes > maxNodes || depth > maxDepth {
		d.problems = append(d.problems, Problem{v.path, v.node.Line, fmt.Sprintf(
			"the document is too large: at most %d values and %d levels, aliases expanded", maxNodes, maxDepth)})
		return false
	}
	switch v = v.deref(); v.node.Kind {
	case yaml.ScalarNode:
		if m := placeholder.FindString(v.node.Value); m != "" && !open {
			v.report("the placeholder %s was not replaced", m)
		}
	case yaml.SequenceNode:
		for i, n := range v.node.Content {
			if !d.check(v.at(n, fmt.Sprintf("%s[%d]", v.path, i)), depth+1, open) {
				return false
			}
		}
	case yaml.MappingNode:
		return d.checkMapping(v, depth, open)
	default:
		v.report("want a value")
	}
	return true
}

func (d *document) checkMapping(v value, depth int, open bool) bool {
	if !open && v.node.Style&yaml.FlowStyle != 0 && len(v.node.Content) > 0 && v.node.Content[0].Kind == yaml.MappingNode {
		v.report("the placeholder %s was not replaced", flowPlaceholder(v.node))
		return true
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" {
			if open {
				if !d.check(v.at(k, v.path), depth+1, open) || !d.check(v.at(v.node.Content[i+1], v.path), depth+1, open) {
					return false
				}
				continue
			}
			v.at(k, v.path).report("want a plain key; other keys and merge keys (<<) are not read")
			continue
		}
		child := v.at(v.node.Content[i+1], join(v.path, k.Value))
		if m := placeholder.FindString(k.Value); m != "" && !open {
			v.at(k, child.path).report("the placeholder %s was not replaced", m)
		}
		if line, dup := seen[k.Value]; dup {
			d.problems = append(d.problems, Problem{child.path, k.Line, fmt.Sprintf("the key stands twice, first in line %d", line)})
		}
		seen[k.Value] = k.Line
		if !d.check(child, depth+1, open || isOpen(v.path, depth, k.Value)) {
			return false
		}
	}
	return true
}

// isOpen reports whether the standard leaves the value of a key untyped: that of a
// parameter, in an application or in a deployment, and all of an extension. Path and
// depth are those of the mapping with the key.
func isOpen(path string, depth int, key string) bool {
	parameter := strings.HasPrefix(path, "parameters.") && depth == 2 || strings.HasPrefix(path, "spec.parameters.") && depth == 3
	return parameter && key == "value" || extensionKey.MatchString(key)
}

// flowPlaceholder renders {{NAME}}, which YAML reads as a mapping with a mapping
// as its key.
func flowPlaceholder(n *yaml.Node) string {
	if inner := n.Content[0].Content; len(inner) > 0 && inner[0].Kind == yaml.ScalarNode {
		return "{{" + inner[0].Value + "}}"
	}
	return "{{…}}"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (v value) at(n *yaml.Node, path string) value { return value{v.doc, n, path} }

// deref follows an alias to what it names. Chains of aliases do not exist in YAML.
func (v value) deref() value {
	if v.node.Kind == yaml.AliasNode && v.node.Alias != nil {
		v.node = v.node.Alias
	}
	return v
}

// report notes a problem of this value and stops any other about its type.
func (v value) report(format string, args ...any) {
	v.doc.reported[v.node] = true
	v.problem(format, args...)
}

// problem notes a problem of this value.
func (v value) problem(format string, args ...any) {
	p := Problem{Path: v.path, Message: fmt.Sprintf(format, args...)}
	if v.node != nil {
		p.Line = v.node.Line
	}
	v.doc.problems = append(v.doc.problems, p)
}

// exists says whether the value is there and not known to be wrong.
func (v value) exists() bool { return v.node != nil && !v.doc.reported[v.node] }

// An object is a mapping while it is read.
type object struct {
	value
	fields map[string]value
	keys   []string
}

// anyExtension, among the keys of object, allows x-…-extensions.
const anyExtension = "x-*"

// object reads a mapping that may have these keys and no others. No keys at all
// means: any.
func (v value) object(keys ...string) object {
	o := object{value: v, fields: map[string]value{}}
	if !v.exists() {
		return o
	}
	if v.node.Kind != yaml.MappingNode {
		v.report("want a mapping, got %s", v.kind())
		return o
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		if k.Kind != yaml.ScalarNode || v.doc.reported[k] {
			continue
		}
		child := v.at(v.node.Content[i+1], join(v.path, k.Value)).deref()
		known := len(keys) == 0 || slices.Contains(keys, k.Value) ||
			slices.Contains(keys, anyExtension) && extensionKey.MatchString(k.Value)
		if !known {
			child.at(k, child.path).problem("unknown key; known here: %s", strings.Join(keys, ", "))
			continue
		}
		if _, dup := o.fields[k.Value]; !dup {
			o.keys = append(o.keys, k.Value)
		}
		o.fields[k.Value] = child
	}
	return o
}

// get returns an optional field. A null counts as absent.
func (o object) get(key string) value {
	if f, ok := o.fields[key]; ok && !f.isNull() {
		return f
	}
	return value{doc: o.doc, path: join(o.path, key)}
}

// need returns a required field, and reports where it is missing.
func (o object) need(key string) value {
	f := o.get(key)
	if f.node == nil && o.exists() {
		o.at(o.node, f.path).problem("required, and missing")
	}
	return f
}

// extensions returns the x-…-extensions blocks, or nil.
func (o object) extensions(except ...string) map[string]any {
	var all map[string]any
	for _, key := range o.keys {
		if !extensionKey.MatchString(key) || slices.Contains(except, key) {
			continue
		}
		if all == nil {
			all = map[string]any{}
		}
		all[key] = rawyaml.New(o.fields[key].node)
	}
	return all
}

func (v value) isNull() bool {
	return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null"
}

// kind names what stands there, for a message.
func (v value) kind() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return strings.TrimPrefix(v.node.ShortTag(), "!!") + " " + v.node.Value
	}
}

// list reads a sequence.
func (v value) list() []value {
	if !v.exists() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.report("want a list, got %s", v.kind())
		return nil
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = v.at(n, fmt.Sprintf("%s[%d]", v.path, i)).deref()
	}
	return items
}

// some reads a sequence that has at least one item.
func (v value) some() []value {
	items := v.list()
	if len(items) == 0 && v.exists() {
		v.problem("want at least one")
	}
	return items
}

// text reads a string.
func (v value) text() string {
	if !v.exists() {
		return ""
	}
	if v.node.Kind != yaml.ScalarNode {
		v.report("want a text, got %s", v.kind())
		return ""
	}
	if tag := v.node.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		v.report("want a text, got %s; put it in quotes", v.kind())
		return ""
	}
	return v.node.Value
}

// match reads a string that a pattern matches.
func (v value) match(pattern *regexp.Regexp, want string) string {
	s := v.text()
	if v.exists() && !pattern.MatchString(s) {
		v.report("%q: want %s", s, want)
	}
	return s
}

// name reads a string that is not empty.
func (v value) name() string {
	s := v.text()
	if v.exists() && strings.TrimSpace(s) == "" {
		v.report("want a text that is not empty")
	}
	return s
}

// oneOf reads a string of a closed list.
func (v value) oneOf(words ...string) string {
	s := v.text()
	if v.exists() && !slices.Contains(words, s) {
		v.report("%q: want one of %s", s, strings.Join(words, ", "))
	}
	return s
}

// texts reads a list of strings.
func (v value) texts() []string {
	var all []string
	for _, item := range v.list() {
		all = append(all, item.name())
	}
	return all
}

// boolean reads true or false.
func (v value) boolean() *bool {
	if !v.exists() {
		return nil
	}
	b, ok := v.scalar().(bool)
	if !ok {
		v.report("want true or false, got %s", v.kind())
		return nil
	}
	return &b
}

// number reads an integer or a decimal number.
func (v value) number() *float64 {
	if !v.exists() {
		return nil
	}
	var f float64
	switch n := v.scalar().(type) {
	case int64:
		f = float64(n)
	case float64:
		f = n
	default:
		v.report("want a number, got %s", v.kind())
		return nil
	}
	return &f
}

// count reads an integer of zero or more.
func (v value) count() *int64 {
	if !v.exists() {
		return nil
	}
	n, ok := v.scalar().(int64)
	if !ok || n < 0 {
		v.report("want an integer of 0 or more, got %s", v.kind())
		return nil
	}
	return &n
}

// scalar returns a string, int64, float64 or bool; nil for anything else.
func (v value) scalar() any {
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
