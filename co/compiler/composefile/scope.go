package composefile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
)

// envName is the file with the defaults of variables in the directory of a project.
const envName = ".env"

// A scope holds the variables of a file: those of the file that includes it, and below them those
// of the env files of the include, which no other file sees.
type scope struct {
	id      string
	values  map[string]string
	renamed map[string]string // those of env files: by name, the name in Document.Variables
}

// lookup returns the value of a variable.
func (s *scope) lookup(name string) (string, bool) {
	v, ok := s.values[name]
	return v, ok
}

// inner returns the scope of a file that is included with these env files.
func (r *reader) inner(outer *scope, envFiles []string) (*scope, error) {
	if len(envFiles) == 0 {
		return outer, nil
	}
	id := outer.id + "\n" + strings.Join(envFiles, "\t")
	if s := r.scopes[id]; s != nil {
		return s, nil
	}
	own := map[string]string{}
	for _, name := range envFiles {
		b, ok := r.files[name]
		if !ok {
			return nil, fmt.Errorf("env_file: the archive has no file %q", name)
		}
		read, err := dotenv.ParseWithLookup(bytes.NewReader(b), func(name string) (string, bool) {
			if v, ok := outer.lookup(name); ok {
				return v, true
			}
			v, ok := own[name]
			return v, ok
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		maps.Copy(own, read)
	}
	s := &scope{id: id, values: maps.Clone(own), renamed: maps.Clone(outer.renamed)}
	maps.Copy(s.values, outer.values)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if _, ok := outer.lookup(name); ok {
			continue
		}
		unique := fmt.Sprintf("%s__of_include_%d", name, len(r.scopes)+1)
		s.renamed[name], r.variables[unique], r.names[unique] = unique, own[name], name
	}
	r.scopes[id] = s
	return s, nil
}

// reference finds each variable that a text names, and what stands for a single $.
var reference = regexp.MustCompile(`\$\$|\$\{?[A-Za-z_][A-Za-z0-9_]*`)

// rename makes the variables of env files in a value name those of Document.Variables.
func (s *scope) rename(v any) any {
	switch v := v.(type) {
	case string:
		return reference.ReplaceAllStringFunc(v, func(found string) string {
			name := strings.TrimLeft(found, "${")
			if unique, ok := s.renamed[name]; ok {
				return strings.TrimSuffix(found, name) + unique
			}
			return found
		})
	case []any:
		for i := range v {
			v[i] = s.rename(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = s.rename(v[key])
		}
	}
	return v
}

// apply makes a document that was read in this scope mean the same in the scope of the
// whole project.
func (s *scope) apply(document map[string]any) {
	if len(s.renamed) == 0 {
		return
	}
	s.rename(document)
	services, _ := document["services"].(map[string]any)
	for _, v := range services {
		if service, ok := v.(map[string]any); ok {
			s.passOn(service["environment"])
		}
	}
	for _, section := range []string{"configs", "secrets"} {
		entries, _ := document[section].(map[string]any)
		for _, v := range entries {
			entry, _ := v.(map[string]any)
			if name, ok := entry["environment"].(string); ok && s.renamed[name] != "" {
				entry["environment"] = s.renamed[name]
			}
		}
	}
}

// passOn gives the variables that a service takes over by their names the values of the env
// files. As in the reference implementation, one with a null value in a mapping is taken over
// from the whole project alone.
func (s *scope) passOn(environment any) {
	list, _ := environment.([]any)
	for i, item := range list {
		name, _ := item.(string)
		if _, ok := s.renamed[name]; ok {
			list[i] = name + "=" + strings.ReplaceAll(s.values[name], "$", "$$")
		}
	}
}

// An inclusion is an item of include.
type inclusion struct {
	file     string   // in the archive
	changes  []string // files that are merged into it, each over those before it
	dir      string   // from which the relative paths in it are seen
	envFiles []string // of its variables, later ones winning
	scope    *scope
}

// inclusion reads an item of include in a project whose directory is dir.
func (r *reader) inclusion(dir string, item any) (inclusion, error) {
	var in inclusion
	long, ok := item.(map[string]any)
	if !ok {
		long = map[string]any{"path": item}
	}
	files, ok := oneOrMore(long["path"])
	if !ok || len(files) == 0 {
		return in, errors.New("path: want the name of a file")
	}
	for i, text := range files {
		name, err := within(dir, text)
		if err != nil {
			return in, err
		}
		if i == 0 {
			in.file, in.dir = name, path.Dir(name)
		} else {
			in.changes = append(in.changes, name)
		}
	}
	var err error
	if given, ok := long["project_directory"].(string); ok && given != "" {
		if in.dir, err = within(dir, given); err != nil {
			return in, fmt.Errorf("project_directory: %w", err)
		}
	} else if long["project_directory"] != nil && !ok {
		return in, errors.New("project_directory: want a directory of the archive")
	}
	envFiles, ok := oneOrMore(long["env_file"])
	switch {
	case !ok && long["env_file"] != nil:
		return in, errors.New("env_file: want a file of the archive, or a list of them")
	case len(envFiles) == 0:
		if name := path.Join(in.dir, envName); r.files[name] != nil {
			in.envFiles = []string{name}
		}
		return in, nil
	}
	for _, text := range envFiles {
		if text == "/dev/null" { // how Compose says none
			continue
		}
		name, err := within(dir, text)
		if err != nil {
			return in, fmt.Errorf("env_file: %w", err)
		}
		in.envFiles = append(in.envFiles, name)
	}
	return in, nil
}

// oneOrMore reads a text or a list of texts.
func oneOrMore(v any) ([]string, bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, true
	case []any:
		var all []string
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, false
			}
			all = append(all, text)
		}
		return all, true
	}
	return nil, false
}
