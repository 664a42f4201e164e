package compiler

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/interpolate"
)

// warnFixed warns of variables that a parameter sets and that an env file of a service sets, too.
// The service would have another value than the rest of the file, such as a database and its client
// with two passwords. What the service says under environment wins over its files.
func (t *translation) warnFixed(service string, s types.ServiceConfig) {
	if len(t.parameters) == 0 || len(s.EnvFiles) == 0 {
		return
	}
	one, other := t.probe(s, t.given("1")), t.probe(s, t.given("2"))
	for _, name := range slices.Sorted(maps.Keys(one)) {
		if _, own := s.Environment[name]; own || !t.parameters[name] || one[name] != other[name] && t.follows(s, name) {
			continue
		}
		file, line := t.setIn(s.EnvFiles, name)
		path, _ := t.located("services."+service+".env_file", "")
		t.warnings = append(t.warnings, t.plain(fmt.Sprintf("%s: %s%s: %s sets %s for service %s, whatever value a deployment gives its parameter: write %s=${%s} there, "+
			"which is filled in from the parameter, or %s=${%s:-value} with what holds without one", file, line, path, file, name, service, name, name, name, name)))
	}
}

// follows reports whether the variable name of a service changes with its own parameter, where
// those of the others have a value, or none.
func (t *translation) follows(s types.ServiceConfig, name string) bool {
	for _, given := range []bool{true, false} {
		with := func(value string) string {
			variables, _ := interpolate.Variables(t.component, t.archive.Files, map[string]string{name: value}) // what is wrong with them is said
			return t.probe(s, func(asked string) (string, bool) {
				other := asked != name && t.parameters[asked]
				if other && given {
					return placeholder, true
				}
				if v, ok := variables[asked]; ok || other {
					return v, ok
				}
				return t.lookup(asked)
			})[name]
		}
		if with("1") != with("2") {
			return true
		}
	}
	return false
}

// given looks variables up where each one that a parameter sets has a value.
func (t *translation) given(value string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if t.parameters[name] {
			return value, true
		}
		return t.lookup(name)
	}
}

// probe returns the environment of a service with some values of variables.
func (t *translation) probe(s types.ServiceConfig, lookup func(string) (string, bool)) map[string]string {
	e := interpolate.NewEnvironment(s.Environment, lookup)
	for _, f := range s.EnvFiles {
		if b, err := t.archive.File(f.Path); err == nil {
			_, _ = e.File(f.Path, b) // what is wrong with it, environment says
		}
	}
	return e.Values()
}

// setIn returns the env file whose value of a variable holds, and "line N: " of it.
func (t *translation) setIn(files []types.EnvFile, name string) (file, line string) {
	sets := regexp.MustCompile(`(?m)^[ \t]*(?:export[ \t]+)?` + regexp.QuoteMeta(name) + `[ \t]*[=:]`)
	for _, f := range slices.Backward(files) {
		b, err := t.archive.File(f.Path)
		if err != nil {
			continue
		}
		if all := sets.FindAllIndex(b, -1); len(all) > 0 {
			return f.Path, fmt.Sprintf("line %d: ", 1+strings.Count(string(b[:all[len(all)-1][0]]), "\n"))
		}
		file = f.Path
	}
	return file, ""
}
