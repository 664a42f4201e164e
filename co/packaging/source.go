package packaging

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/margo/rawyaml"
)

// maxValues bounds the values of a Compose file, aliases expanded.
const maxValues = 50_000

// A location is where something stands in the Compose file.
type location struct {
	file string // in the component; "" for compose.yaml
	path string // such as services.web.ports[0]
	line int
}

// An occurrence is a use of a variable in the Compose file, or in a file that it reads.
type occurrence struct {
	use
	location
	port bool    // it is the port of the node, as a whole
	own  *string // the value that an env file gives it that others do not see
	// refers are the variables that this value refers to.
	refers []string
}

// A source is what is known of a vendor's Compose files.
type source struct {
	env         map[string]string   // of .env
	own         map[string]string   // of the env files of part
	refers      map[string][]string // what the values of own refer to
	contents    map[string][]byte   // of the files that were given
	parts       []part              // to read
	part        part                // that is read
	name        string              // what it calls the project, or ""
	occurrences []occurrence
	passed      map[string]location // variables that environment names without a value
	given       map[string]bool     // variables of containers
	files       []reference
	images      []occurrenceOfImage
	profiles    bool // there are services with profiles
	values      int
	content     []byte                  // of the file that is read
	stand       string                  // the name that the vendor's compose.yaml has in the component, if another one
	renames     map[string]map[int]bool // where files have the name compose.yaml for it
	paths       int                     // how many were noted
	meant       map[position]bool       // whether what stands there is a path of the vendor's compose.yaml
	unfit       error                   // of a place that cannot have another name
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
	// compose says that it is read as Compose.
	compose bool
}

// compose reads a Compose file. What is wrong with it as Compose is not looked for.
func (s *source) compose(content []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(rawyaml.AnyMinor(content), &document); err != nil {
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
		before := s.paths
		s.scalar(n, keys)
		if s.paths == before && (len(keys) == 0 || !strings.HasPrefix(keys[0], "x-")) {
			s.means(n, false)
		}
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
	published := ""
	if key(0) == "services" && key(2) == "ports" {
		published = nodePort(n.Value, key(last))
	}
	for _, u := range usesOf(n.Value) {
		s.used(occurrence{use: u, location: p, port: u.name == published}, nil)
	}
	if key(0) != "services" {
		content := key(0) == "configs" || key(0) == "secrets"
		if content && key(2) == "environment" {
			s.pass(n.Value, p)
		}
		if content && key(2) == "file" {
			s.refer(n, n.Value, p, plainFile)
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
			s.refer(n, n.Value, p, envFile)
		}
	case "security_opt":
		if option, file, ok := strings.Cut(strings.Replace(n.Value, ":", "=", 1), "="); ok && (option == "seccomp" || option == "apparmor") {
			s.refer(n, file, p, ofProject)
		}
	case "volumes":
		s.volume(n, p, last == 2, key(last) == "source")
	case "environment":
		s.environment(n, p, keys)
	}
}

// used notes a use of a variable, and of those that the value which env files of the part give it
// refers to. Chain are those that led here.
func (s *source) used(o occurrence, chain []string) {
	if o.own = s.ownValue(o.name); o.own != nil {
		o.refers = s.refers[o.name]
	}
	s.occurrences = append(s.occurrences, o)
	for _, name := range o.refers {
		if !slices.Contains(chain, name) {
			s.used(occurrence{use: use{name: name}, location: o.location}, append(slices.Clone(chain), name))
		}
	}
}

// environment notes a variable that is named without a value.
func (s *source) environment(n *yaml.Node, p location, keys []string) {
	if len(keys) != 4 {
		return
	}
	name := keys[3]
	if strings.HasPrefix(name, "[") {
		before, _, valued := strings.Cut(n.Value, "=")
		if s.given[before] = true; valued {
			return
		}
		name = n.Value
	} else if s.given[name] = true; n.ShortTag() != "!!null" { // NAME: with nothing after it
		return
	}
	s.pass(name, p)
}

// pass notes a variable that is used without ${}.
func (s *source) pass(name string, p location) {
	if s.ownValue(name) != nil {
		return // the service has a value of its own for it
	}
	if _, known := s.passed[name]; !known && name != "" && nameForm.FindString(name) == name {
		s.passed[name] = p
	}
}

// volume notes the source of a bind: in the short form, before the first colon that is in no
// variable.
func (s *source) volume(n *yaml.Node, p location, short, source bool) {
	filled, kind, err := s.fill(n.Value)
	if err != nil {
		return
	}
	from, _, ok := strings.Cut(filled, ":")
	if (short && ok || source) && strings.HasPrefix(from, ".") {
		s.refer(n, strings.ReplaceAll(from, "$", "$$"), p, kind)
	}
}

// nodePort returns the variable that is the port of the node as a whole, "" where none is: in the
// short form between the last two colons, or before the only one; in the long form under published.
func nodePort(text, key string) string {
	var parts []string // between the colons that stand in no reference
	part := ""
	for text != "" {
		if inner, rest := leading(text); inner != "" {
			part, text = part+text[:len(text)-len(rest)], rest
			continue
		}
		if text[0] == ':' {
			parts, part = append(parts, part), ""
		} else {
			part += text[:1]
		}
		text = text[1:]
	}
	if key == "published" {
		parts = append(parts, part)
	}
	if key != "published" && key != "ports" || len(parts) == 0 {
		return ""
	}
	inner, rest := leading(parts[len(parts)-1])
	if inner == "" || rest != "" {
		return ""
	}
	return nameForm.FindString(inner)
}
