package packaging

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxValues bounds the values of a Compose file, aliases expanded.
const maxValues = 50_000

// A location is where something stands in the Compose file.
type location struct {
	path string // such as services.web.ports[0]
	line int
}

// An occurrence is a use of a variable in the Compose file, or in a file that it reads.
type occurrence struct {
	use
	location
	port bool // it is the port of the node, as a whole
}

// A source is what is known of a vendor's Compose file.
type source struct {
	name        string // what it calls the project, or ""
	occurrences []occurrence
	passed      map[string]location // variables that environment names without a value
	files       []reference
	images      []occurrenceOfImage
	profiles    bool // there are services with profiles
	values      int
}

// An occurrenceOfImage is an image that a service runs.
type occurrenceOfImage struct {
	location
	image string
}

// A reference is a relative path in the Compose file.
type reference struct {
	location
	file string
	env  bool // its variables are filled in
}

// readCompose reads a Compose file. What is wrong with it as Compose is not looked for.
func readCompose(content []byte) (*source, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("no Compose file: want a mapping with services")
	}
	s := &source{passed: map[string]location{}}
	if err := s.walk(document.Content[0], nil); err != nil {
		return nil, err
	}
	return s, nil
}

// walk visits every value below n, which stands under keys.
func (s *source) walk(n *yaml.Node, keys []string) error {
	if s.values++; s.values > maxValues || len(keys) > 60 {
		return fmt.Errorf("line %d: more than %d values, or more than 60 levels", n.Line, maxValues)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return s.walk(n.Alias, keys)
	case yaml.ScalarNode:
		s.scalar(n, keys)
	case yaml.SequenceNode:
		for i, item := range n.Content {
			next := append(slices.Clone(keys), "["+strconv.Itoa(i)+"]")
			if err := s.walk(item, next); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			next := keys
			if k := n.Content[i]; k.ShortTag() != "!!merge" {
				next = append(slices.Clone(keys), k.Value)
			}
			if len(keys) == 0 && n.Content[i].Value == "name" {
				s.name = n.Content[i+1].Value
			}
			if err := s.walk(n.Content[i+1], next); err != nil {
				return err
			}
		}
	}
	return nil
}

// pathOf joins keys as people write them: services.web.ports[0].
func pathOf(keys []string) string {
	return strings.ReplaceAll(strings.Join(keys, "."), ".[", "[")
}

// scalar notes what a text is used for.
func (s *source) scalar(n *yaml.Node, keys []string) {
	p := location{pathOf(keys), n.Line}
	key := func(i int) string {
		if i < 0 || i >= len(keys) {
			return ""
		}
		return keys[i]
	}
	last := len(keys) - 1
	if strings.HasPrefix(key(last), "[") {
		last-- // an item is one of the list's
	}
	for i, u := range usesOf(n.Value) {
		port := i == 0 && key(0) == "services" && key(2) == "ports" && isNodePort(n.Value, key(last))
		s.occurrences = append(s.occurrences, occurrence{u, p, port})
	}
	if key(0) != "services" {
		content := key(0) == "configs" || key(0) == "secrets"
		if content && key(2) == "environment" {
			s.pass(n.Value, p)
		}
		if content && key(2) == "file" || key(0) == "include" && (last == 0 || key(last) == "path") {
			s.refer(n.Value, p, false)
		}
		return
	}
	switch key(2) {
	case "profiles":
		s.profiles = true
	case "image":
		s.images = append(s.images, occurrenceOfImage{p, n.Value})
	case "env_file":
		if last == 2 || key(last) == "path" {
			s.refer(n.Value, p, true)
		}
	case "extends":
		if key(last) == "file" {
			s.refer(n.Value, p, false)
		}
	case "volumes":
		if from, _, ok := strings.Cut(n.Value, ":"); last == 2 && ok || key(last) == "source" {
			if from[0:min(1, len(from))] == "." {
				s.refer(from, p, false)
			}
		}
	case "environment":
		s.environment(n, p, keys)
	}
}

// environment notes a variable that is named without a value.
func (s *source) environment(n *yaml.Node, p location, keys []string) {
	if len(keys) != 4 {
		return
	}
	name := keys[3]
	if strings.HasPrefix(name, "[") {
		name = n.Value
	} else if n.ShortTag() != "!!null" { // NAME: with nothing after it
		return
	}
	s.pass(name, p)
}

// pass notes a variable that is used without ${}.
func (s *source) pass(name string, p location) {
	if _, known := s.passed[name]; !known && name != "" && nameForm.FindString(name) == name {
		s.passed[name] = p
	}
}

// refer notes a path of a file that is to come along.
func (s *source) refer(file string, p location, env bool) {
	if file == "" || path.IsAbs(file) || strings.ContainsAny(file, "$~\\") {
		return
	}
	r := reference{p, path.Clean(file), env}
	if !slices.ContainsFunc(s.files, func(o reference) bool { return o.file == r.file && o.env == env }) {
		s.files = append(s.files, r)
	}
}

// isNodePort reports whether a port of the node is a variable as a whole: in the short
// form before the last colon, in the long form under published.
func isNodePort(text, key string) bool {
	if key == "published" {
		return strings.HasPrefix(text, "$") && closing(text[1:]) == len(text)-2
	}
	if key != "ports" || !strings.HasPrefix(text, "${") {
		return false
	}
	end := closing(text[1:])
	return end > 0 && strings.HasPrefix(text[end+2:], ":")
}
