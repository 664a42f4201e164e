// Package document reads a YAML or JSON document that is small, strict and written by people:
// unknown and duplicate keys, wrong types and unreplaced placeholders are problems, each with its
// path and line, and a reader collects all of them. It knows no kind of document.
//
// The package does no I/O and starts no goroutine. A Document and its Values belong to one
// goroutine.
package document

import (
	"bytes"
	"errors"
	"fmt"
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
	MaxBytes = 1 << 20 // bytes
	maxNodes = 20_000  // with every alias expanded
	maxDepth = 40
)

var (
	extension   = regexp.MustCompile(`^x-[a-z][a-z0-9-]*-extensions$`)
	placeholder = regexp.MustCompile(`\{\{[^{}]*\}\}`)
)

// A Document is one YAML document while it is read: its problems, and the nodes
// that were reported already, so that one mistake makes one problem.
type Document struct {
	problems Problems
	reported map[*yaml.Node]bool
	warnings Problems
	nodes    int
	open     func(path string, depth int, key string) bool
}

// Err returns the problems so far as an error that is a Problems, or nil.
func (d *Document) Err() error { return d.problems.Err() }

// Warnings returns what was noted by Value.Warn, in the order in which it was found.
func (d *Document) Warnings() Problems { return d.warnings }

// A Value is a node of a document with its path. The node is nil where the
// document does not have the value: such a value reads as zero without a problem.
type Value struct {
	doc  *Document
	node *yaml.Node
	path string
}

// Read parses raw. Without an error the tree is bounded, has string keys only and
// no key twice; what of that fails short of the syntax is in Document.Err.
// open says which keys may hold any YAML, by the path and the depth of the mapping that
// they stand in: there a placeholder is no mistake.
func Read(raw []byte, open func(path string, depth int, key string) bool) (Value, *Document, error) {
	doc := &Document{reported: map[*yaml.Node]bool{}, open: open}
	if len(raw) > MaxBytes {
		return Value{}, nil, Problems{{Message: fmt.Sprintf("the document has %d bytes, the limit is %d", len(raw), MaxBytes)}}
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return Value{}, nil, Problems{{Message: "the document is empty"}}
	}
	var root yaml.Node
	// Duplicate keys are found below, each with its path. Aliases are counted below.
	limits := loaderlimits.New(loaderlimits.DepthValue(2*maxDepth), loaderlimits.AliasNone())
	if err := yaml.Load(rawyaml.AnyMinor(raw), &root, yaml.WithUniqueKeys(false), yaml.WithPlugin(limits)); err != nil {
		return Value{}, nil, syntaxProblem(err)
	}
	top := Value{doc: doc, node: &root}
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		top.node = root.Content[0]
	}
	if !doc.check(top, 0, false) {
		return Value{}, nil, doc.problems
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
func (d *Document) check(v Value, depth int, open bool) bool {
	if d.nodes++; d.nodes > maxNodes || depth > maxDepth {
		d.problems = append(d.problems, Problem{v.path, v.node.Line, fmt.Sprintf(
			"the document is too large: at most %d values and %d levels, aliases expanded", maxNodes, maxDepth)})
		return false
	}
	switch v = v.deref(); v.node.Kind {
	case yaml.ScalarNode:
		if m := placeholder.FindString(v.node.Value); m != "" && !open {
			v.Report("the placeholder %s was not replaced", m)
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
		v.Report("want a value")
	}
	return true
}

func (d *Document) checkMapping(v Value, depth int, open bool) bool {
	if !open && v.node.Style&yaml.FlowStyle != 0 && len(v.node.Content) > 0 && v.node.Content[0].Kind == yaml.MappingNode {
		v.Report("the placeholder %s was not replaced", flowPlaceholder(v.node))
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
			v.at(k, v.path).Report("want a plain key; other keys and merge keys (<<) are not read")
			continue
		}
		child := v.at(v.node.Content[i+1], join(v.path, k.Value))
		if m := placeholder.FindString(k.Value); m != "" && !open {
			v.at(k, child.path).Report("the placeholder %s was not replaced", m)
		}
		if line, dup := seen[k.Value]; dup {
			d.problems = append(d.problems, Problem{child.path, k.Line, fmt.Sprintf("the key stands twice, first in line %d", line)})
		}
		seen[k.Value] = k.Line
		if !d.check(child, depth+1, open || d.open(v.path, depth, k.Value)) {
			return false
		}
	}
	return true
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

func (v Value) at(n *yaml.Node, path string) Value { return Value{v.doc, n, path} }

// deref follows an alias to what it names. Chains of aliases do not exist in YAML.
func (v Value) deref() Value {
	if v.node.Kind == yaml.AliasNode && v.node.Alias != nil {
		v.node = v.node.Alias
	}
	return v
}

// Report notes a problem of this value and stops any other about its type.
func (v Value) Report(format string, args ...any) {
	v.doc.reported[v.node] = true
	v.Note(format, args...)
}

// Note notes a problem of this value.
func (v Value) Note(format string, args ...any) {
	v.doc.problems = append(v.doc.problems, v.located(format, args))
}

// Warn notes what is accepted and is probably not meant.
func (v Value) Warn(format string, args ...any) {
	v.doc.warnings = append(v.doc.warnings, v.located(format, args))
}

func (v Value) located(format string, args []any) Problem {
	p := Problem{Path: v.path, Message: fmt.Sprintf(format, args...)}
	if v.node != nil {
		p.Line = v.node.Line
	}
	return p
}

// Absent reports whether the document does not have the value.
func (v Value) Absent() bool { return v.node == nil }

// Source returns a scalar as it is spelled in the document.
func (v Value) Source() string { return v.node.Value }

// Exists says whether the value is there and not known to be wrong.
func (v Value) Exists() bool { return v.node != nil && !v.doc.reported[v.node] }

// An Object is a mapping while it is read.
type Object struct {
	Value
	Fields map[string]Value
	Keys   []string
}

// AnyExtension, among the keys given to Value.Object, allows x-…-extensions.
const AnyExtension = "x-*-extensions"

// Object reads a mapping that may have these keys and no others. No keys at all
// means: any.
func (v Value) Object(keys ...string) Object {
	o := Object{Value: v, Fields: map[string]Value{}}
	if !v.Exists() {
		return o
	}
	if v.node.Kind != yaml.MappingNode {
		v.Report("want a mapping, got %s", v.Kind())
		return o
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		if k.Kind != yaml.ScalarNode || v.doc.reported[k] {
			continue
		}
		child := v.at(v.node.Content[i+1], join(v.path, k.Value)).deref()
		known := len(keys) == 0 || slices.Contains(keys, k.Value) ||
			slices.Contains(keys, AnyExtension) && extension.MatchString(k.Value)
		if !known {
			child.at(k, child.path).Note("unknown key; known here: %s", strings.Join(keys, ", "))
			continue
		}
		if _, dup := o.Fields[k.Value]; !dup {
			o.Keys = append(o.Keys, k.Value)
		}
		o.Fields[k.Value] = child
	}
	return o
}

// Get returns an optional field. A null counts as absent.
func (o Object) Get(key string) Value {
	if f, ok := o.Fields[key]; ok && !f.IsNull() {
		return f
	}
	return Value{doc: o.doc, path: join(o.path, key)}
}

// Mapping returns an optional field that is a mapping. Unlike other values it may not be
// null: what is below the key was lost by its indentation more often than left out.
func (o Object) Mapping(key string) Value {
	if f, ok := o.Fields[key]; ok && f.IsNull() {
		f.Report("want a mapping, got nothing; leave the key out")
	}
	return o.Get(key)
}

// Need returns a required field, and reports where it is missing.
func (o Object) Need(key string) Value {
	f := o.Get(key)
	if f.node == nil && o.Exists() {
		o.at(o.node, f.path).Note("required, and missing")
	}
	return f
}

// Extensions returns the x-…-extensions blocks, or nil.
func (o Object) Extensions(except ...string) map[string]any {
	var all map[string]any
	for _, key := range o.Keys {
		if !extension.MatchString(key) || slices.Contains(except, key) {
			continue
		}
		if all == nil {
			all = map[string]any{}
		}
		all[key] = rawyaml.New(o.Fields[key].node)
	}
	return all
}

// IsExtension reports whether a key is of the form x-<name>-extensions.
func IsExtension(key string) bool { return extension.MatchString(key) }
