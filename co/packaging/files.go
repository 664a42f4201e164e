package packaging

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/co/compiler/interpolate"
)

// maxParts bounds how many Compose files are read, one counted for each service that is extended.
const maxParts = 200

// A part is a Compose file that is read, or one service of it.
type part struct {
	location          // where it is named; zero for the files that were given
	file     string   // in the vendor's folder
	as       string   // its name in the component; "" is compose.yaml
	service  string   // which one is extended; "": the whole file
	dir      string   // from which the relative paths in it are seen
	envFiles []string // of the variables that an include has of its own
}

// overridden returns the Compose files that are meant: one with a name that Compose looks for by
// itself is changed by the override file beside it.
func overridden(folder fs.FS, names []string) []string {
	if len(names) != 1 || !slices.Contains([]string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"}, names[0]) {
		return names
	}
	for _, override := range []string{"compose.override.yml", "compose.override.yaml", "docker-compose.override.yml", "docker-compose.override.yaml"} {
		if _, err := fs.Stat(folder, override); err == nil {
			return append(slices.Clone(names), override)
		}
	}
	return names
}

// joined is the compose.yaml of a component that has several Compose files.
func joined(names []string) []byte {
	var b bytes.Buffer
	b.WriteString("# Made by colony app init: each of these files changes those before it.\ninclude:\n  - path:\n")
	for _, name := range names {
		fmt.Fprintf(&b, "      - %s\n", quoted(name))
	}
	return b.Bytes()
}

// given puts the Compose files that were given into the component: one alone is compose.yaml.
func (p *Package) given(s *source, names []string) error {
	if len(names) == 1 {
		return p.add(composeFile, s.renamed(names[0], s.contents[names[0]]), 0o644)
	}
	var all []string
	for _, name := range names {
		all = append(all, s.held(name))
		if err := p.add(s.held(name), s.renamed(name, s.contents[name]), 0o644); err != nil {
			return err
		}
	}
	return p.add(composeFile, joined(all), 0o644)
}

// read reads the parts in their order, and those that they include and extend.
func (s *source) read(folder fs.FS, p *Package) error {
	given := len(s.parts)
	done := map[string]bool{}
	for i := 0; i < len(s.parts); i++ { // it grows
		s.part = s.parts[i]
		key := s.part.file + "\n" + s.part.service + "\n" + s.part.dir
		if done[key] && i >= given || s.part.file == ".." || strings.HasPrefix(s.part.file, "../") {
			continue // the lint says what to do about a path that leads out of the folder
		}
		done[key] = true
		if i > given+maxParts {
			return invalid("more than %d files and services are included and extended", maxParts)
		}
		content, ok := s.contents[s.part.file]
		if !ok {
			var err error
			if content, err = readFile(folder, s.part.file, maxCompose); errors.Is(err, fs.ErrNotExist) {
				continue // likewise
			} else if err != nil {
				p.note(s.part.location, "%s was not read: %v", s.part.file, err)
				continue
			}
		}
		s.ownEnvironment(folder, p)
		s.content = content
		if err := s.compose(content); err != nil {
			if i < given {
				return invalid("%s: %w", s.part.file, err)
			}
			p.note(s.part.location, "%s was not read: %v", s.part.file, err)
		}
	}
	s.part = part{}
	return s.unfit
}

// ownEnvironment reads the variables that the part has of its own.
func (s *source) ownEnvironment(folder fs.FS, p *Package) {
	s.own, s.refers = map[string]string{}, map[string][]string{}
	for _, name := range s.part.envFiles {
		content, err := readFile(folder, name, maxCompose)
		if err != nil {
			continue // where it is named, the lint says what is wrong
		}
		read, err := readEnv(content, s.lookup)
		if err != nil {
			p.note(s.part.location, "%s was not read: %v", name, err)
		}
		maps.Copy(s.own, read)
		maps.Copy(s.refers, referring(content))
	}
}

// lookup returns the value that the vendor's files give a variable in the part.
func (s *source) lookup(name string) (string, bool) {
	if v, ok := s.env[name]; ok {
		return v, true
	}
	if v, ok := s.own[name]; ok {
		return v, true
	}
	return interpolate.Folder(name)
}

// fill fills in the variables of a path. One that begins with PWD begins in the folder of
// compose.yaml, wherever it is named.
func (s *source) fill(text string) (value string, kind referenceKind, err error) {
	const here = "/\x00"
	value, err = interpolate.Text(text, func(name string) (string, bool) {
		v, ok := s.lookup(name)
		if name == "PWD" && interpolate.IsFolder(name, v) {
			v = here
		}
		return v, ok
	})
	if strings.HasPrefix(value, here) {
		kind = ofProject
	}
	return strings.ReplaceAll(value, here, "."), kind, err
}

// ownValue returns the value of a variable that only the part's own env files give.
func (s *source) ownValue(name string) *string {
	if _, ok := s.env[name]; ok {
		return nil
	}
	if v, ok := s.own[name]; ok {
		return &v
	}
	return nil
}

// refer notes the path of a file that must be copied, too. n is its place in the component's file.
// It returns the path in the vendor's folder; "" where the path names no file there.
func (s *source) refer(n *yaml.Node, text string, at location, kind referenceKind) string {
	file, begins, err := s.fill(text)
	if err != nil || file == "" || path.IsAbs(file) || strings.HasPrefix(file, "~") || strings.ContainsAny(file, "$\\") || strings.Contains(file, "://") {
		return ""
	}
	dir := s.part.dir
	if kind == ofProject || begins == ofProject {
		dir = "."
	}
	r := reference{at, path.Join(dir, file), kind == envFile, kind == composePart}
	s.paths++
	s.means(n, r.file == composeFile)
	if r.file == composeFile && s.stand != "" {
		s.rename(n)
	}
	if !slices.ContainsFunc(s.files, func(o reference) bool { return o.file == r.file && o.env == r.env && o.compose == r.compose }) {
		s.files = append(s.files, r)
	}
	return r.file
}

// A referenceKind says what a path is of.
type referenceKind int

const (
	plainFile   referenceKind = iota
	envFile                   // its variables are filled in
	composePart               // it is read as Compose
	ofProject                 // its path begins in the folder of compose.yaml, wherever it is named
)

// include notes what an entry of include names: Compose files, each merged over those before it,
// and the files with the variables that they have of their own.
func (s *source) include(n *yaml.Node, at location) {
	entry := map[string][]*yaml.Node{}
	add := func(key string, v *yaml.Node) {
		if v.Kind == yaml.SequenceNode {
			entry[key] = append(entry[key], v.Content...)
		} else {
			entry[key] = append(entry[key], v)
		}
	}
	if n.Kind != yaml.MappingNode {
		add("path", n)
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		add(n.Content[i].Value, n.Content[i+1])
	}
	var files []string
	for _, item := range entry["path"] {
		if file := s.refer(item, item.Value, at, composePart); file != "" {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		return
	}
	dir := path.Dir(files[0])
	if given := entry["project_directory"]; len(given) == 1 {
		dir = path.Join(s.part.dir, given[0].Value)
	}
	var envFiles []string
	for _, item := range entry["env_file"] {
		if file := s.refer(item, item.Value, at, plainFile); file != "" {
			envFiles = append(envFiles, file)
		}
	}
	if len(entry["env_file"]) == 0 {
		envFiles = []string{path.Join(dir, dotEnv)}
		s.files = append(s.files, reference{location: at, file: envFiles[0]})
	}
	for _, file := range files {
		s.parts = append(s.parts, part{location: at, file: file, as: s.held(file), dir: dir, envFiles: append(slices.Clone(s.part.envFiles), envFiles...)})
	}
}

// extends notes the service that another one extends.
func (s *source) extends(n *yaml.Node, at location) {
	from := part{location: at, file: s.part.file, as: s.part.as, service: n.Value, dir: s.part.dir, envFiles: s.part.envFiles}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		switch v := n.Content[i+1].Value; n.Content[i].Value {
		case "service":
			from.service = v
		case "file":
			from.file = s.refer(n.Content[i+1], v, at, composePart)
			from.as, from.dir = s.held(from.file), path.Dir(from.file)
		}
	}
	if from.file == "" || from.service == "" || from.file == s.part.file && s.part.service == "" {
		return // the whole file is read
	}
	s.parts = append(s.parts, from)
}
