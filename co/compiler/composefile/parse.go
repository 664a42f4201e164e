// Package composefile reads the Compose files of an archive: it refuses every key that is
// not in its table, and makes one document of compose.yaml and what that includes and
// extends.
package composefile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/internal/misspelt"
	"github.com/colonyfleet/colony/margo/rawyaml"
)

// The bounds of a compose.yaml, with every alias expanded.
const (
	maxValues = 20_000
	maxDepth  = 40
)

// The tags with which a file that is merged over another one, or a service that extends another
// one, takes a value of that out, or puts its own in its place instead of merging both (Compose,
// Merge). Where nothing lies below, the first leaves the value out, and the second has no effect.
const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// A keyCheck walks a Compose file.
type keyCheck struct {
	values   int
	problems []Problem
	found    []finding      // about keys
	lines    map[string]int // of the keys and the items of lists, by path
	refused  [][]any        // where what is refused stands: keys, and the indices of lists
	fatal    bool           // what is left is no document
	tags     map[*yaml.Node]string
	replaced [][]any // what is taken out of what lies below, as in refused
	reset    map[string]bool
}

// A Problem is what is wrong in a file.
type Problem struct {
	Line int // from 1; 0 where it is not known
	Text string
}

// parse reads one Compose file and returns the document, aliases and merge keys resolved,
// and what was found in it. What the table of keys does not have is a problem, and
// is not in the document. Without a document, the problems say why.
func parse(b []byte) (map[string]any, *keyCheck) {
	var roots []yaml.Node
	if err := yaml.Load(rawyaml.AnyMinor(b), &roots, yaml.WithUniqueKeys(false), yaml.WithAllDocuments()); err != nil {
		return nil, &keyCheck{problems: []Problem{syntax(err)}}
	}
	const empty = "the file is empty: want a mapping with services"
	if len(roots) == 0 {
		return nil, &keyCheck{problems: []Problem{{1, empty}}}
	}
	root, top := &roots[0], &roots[0]
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		top = root.Content[0]
	}
	c := &keyCheck{lines: map[string]int{}, tags: map[*yaml.Node]string{}, reset: map[string]bool{}}
	if len(roots) > 1 {
		c.problems = append(c.problems, Problem{roots[1].Line, "a second document begins, and a Compose file has one: move what is in it into the first one, or into a file that include names"})
	}
	if top.Kind != yaml.MappingNode {
		c.problems = append(c.problems, Problem{top.Line, "want a mapping with services"})
		return nil, c
	}
	if len(top.Content) == 0 {
		c.problems = append(c.problems, Problem{top.Line, empty})
		return nil, c
	}
	c.walk(top, "", nil, 0)
	// What a merge key brings in, a key beside it takes out.
	c.found = slices.DeleteFunc(c.found, func(f finding) bool { return around(f.path, c.reset) })
	if c.fatal {
		return nil, c
	}
	var document map[string]any
	if err := root.Decode(&document); err != nil {
		c.problems = append(c.problems, syntax(err))
		return nil, c
	}
	for _, path := range c.refused {
		drop(document, path)
	}
	delete(document, "version") // obsolete: it says nothing
	return document, c
}

// hints say what to write instead, by what the reader of YAML says.
var hints = map[string]string{
	"found character that cannot start any token":            "indent with spaces and not with tabs, and quote a text that begins with @, % or `",
	"did not find expected key":                              "indent the line as its neighbours, and close the quotes and brackets before it",
	"did not find expected '-' indicator":                    "indent the line as the other entries of the list, and begin it with -",
	"mapping values are not allowed in this context":         "quote a text that has a colon in it, and indent the line as its neighbours",
	"found unexpected end of stream":                         "close the quote or bracket that begins here",
	"did not find expected ',' or ']'":                       "close the bracket, and put commas between the entries",
	"did not find expected ',' or '}'":                       "close the bracket, and put commas between the entries",
	"found a tab character that violates indentation":        "indent with spaces",
	"did not find expected node content":                     "close the brackets, and quote a text that begins with a special character",
	"did not find expected <document start>":                 "indent the line as its neighbours",
	"could not find expected ':'":                            "put a colon and a space behind the key",
	"found incompatible YAML document":                       "want %YAML 1.1 or 1.2, or leave the line out",
	"found undefined tag handle":                             "quote a text that begins with !",
	"did not find URI escape":                                "quote a text that begins with !",
	"block sequence entries are not allowed in this context": "begin the list on a line of its own",
}

// syntax returns what the reader of YAML says, with the line and what to write instead.
func syntax(err error) Problem {
	load, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return Problem{0, strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	p := Problem{load.Mark.Line, "no YAML: " + load.Message}
	if load.Message == "found unexpected end of stream" && load.ContextMark.Line > 0 {
		p.Line = load.ContextMark.Line
	}
	if hint := hints[load.Message]; hint != "" {
		p.Text += ": " + hint
	} else if strings.HasPrefix(load.Message, "unknown anchor") {
		p.Text += ": an alias stands behind its anchor"
	}
	return p
}

// drop takes a value out of a document.
func drop(document any, path []any) {
	for i, step := range path {
		switch at := document.(type) {
		case map[string]any:
			key, _ := step.(string)
			if i < len(path)-1 {
				document = at[key]
				continue
			}
			delete(at, key)
		case []any:
			n, ok := step.(int)
			if !ok || n >= len(at) {
				return
			}
			if i == len(path)-1 {
				at[n] = nil
				return
			}
			document = at[n]
		default:
			return
		}
	}
}

// at returns a path as messages have it.
func at(path []any) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		}
	}
	return b.String()
}

func (c *keyCheck) problem(n *yaml.Node, path []any, format string, args ...any) {
	text := strings.TrimPrefix(at(path)+": "+fmt.Sprintf(format, args...), ": ")
	c.problems = append(c.problems, Problem{n.Line, text})
}

// refuse notes that a key is not to be in the document.
func (c *keyCheck) refuse(k *yaml.Node, path []any, reason string) {
	c.found = append(c.found, finding{path: pathOf(path...), line: k.Line, text: at(path) + ": " + reason})
	c.refused = append(c.refused, slices.Clone(path))
}

// exclude notes that what stands at a path is left out, here and of what lies below.
func (c *keyCheck) exclude(path []any) {
	c.refused, c.replaced = append(c.refused, slices.Clone(path)), append(c.replaced, slices.Clone(path))
	c.reset[pathOf(path...)] = true
}

// unknown notes that a value with a tag of another program is not to be in the document.
func (c *keyCheck) unknown(n *yaml.Node, path []any, tag string) {
	c.problem(n, path, "the tag %s has no meaning in Compose: leave it out; it has %s and %s", tag, resetTag, overrideTag)
	c.refused = append(c.refused, slices.Clone(path))
}

// walk checks a node: pattern is its path in the table, path the one in the document.
// It returns false when the document is too large to go on.
func (c *keyCheck) walk(n *yaml.Node, pattern string, path []any, depth int) bool {
	if c.values++; c.values > maxValues || depth > maxDepth {
		c.problem(n, path, "the document is too large: at most %d values and %d levels, aliases expanded", maxValues, maxDepth)
		c.fatal = true
		return false
	}
	if n.Kind == yaml.AliasNode {
		return c.walk(n.Alias, pattern, path, depth+1)
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		c.tags[n], n.Tag = n.Tag, ""
	}
	switch tag := c.tags[n]; tag { // an alias comes here again
	case "":
	case resetTag:
		c.exclude(path)
		return true
	case overrideTag:
		c.replaced = append(c.replaced, slices.Clone(path))
	default:
		c.unknown(n, path, tag)
		return true
	}
	if n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!timestamp" || unbounded(n)) {
		n.Tag = "!!str" // an environment variable with a date, or with .inf, is what the author wrote
	}
	if n.Kind == yaml.ScalarNode && strings.ContainsRune(n.Value, 0) && pattern != "configs.*.content" {
		c.problem(n, path, zeroByte)
		n.Value = strings.ReplaceAll(n.Value, "\x00", "") // so that the rest of it can be judged
	}
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			below := append(slices.Clone(path), i)
			c.lines[at(below)] = item.Line
			if !c.walk(item, pattern+"[]", below, depth+1) {
				return false
			}
		}
	}
	if n.Kind != yaml.MappingNode {
		return true
	}
	seen := map[string]*yaml.Node{}
	var doubled []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		below := append(slices.Clone(path), k.Value)
		switch {
		case k.Kind != yaml.ScalarNode:
			c.problem(k, path, "want a plain key")
			c.fatal = true
			continue
		case strings.ContainsRune(k.Value, 0):
			c.problem(k, path, zeroByte)
			c.fatal = true
			continue
		case k.ShortTag() == "!!merge":
			if !c.merge(v, pattern, path, depth) {
				return false
			}
			continue
		default:
			if before, twice := seen[k.Value]; twice {
				c.problem(k, below, "the key stands twice: take one out")
				doubled = append(doubled, before)
			}
		}
		seen[k.Value] = k
		c.lines[at(below)] = k.Line
		if child, ok := c.child(k, v, pattern, below); ok && !c.walk(v, child, below, depth+1) {
			return false
		}
	}
	for _, k := range doubled { // the decoder wants each key once: the last one stays
		if i := slices.Index(n.Content, k); i >= 0 {
			n.Content = slices.Delete(n.Content, i, i+2)
		}
	}
	return true
}

// unbounded reports whether a node is a number that is not finite: no key of Compose takes one,
// and JSON, by whose schema the loader judges, has none.
func unbounded(n *yaml.Node) bool {
	if n.ShortTag() != "!!float" {
		return false
	}
	var number float64
	return n.Decode(&number) == nil && (math.IsInf(number, 0) || math.IsNaN(number))
}

// merge checks the mappings that a merge key brings in as if they stood here.
func (c *keyCheck) merge(v *yaml.Node, pattern string, path []any, depth int) bool {
	if v.Kind != yaml.SequenceNode {
		return c.walk(v, pattern, path, depth+1)
	}
	for _, item := range v.Content {
		if !c.walk(item, pattern, path, depth+1) {
			return false
		}
	}
	return true
}

const zeroByte = "the text holds a zero byte, at which Linux ends a text: take it out"

// anything is the pattern of what is carried or ignored as a whole.
const anything = "…"

// child returns the pattern of a key with the value v, and false where it is refused. One that is
// taken out may be any: it is in another file, or in a service that is extended.
func (c *keyCheck) child(k, v *yaml.Node, pattern string, path []any) (string, bool) {
	if c.tag(v) == resetTag || Open[pattern] || strings.HasPrefix(pattern, anything) {
		return anything, true
	}
	for _, name := range []string{k.Value, "*"} {
		if child := strings.TrimPrefix(pattern+"."+name, "."); Keys[child] {
			if note := Notes[child]; note != "" {
				c.found = append(c.found, finding{path: pathOf(path...), line: k.Line, text: at(path) + ": " + note, note: true})
			}
			return child, true
		}
	}
	child := strings.TrimPrefix(pattern+"."+k.Value, ".")
	if strings.HasPrefix(k.Value, "x-") {
		if !strings.HasPrefix(k.Value, "x-colony-") {
			return anything, true
		}
		c.refuse(k, path, "Colony has no such extension; it has x-colony-health, for services")
		return "", false
	}
	reason := Reasons[child]
	if reason == "" {
		reason = "Colony does not support this key"
		siblings := c.siblings(pattern)
		if near := misspelt.Nearest(k.Value, siblings); len(siblings) > 0 && len(siblings) < 12 {
			reason += "; supported here: " + strings.Join(siblings, ", ")
		} else if near != "" {
			reason += "; is " + near + " meant?"
		}
		if pattern == "" && isService(v) {
			reason = "a service stands below services: write that key above it, and indent it"
		}
	}
	c.refuse(k, path, reason)
	return "", false
}

// isService reports whether a value has what services have: it is one in files of before 2016, and
// where an indentation was lost.
func isService(v *yaml.Node) bool {
	if v.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(v.Content); i += 2 {
		if key := v.Content[i].Value; key == "image" || key == "build" {
			return true
		}
	}
	return false
}

// tag returns the tag of a node, or of what an alias stands for.
func (c *keyCheck) tag(n *yaml.Node) string {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if tag := c.tags[n]; tag != "" {
		return tag
	}
	return n.Tag
}

// siblings returns the keys that the table has below a pattern.
func (c *keyCheck) siblings(pattern string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(Keys)) {
		if rest, ok := strings.CutPrefix("."+key, strings.TrimSuffix("."+pattern, ".")+"."); ok && !strings.ContainsAny(rest, ".[*") {
			all = append(all, rest)
		}
	}
	return all
}
