package packaging

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

// A Parameter is what became of a variable.
type Parameter struct {
	Name string `json:"name"`
	// Default is the value that the vendor's files give it; nil where they give none.
	Default *string `json:"default,omitempty"`
	// Required says that the application does not start without a value, by ${NAME:?…}.
	Required bool `json:"required,omitempty"`
	// Description is the message of ${NAME:?message}, or where the variable is used.
	Description string `json:"description"`
	// Port says that it is a port of the node.
	Port bool `json:"port,omitempty"`
}

// reserved are variables with a meaning of their own, which no parameter replaces.
var reserved = map[string]string{
	"COMPOSE_PROJECT_NAME": "Colony sets it to the name of the component",
	"COMPOSE_FILE":         "a component has one compose.yaml",
	"PWD":                  "there is no such folder on a node: write a relative path",
	"HOME":                 "there is no such folder on a node: write a relative path",
}

// collect sorts the occurrences of variables by name.
type collect struct {
	env    map[string]string // of .env
	byName map[string][]occurrence
	passed map[string]location
	notes  []Note
}

// readEnv reads the .env beside the Compose file.
func readEnv(content []byte) (map[string]string, error) {
	return dotenv.ParseWithLookup(bytes.NewReader(content), func(string) (string, bool) { return "", false })
}

// parameters decides what becomes of each variable.
func (c *collect) parameters() []Parameter {
	for name := range c.passed {
		if c.byName[name] == nil {
			c.byName[name] = nil
		}
	}
	var all []Parameter
	for _, name := range slices.Sorted(maps.Keys(c.byName)) {
		at := c.at(name)
		if why, ok := reserved[name]; ok {
			c.note(at, "%s is no parameter: %s", name, why)
			continue
		}
		if p, ok := c.parameter(name, at); ok {
			all = append(all, p)
		}
	}
	return all
}

// parameter makes one variable a parameter, if its value can be one.
func (c *collect) parameter(name string, at location) (Parameter, bool) {
	uses := c.byName[name]
	p := Parameter{Name: name, Port: len(uses) > 0}
	defaults := map[string]location{}
	for _, u := range uses {
		p.Port = p.Port && u.port
		if u.own != nil {
			defaults[*u.own] = u.location
			if i := slices.IndexFunc(uses, func(o occurrence) bool { return o.own == nil }); i >= 0 {
				c.note(u.location, "%s is no parameter: an env file of include gives it the value %q, which %s does not see; give the variable another name in one of them", name, *u.own, uses[i].path)
				return p, false
			}
			continue
		}
		switch u.operator {
		case ":?", "?":
			p.Required = true
			p.Description = u.word
		case ":-", "-":
			defaults[u.word] = u.location
			if len(usesOf(u.word)) > 0 {
				c.note(u.location, "%s is no parameter: its default %q holds another variable, and the value of a parameter is fixed; that variable is one", name, u.word)
				return p, false
			}
		}
	}
	for _, u := range uses {
		if _, set := c.env[name]; u.operator == "+" && !set && len(defaults) == 0 && !p.Required {
			c.note(u.location, "%s is no parameter: ${%s+…} asks whether it is set, and a parameter always is; write ${%s:+…}, which asks whether it is empty", name, name, name)
			return p, false
		}
	}
	if !c.settle(&p, at, defaults) {
		return p, false
	}
	if p.Description == "" {
		p.Description = "used in " + c.where(name)
	}
	if p.Port && p.Default != nil {
		n, err := strconv.ParseUint(*p.Default, 10, 16)
		p.Port = err == nil && n > 0 && strconv.FormatUint(n, 10) == *p.Default
	}
	if p.Default != nil && *p.Default != "" && isSecret(name) {
		c.note(at, "%s has the default %q, which every installation shares that gives no other: leave the value out in margo.yaml, and each must give one", name, *p.Default)
	}
	return p, true
}

// demand takes the defaults away with which the component does not compile, so that each
// deployment must give a value.
func (p *Package) demand(c *collect) error {
	files := map[string]archive.File{}
	for name, f := range p.Files {
		if inside, ok := strings.CutPrefix(name, p.folder()+"/"); ok {
			files[path.Join(p.Component, inside)] = f
		}
	}
	tgz, err := archive.Tar(files)
	if err != nil {
		return invalid("pack the component: %w", err)
	}
	for found := true; found; {
		found = false
		var variables []v1rc3.Variable
		for _, q := range p.Parameters {
			variables = append(variables, v1rc3.Variable{Name: q.Name, Parameter: q.Name, Default: q.Default, Required: q.Default == nil})
		}
		unfit := compiler.Unfit(p.Component, tgz, variables)
		for i := range p.Parameters {
			q := &p.Parameters[i]
			if q.Default == nil || !slices.Contains(unfit, q.Name) || q.Name == profilesVariable {
				continue
			}
			if *q.Default != "" {
				p.note(c.at(q.Name), "%s has no default: with %q, which the vendor's files give, the component does not compile", q.Name, *q.Default)
			}
			q.Default, q.Required, found = nil, true, true
		}
	}
	return nil
}

// at returns where a variable is used first.
func (c *collect) at(name string) location {
	if uses := c.byName[name]; len(uses) > 0 {
		return uses[0].location
	}
	return c.passed[name]
}

// settle finds the default of a variable.
func (c *collect) settle(p *Parameter, at location, defaults map[string]location) bool {
	if value, ok := c.env[p.Name]; ok {
		p.Default = &value
		p.Required = p.Required && value == ""
	} else if len(defaults) > 1 {
		var list []string
		for _, word := range slices.Sorted(maps.Keys(defaults)) {
			list = append(list, fmt.Sprintf("%q in %s", word, defaults[word]))
		}
		c.note(at, "%s is no parameter: it has the defaults %s, and a parameter has one; write the same in each place", p.Name, strings.Join(list, ", "))
		return false
	} else if len(defaults) == 1 && !p.Required {
		for word := range defaults {
			p.Default = &word
		}
	} else if !p.Required {
		empty := ""
		p.Default = &empty
		if len(c.byName[p.Name]) == 0 {
			c.note(at, "%s is empty where no deployment gives it a value; with Compose it is then missing", p.Name)
		}
	}
	if p.Required {
		p.Default = nil
	}
	return true
}

// where lists some locations of a variable.
func (c *collect) where(name string) string {
	var locations []string
	for _, u := range c.byName[name] {
		if !slices.Contains(locations, u.path) {
			locations = append(locations, u.path)
		}
	}
	if len(locations) == 0 {
		locations = []string{c.passed[name].path}
	}
	if more := len(locations) - 3; more > 0 {
		locations = append(locations[:3], fmt.Sprintf("%d more", more))
	}
	return strings.Join(locations, ", ")
}

// isSecret reports whether the value of a variable should not be the same everywhere.
func isSecret(name string) bool {
	for _, word := range []string{"PASSWORD", "PASSWD", "PASS", "SECRET", "TOKEN", "API_KEY", "PRIVATE_KEY"} {
		if strings.HasSuffix(strings.ToUpper(name), word) {
			return true
		}
	}
	return false
}

func (c *collect) note(at location, format string, args ...any) {
	c.notes = append(c.notes, Note{File: at.file, Path: at.path, Line: at.line, Message: fmt.Sprintf(format, args...)})
}
