// Package interpolate fills in the variables of a component as the reference implementation of
// Compose does: those of the Compose files, of .env, and of the env files of services. It is
// pure: files are given by their content.
package interpolate

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
)

// ProjectName is a variable that is always set, to the name of the component.
const ProjectName = "COMPOSE_PROJECT_NAME"

// DotEnv is the file of a component with the defaults of variables.
const DotEnv = ".env"

// Text fills in the variables of a text, without warnings to the process's error output: one
// that is not set is empty.
func Text(text string, lookup template.Mapping) (string, error) {
	return template.SubstituteWithOptions(text, lookup, template.WithoutLogging)
}

// folders are the variables of Compose's own environment that name folders: as paths, they begin in
// the folder of compose.yaml, and in the home directory, as Compose writes both.
var folders = map[string]string{"PWD": ".", "HOME": "~"}

// Folder is the lookup of these variables.
func Folder(name string) (string, bool) { return In(folders)(name) }

// IsFolder reports whether a variable has the value that the folder of compose.yaml, or the home
// directory, has in a path, and that says nothing anywhere else.
func IsFolder(name, value string) bool { return value != "" && folders[name] == value }

// pathKeys are the places in a document that hold paths of files beside compose.yaml.
var pathKeys = regexp.MustCompile(`^services\..+\.(volumes|env_file|security_opt)(\[|\.|$)|^(configs|secrets)\..+\.file$|^include(\[|$)`)

// IsPath reports whether a place in a document, such as services.web.volumes[0], holds a path of
// a file beside compose.yaml.
func IsPath(at string) bool { return pathKeys.MatchString(at) }

// Variables joins .env and what parameters set, the latter winning, also where .env refers to
// it. With an error, it returns what was read.
func Variables(component string, files map[string][]byte, parameters map[string]string) (map[string]string, error) {
	all := maps.Clone(folders)
	all[ProjectName] = component
	var failed error
	if content, ok := files[DotEnv]; ok {
		read, err := dotenv.ParseWithLookup(bytes.NewReader(content), func(name string) (string, bool) {
			if value, ok := parameters[name]; ok {
				return value, true
			}
			return Folder(name)
		})
		if err != nil {
			failed = fmt.Errorf("%s: %w", DotEnv, err)
		}
		maps.Copy(all, read)
	}
	maps.Copy(all, parameters)
	return all, failed
}

// FromFolders returns the variables that have a value of .env which refers to PWD or HOME, with the
// name of that. Variables are all of the component, and parameters those that parameters set: also
// to what .env says.
func FromFolders(files map[string][]byte, variables, parameters map[string]string) map[string]string {
	read := func(lookup dotenv.LookupFn) map[string]string {
		values, _ := dotenv.ParseWithLookup(bytes.NewReader(files[DotEnv]), lookup) // what is wrong with it, Variables says
		return values
	}
	plain := read(Folder)
	with := func(changed string) map[string]string {
		return read(func(name string) (string, bool) {
			value, ok := parameters[name]
			if same, set := plain[name]; ok && (!set || value != same) {
				return value, true
			}
			if name == changed {
				return "/", true
			}
			return Folder(name)
		})
	}
	found, before := map[string]string{}, with("")
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		for name, value := range with(folder) {
			if value != before[name] && before[name] == variables[name] {
				found[name] = folder
			}
		}
	}
	return found
}

// In returns the lookup of variables that a map holds.
func In(values map[string]string) template.Mapping {
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

// An Environment is that of a service, while it is put together.
type Environment struct {
	own    types.MappingWithEquals
	lookup template.Mapping
	values map[string]string
}

// NewEnvironment begins the environment of a service that says own under its key environment. A
// value that is nil is taken from the variables of the component.
func NewEnvironment(own types.MappingWithEquals, lookup template.Mapping) *Environment {
	e := &Environment{own: maps.Clone(own), lookup: lookup, values: map[string]string{}}
	for name, value := range e.own {
		if found, ok := lookup(name); value == nil && ok && !IsFolder(name, found) {
			e.own[name] = &found
		}
		if e.own[name] != nil {
			e.values[name] = *e.own[name]
		}
	}
	return e
}

// File adds an env file. What it refers to are the variables of the component, then what the
// service says under environment, then what this file and those before it say. missing are the
// variables that it refers to and that are not set.
func (e *Environment) File(name string, content []byte) (missing map[string]bool, err error) {
	missing = map[string]bool{}
	err = dotenv.ParseWithFormat(bytes.NewReader(content), name, e.values, func(asked string) (string, bool) {
		if value, ok := e.lookup(asked); ok {
			return value, true
		}
		if value := e.own[asked]; value != nil {
			return *value, true
		}
		if _, ok := e.values[asked]; !ok {
			missing[asked] = true
		}
		return "", false
	}, "")
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // without the name of the file, which the caller says
	}
	return missing, err
}

// Values returns what the container has. What the service says under environment wins over its
// files: also a name without a value that is not set, which is then left out.
func (e *Environment) Values() map[string]string {
	for name, value := range e.own {
		if value == nil {
			delete(e.values, name)
		} else {
			e.values[name] = *value
		}
	}
	return e.values
}
