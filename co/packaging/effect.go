package packaging

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
)

// An effect is what a component says with some values of its variables: texts by their paths in
// the Compose files, with all that these include and extend.
type effect map[string]string

// effect fills in the variables of the component. It is nil where the files are not one document,
// which the lint says.
func (p *Package) effect(parameters map[string]string) effect {
	files := map[string][]byte{}
	for name, f := range p.Files {
		if inside, ok := strings.CutPrefix(name, p.folder()+"/"); ok {
			files[inside] = f.Content
		}
	}
	variables, err := interpolate.Variables(p.Component, files, parameters)
	if err != nil {
		return nil
	}
	document, err := composefile.Read(files, composeFile, variables)
	if err != nil {
		return nil
	}
	maps.Copy(variables, document.Variables)
	e := filled{effect{profilesVariable: variables[profilesVariable]}, files, variables}
	services, _ := document.Values["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if service, ok := services[name].(map[string]any); ok {
			e.environment("services."+name, service)
		}
	}
	e.walk("", document.Values)
	return e.effect
}

// A filled is an effect that is being put together.
type filled struct {
	effect
	files     map[string][]byte
	variables map[string]string
}

// text fills in a text. What is wrong with it counts as its value: the lint says it.
func (e filled) text(v any) string {
	text, err := interpolate.Text(fmt.Sprint(v), interpolate.In(e.variables))
	if err != nil {
		return "error: " + err.Error()
	}
	return text
}

func (e filled) walk(at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			e.walk(strings.TrimPrefix(at+"."+name, "."), value)
		}
		section, _, _ := strings.Cut(at, ".")
		if name, ok := v["environment"].(string); ok && (section == "configs" || section == "secrets") {
			value, set := e.variables[name]
			e.effect[at+".environment"] = fmt.Sprint(set, value)
		}
	case []any:
		for i, item := range v {
			e.walk(fmt.Sprintf("%s[%d]", at, i), item)
		}
	default:
		if _, known := e.effect[at]; !known {
			e.effect[at] = e.text(v)
		}
	}
}

// environment fills in the environment of a service, with its env files, and takes it out of the
// service.
func (e filled) environment(at string, service map[string]any) {
	own := types.MappingWithEquals{}
	switch given := service["environment"].(type) {
	case map[string]any:
		for name, value := range given {
			if own[name] = nil; value != nil {
				text := e.text(value)
				own[name] = &text
			}
		}
	case []any:
		for _, item := range given {
			name, value, ok := strings.Cut(e.text(item), "=")
			if own[name] = nil; ok {
				own[name] = &value
			}
		}
	}
	environment := interpolate.NewEnvironment(own, interpolate.In(e.variables))
	var envFiles []any
	switch given := service["env_file"].(type) {
	case []any:
		envFiles = given
	case nil:
	default:
		envFiles = []any{given}
	}
	for i, item := range envFiles {
		if long, ok := item.(map[string]any); ok {
			item = long["path"]
		}
		name := path.Clean(e.text(item))
		e.effect[fmt.Sprintf("%s.env_file[%d]", at, i)] = name
		if _, err := environment.File(name, e.files[name]); err != nil {
			e.effect[fmt.Sprintf("%s.env_file[%d]", at, i)] = "error: " + err.Error()
		}
	}
	for name, value := range environment.Values() {
		e.effect[at+".environment."+name] = value
	}
	delete(service, "environment")
	delete(service, "env_file")
}

// differs reports whether another effect is another one.
func (e effect) differs(other effect) bool { return !maps.Equal(e, other) }
