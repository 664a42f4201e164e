package sitefile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/colonyfleet/colony/margo/rawyaml"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

const maxDepth = 16

// A reader reads one document and notes its problems. It remembers where each
// value stands, so that a fault that is found later has its line.
type reader struct {
	problems v1rc3.Problems
	lines    map[string]int
}

// An object is a mapping of the document with its path. The zero object is one
// that is not there; its fields are absent, too.
type object struct {
	path   string
	line   int
	there  bool
	fields map[string]*yaml.Node
}

func (r *reader) problem(path string, line int, format string, args ...any) {
	r.problems = append(r.problems, v1rc3.Problem{Path: path, Line: line, Message: fmt.Sprintf(format, args...)})
}

// sorted returns the problems in the order of the document.
func (r *reader) sorted() v1rc3.Problems {
	slices.SortStableFunc(r.problems, func(a, b v1rc3.Problem) int { return a.Line - b.Line })
	return r.problems
}

// document parses the bytes and returns the topmost value.
func (r *reader) document(raw []byte) (*yaml.Node, error) {
	if len(raw) > MaxBytes {
		return nil, v1rc3.Problems{{Message: fmt.Sprintf("the file has %d bytes, the limit is %d", len(raw), MaxBytes)}}
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, v1rc3.Problems{{Message: "the file is empty: to have no rules, write rules: [] below spec.data"}}
	}
	var root yaml.Node
	limits := loaderlimits.New(loaderlimits.DepthValue(maxDepth), loaderlimits.AliasNone()) // an alias is refused where it stands
	if err := yaml.Load(rawyaml.AnyMinor(raw), &root, yaml.WithUniqueKeys(false), yaml.WithPlugin(limits)); err != nil {
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			return nil, v1rc3.Problems{{Line: e.Mark.Line, Message: "not valid YAML: " + e.Message}}
		}
		return nil, v1rc3.Problems{{Message: "not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}}
	}
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		return root.Content[0], nil
	}
	return &root, nil
}

// object reads a mapping that may have these keys and no others.
func (r *reader) object(n *yaml.Node, path string, keys ...string) object {
	if n == nil {
		return object{path: path}
	}
	r.lines[path] = n.Line
	if n.Kind != yaml.MappingNode {
		r.problem(path, n.Line, "want a mapping, got %s", kind(n))
		return object{path: path}
	}
	o := object{path: path, line: n.Line, there: true, fields: map[string]*yaml.Node{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := join(path, k.Value)
		switch _, twice := o.fields[k.Value]; {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge":
			r.problem(path, k.Line, "want a plain key; other keys and merge keys (<<) are not read")
		case !slices.Contains(keys, k.Value):
			r.problem(at, k.Line, "unknown key; known here: %s", strings.Join(keys, ", "))
		case twice:
			r.problem(at, k.Line, "the key stands twice; keep one")
		case v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null":
			r.problem(at, k.Line, "has no value; give it one, or remove the key ({} is a mapping without keys)")
		default:
			o.fields[k.Value] = v
			r.lines[at] = v.Line
		}
	}
	return o
}

// child reads a field that is a mapping.
func (r *reader) child(o object, key string, keys ...string) object {
	return r.object(o.fields[key], join(o.path, key), keys...)
}

// required reports whether a field is there, and notes that it is missing.
func (r *reader) required(o object, key string) bool {
	if o.fields[key] != nil {
		return true
	}
	if o.there {
		r.problem(join(o.path, key), o.line, "required, and missing")
	}
	return false
}

// constant checks a required field that has one possible value.
func (r *reader) constant(o object, key, want, why string) {
	if !r.required(o, key) {
		return
	}
	if got, ok := r.text(o, key); ok && got != want {
		r.problem(join(o.path, key), o.fields[key].Line, "%q: want %s; %s", got, want, why)
	}
}

// An item is one value of a list.
type item struct {
	node *yaml.Node
	path string
}

// list reads a field that is a list.
func (r *reader) list(o object, key string) []item {
	n := o.fields[key]
	if n == nil {
		return nil
	}
	path := join(o.path, key)
	if n.Kind != yaml.SequenceNode {
		r.problem(path, n.Line, "want a list, got %s", kind(n))
		return nil
	}
	items := make([]item, len(n.Content))
	for i, v := range n.Content {
		items[i] = item{v, fmt.Sprintf("%s[%d]", path, i)}
		r.lines[items[i].path] = v.Line
	}
	return items
}

// texts reads a field that is a list of texts.
func (r *reader) texts(o object, key string) []string {
	var all []string
	for _, i := range r.list(o, key) {
		if s, ok := r.scalar(i.node, i.path, "a text", "!!str"); ok {
			all = append(all, s)
		}
	}
	return all
}

// text reads a field that is a text.
func (r *reader) text(o object, key string) (string, bool) {
	return r.scalar(o.fields[key], join(o.path, key), "a text", "!!str")
}

// oneOf reads a field that is one of a few words.
func (r *reader) oneOf(o object, key string, words ...string) string {
	s, ok := r.text(o, key)
	if ok && !slices.Contains(words, s) {
		r.problem(join(o.path, key), o.fields[key].Line, "%q: want one of %s", s, strings.Join(words, ", "))
		return ""
	}
	return s
}

// flag reads a field that is true or false.
func (r *reader) flag(o object, key string) bool {
	s, ok := r.scalar(o.fields[key], join(o.path, key), "true or false", "!!bool")
	return ok && strings.EqualFold(s, "true")
}

// duration reads a field that is a duration, in milliseconds.
func (r *reader) duration(o object, key string) uint64 {
	s, ok := r.scalar(o.fields[key], join(o.path, key), "a duration such as 30s, 12h or 7d", "!!str")
	if !ok {
		return 0
	}
	millis, ok := parseDuration(s)
	if !ok {
		r.problem(join(o.path, key), o.fields[key].Line, "%q: want a duration such as 500ms, 30s, 15m, 12h or 7d", s)
	}
	return millis
}

// size reads a field that is a number of bytes.
func (r *reader) size(o object, key string) uint64 {
	s, ok := r.scalar(o.fields[key], join(o.path, key), "a size such as 256MiB", "!!str", "!!int")
	if !ok {
		return 0
	}
	bytes, ok := parseSize(s)
	if !ok {
		r.problem(join(o.path, key), o.fields[key].Line, "%q: want a size such as 512KiB, 256MiB or 2GiB", s)
	}
	return bytes
}

// scalar reads the text of a scalar with one of these tags. A node that is nil is
// absent, and no problem.
func (r *reader) scalar(n *yaml.Node, path, want string, tags ...string) (string, bool) {
	switch {
	case n == nil:
		return "", false
	case n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()):
		return n.Value, true
	case n.Kind == yaml.ScalarNode && want == "a text":
		r.problem(path, n.Line, "want a text, got %s; put it in quotes", kind(n))
	default:
		r.problem(path, n.Line, "want %s, got %s", want, kind(n))
	}
	return "", false
}

// kind names what stands there, for a message.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which is not read here"
	default:
		return strings.TrimSpace(strings.TrimPrefix(n.ShortTag(), "!!") + " " + n.Value)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
