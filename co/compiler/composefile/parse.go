// Package composefile reads the Compose files of an archive: it refuses every key that is
// not in its table, and makes one document of compose.yaml and what that includes and
// extends.
package composefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// The bounds of a compose.yaml, with every alias expanded.
const (
	maxValues = 20_000
	maxDepth  = 40
)

// A keyCheck walks a Compose file.
type keyCheck struct {
	values   int
	problems []string
	lines    map[string]int // of the keys, by path
}

// parse reads one Compose file, refuses every key that is not in the table, and returns
// the document, aliases and merge keys resolved, and the lines of its keys by path.
func parse(name string, b []byte) (map[string]any, map[string]int, error) {
	fail := func(err error) error { return fmt.Errorf("%s: %w", name, err) }
	var root yaml.Node
	if err := yaml.Load(b, &root, yaml.WithUniqueKeys(false)); err != nil {
		return nil, nil, fail(err)
	}
	top := &root
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		top = root.Content[0]
	}
	if top.Kind != yaml.MappingNode {
		return nil, nil, fail(fmt.Errorf("line %d: want a mapping with services", top.Line))
	}
	c := keyCheck{lines: map[string]int{}}
	c.walk(top, "", "", 0)
	if len(c.problems) > 0 {
		return nil, nil, fail(fmt.Errorf("\n%s", strings.Join(c.problems, "\n")))
	}
	var document map[string]any
	if err := root.Decode(&document); err != nil {
		return nil, nil, fail(err)
	}
	delete(document, "version") // obsolete: it says nothing
	return document, c.lines, nil
}

func (c *keyCheck) problem(n *yaml.Node, at, format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf("line %d: %s: %s", n.Line, at, fmt.Sprintf(format, args...)))
}

// walk checks a node: pattern is its path in the table, at the one in the document.
// It returns false when the document is too large to go on.
func (c *keyCheck) walk(n *yaml.Node, pattern, at string, depth int) bool {
	if c.values++; c.values > maxValues || depth > maxDepth {
		c.problem(n, at, "the document is too large: at most %d values and %d levels, aliases expanded", maxValues, maxDepth)
		return false
	}
	if n.Kind == yaml.AliasNode {
		return c.walk(n.Alias, pattern, at, depth+1)
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		c.problem(n, at, "the tag %s has no meaning in a single file", n.Tag)
		return true
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str" // an environment variable with a date is what the author wrote
	}
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			if !c.walk(item, pattern+"[]", fmt.Sprintf("%s[%d]", at, i), depth+1) {
				return false
			}
		}
	}
	if n.Kind != yaml.MappingNode {
		return true
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		path := strings.TrimPrefix(at+"."+k.Value, ".")
		switch {
		case k.Kind != yaml.ScalarNode:
			c.problem(k, at, "want a plain key")
			continue
		case k.ShortTag() == "!!merge":
			if !c.merge(v, pattern, at, depth) {
				return false
			}
			continue
		case seen[k.Value]:
			c.problem(k, path, "the key stands twice")
		}
		seen[k.Value] = true
		c.lines[path] = k.Line
		if child, ok := c.child(k, pattern, path); ok && !c.walk(v, child, path, depth+1) {
			return false
		}
	}
	return true
}

// merge checks the mappings that a merge key brings in as if they stood here.
func (c *keyCheck) merge(v *yaml.Node, pattern, at string, depth int) bool {
	if v.Kind != yaml.SequenceNode {
		return c.walk(v, pattern, at, depth+1)
	}
	for _, item := range v.Content {
		if !c.walk(item, pattern, at, depth+1) {
			return false
		}
	}
	return true
}

// anything is the pattern of what is carried or ignored as a whole.
const anything = "…"

// child returns the pattern of a key, and false where it is refused.
func (c *keyCheck) child(k *yaml.Node, pattern, at string) (string, bool) {
	if Open[pattern] || strings.HasPrefix(pattern, anything) {
		return anything, true
	}
	for _, name := range []string{k.Value, "*"} {
		if child := strings.TrimPrefix(pattern+"."+name, "."); Keys[child] {
			return child, true
		}
	}
	child := strings.TrimPrefix(pattern+"."+k.Value, ".")
	if strings.HasPrefix(k.Value, "x-") {
		if !strings.HasPrefix(k.Value, "x-colony-") {
			return anything, true
		}
		c.problem(k, at, "Colony has no such extension; it has x-colony-health, for services")
		return "", false
	}
	reason := Reasons[child]
	if reason == "" {
		reason = "Colony does not support this key"
		if siblings := c.siblings(pattern); len(siblings) > 0 && len(siblings) < 12 {
			reason += "; supported here: " + strings.Join(siblings, ", ")
		}
	}
	c.problem(k, at, "%s", reason)
	return "", false
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
