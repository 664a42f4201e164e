package packaging

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"go.yaml.in/yaml/v4"
)

// maxValues bounds the values of a Compose file, aliases expanded.
const maxValues = 50_000

// A location is where something stands in the Compose file.
type location struct {
	file string // in the component; "" for compose.yaml
	path string // such as services.web.ports[0]
	line int
}

// String returns the line, with the file where it is not compose.yaml; without one, the path.
func (l location) String() string {
	if l.line == 0 {
		return l.path
	}
	if l.file != "" {
		return fmt.Sprintf("line %d of %s", l.line, l.file)
	}
	return fmt.Sprintf("line %d", l.line)
}

// An occurrence is a use of a variable in the Compose file, or in a file that it reads.
type occurrence struct {
	use
	location
	port bool    // it is the port of the node, as a whole
	own  *string // the value that an env file gives it that others do not see
}

// A source is what is known of a vendor's Compose files.
type source struct {
	env         map[string]string // of .env
	own         map[string]string // of the env files of part
	contents    map[string][]byte // of the files that were given
	parts       []part            // to read
	part        part              // that is read
	name        string            // what it calls the project, or ""
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

// compose reads a Compose file. What is wrong with it as Compose is not looked for.
func (s *source) compose(content []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return fmt.Errorf("no Compose file: want a mapping with services")
	}
	return s.walk(document.Content[0], nil)
}

// walk visits every value below n, which stands under keys.
func (s *source) walk(n *yaml.Node, keys []string) error {
	if s.values++; s.values > maxValues || len(keys) > 60 {
		return fmt.Errorf("line %d: more than %d values, or more than 60 levels", n.Line, maxValues)
	}
	switch {
	case len(keys) == 2 && keys[0] == "include" && n.Kind != yaml.AliasNode:
		s.include(n, location{s.part.as, pathOf(keys), n.Line})
		return nil
	case len(keys) == 3 && keys[0] == "services" && keys[2] == "extends" && n.Kind != yaml.AliasNode:
		s.extends(n, location{s.part.as, pathOf(keys), n.Line})
		return nil
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
			if s.apart(next) {
				continue
			}
			if len(keys) == 0 && n.Content[i].Value == "name" && s.part.service == "" && s.name == "" {
				s.name = n.Content[i+1].Value
			}
			if err := s.walk(n.Content[i+1], next); err != nil {
				return err
			}
		}
	}
	return nil
}

// apart reports whether keys stand in no service that is extended, where nothing else is read.
func (s *source) apart(keys []string) bool {
	return s.part.service != "" && (len(keys) > 0 && keys[0] != "services" || len(keys) > 1 && keys[1] != s.part.service)
}

// pathOf joins keys as people write them: services.web.ports[0].
func pathOf(keys []string) string {
	return strings.ReplaceAll(strings.Join(keys, "."), ".[", "[")
}

// scalar notes what a text is used for.
func (s *source) scalar(n *yaml.Node, keys []string) {
	p := location{s.part.as, pathOf(keys), n.Line}
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
		s.occurrences = append(s.occurrences, occurrence{u, p, port, s.ownValue(u.name)})
	}
	if key(0) != "services" {
		content := key(0) == "configs" || key(0) == "secrets"
		if content && key(2) == "environment" {
			s.pass(n.Value, p)
		}
		if content && key(2) == "file" {
			s.refer(n.Value, p, plainFile)
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
			s.refer(n.Value, p, envFile)
		}
	case "security_opt":
		if option, file, ok := strings.Cut(strings.Replace(n.Value, ":", "=", 1), "="); ok && (option == "seccomp" || option == "apparmor") {
			s.refer(file, p, ofProject)
		}
	case "volumes":
		s.volume(n.Value, p, last == 2, key(last) == "source")
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
	if s.ownValue(name) != nil {
		return // it has that, whatever a deployment says
	}
	if _, known := s.passed[name]; !known && name != "" && nameForm.FindString(name) == name {
		s.passed[name] = p
	}
}

// volume notes the source of a bind: in the short form, before the first colon that is in no
// variable.
func (s *source) volume(text string, p location, short, source bool) {
	filled, err := template.SubstituteWithOptions(text, s.lookup, template.WithoutLogging)
	if err != nil {
		return
	}
	from, _, ok := strings.Cut(filled, ":")
	if (short && ok || source) && strings.HasPrefix(from, ".") {
		s.refer(strings.ReplaceAll(from, "$", "$$"), p, plainFile)
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
