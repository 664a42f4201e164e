package packaging

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

// A Parameter is what became of a variable.
type Parameter struct {
	Name string `json:"name"`
	// Default is the value that the vendor's files give it everywhere. Without one, and not
	// Required, it is not set where no deployment gives it a value: then the files say what holds.
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
	interpolate.ProjectName: "Colony sets it to the name of the component",
	"COMPOSE_FILE":          "a component has one compose.yaml",
	"PWD":                   "there is no such folder on a node: write a relative path",
	"HOME":                  "there is no such folder on a node: write a relative path",
}

// collect sorts the occurrences of variables by name.
type collect struct {
	env    map[string]string // of .env
	byName map[string][]occurrence
	passed map[string]location
	given  map[string]bool // variables of containers, which env files refer to as well
	// references are the variables that the values of .env refer to, by those that have them.
	references map[string][]string
	// effect fills in the component; vendors is what it is without parameters, where those that
	// are required have any value, and chosen the values of parameters until now.
	effect  func(map[string]string) effect
	vendors effect
	chosen  map[string]string
	notes   []Note
}

// parameters decides for each variable whether it becomes a parameter.
func (c *collect) parameters() []Parameter {
	for name := range c.passed {
		if c.byName[name] == nil {
			c.byName[name] = nil
		}
	}
	c.chosen = map[string]string{}
	for name := range c.byName {
		if c.required(name) {
			c.chosen[name] = "1"
		} else if c.emptyAsUnset(name) {
			c.chosen[name] = "" // the library writes a warning of each that is not set
		}
	}
	c.vendors = c.effect(c.chosen)
	var all []Parameter
	for _, name := range slices.Sorted(maps.Keys(c.byName)) {
		at := c.at(name)
		if why, ok := reserved[name]; ok {
			if i := slices.IndexFunc(c.byName[name], func(o occurrence) bool { return !interpolate.IsPath(o.path) }); i >= 0 {
				c.note(c.byName[name][i].location, "%s is no parameter: %s", name, why)
			}
			continue
		}
		all = append(all, c.parameter(name, at))
	}
	return all
}

// required reports whether the files do not compile without a value of a variable.
func (c *collect) required(name string) bool {
	value, set := c.env[name]
	return reserved[name] == "" && slices.ContainsFunc(c.byName[name], func(o occurrence) bool {
		return o.own == nil && (o.operator == ":?" && value == "" || o.operator == "?" && !set)
	})
}

// emptyAsUnset reports whether it makes no difference to the files if a variable is empty or is not
// set.
func (c *collect) emptyAsUnset(name string) bool {
	_, set := c.env[name]
	_, passed := c.passed[name]
	return !set && !passed && !c.given[name] && reserved[name] == "" && !slices.ContainsFunc(c.byName[name], func(o occurrence) bool {
		return o.own != nil || o.operator != "" && !strings.HasPrefix(o.operator, ":")
	})
}

// parameter makes one variable a parameter.
func (c *collect) parameter(name string, at location) Parameter {
	p := Parameter{Name: name, Port: len(c.byName[name]) > 0, Required: c.required(name)}
	var defaults []string
	for _, u := range c.byName[name] {
		p.Port = p.Port && u.port
		switch {
		case u.own != nil:
			defaults = append(defaults, *u.own)
		case u.operator == ":?" || u.operator == "?":
			p.Description = cmp.Or(p.Description, u.word)
		case u.operator == ":-" || u.operator == "-":
			if word, err := interpolate.Text(u.word, interpolate.In(c.env)); err == nil {
				defaults = append(defaults, word)
			}
		}
	}
	if value, ok := c.env[name]; ok {
		defaults = []string{value}
	}
	if len(defaults) == 0 {
		defaults = []string{""}
	}
	if !p.Required && !c.refers(name) {
		c.settle(&p, defaults)
	}
	if p.Description == "" {
		p.Description = "used in " + c.where(name)
	}
	if p.Default == nil && !p.Required {
		p.Description += "; without a value, the files of the component say what holds"
	}
	if p.Port && !p.Required {
		n, err := strconv.ParseUint(value(p.Default), 10, 16)
		p.Port = err == nil && n > 0 && strconv.FormatUint(n, 10) == *p.Default
	}
	if i := slices.IndexFunc(defaults, func(word string) bool { return word != "" }); i >= 0 && !p.Required && isSecret(name) {
		c.note(at, "%s has the default %q, which every installation shares that gives no other: leave the value out in margo.yaml, and each must give one", name, defaults[i])
	}
	return p
}

// value returns a text, "" for none.
func value(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// refers reports whether the value of a variable follows another one, which a default would not.
func (c *collect) refers(name string) bool {
	_, set := c.env[name]
	return set && len(c.references[name]) > 0 || slices.ContainsFunc(c.byName[name], func(o occurrence) bool {
		return o.own != nil && len(o.refers) > 0 || !set && strings.HasSuffix(o.operator, "-") && len(usesOf(o.word)) > 0
	})
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
			variables = append(variables, v1rc3.Variable{Name: q.Name, Parameter: q.Name, Default: q.Default, Required: q.Required})
		}
		unfit := compiler.Unfit(p.Component, tgz, variables)
		for i := range p.Parameters {
			q := &p.Parameters[i]
			if q.Required || !slices.Contains(unfit, q.Name) || q.Name == profilesVariable {
				continue
			}
			if value(q.Default) != "" {
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

// settle finds the default of a parameter: one with which the component says what it says without
// parameters, in each place. Where there is none, the parameter has no value by default, so that
// each place keeps what the vendor has there.
func (c *collect) settle(p *Parameter, candidates []string) {
	for _, value := range candidates {
		parameters := maps.Clone(c.chosen)
		parameters[p.Name] = value
		if c.vendors == nil || c.effect(parameters).differs(c.vendors) {
			continue
		}
		p.Default, c.chosen = &value, parameters
		return
	}
}

// follow adds the uses of variables by the values in .env of those that are used.
func (c *collect) follow(content []byte) {
	uses := usesOf(string(content))
	c.references = referring(content)
	done := map[string]bool{}
	for more := true; more; {
		more = false
		for _, name := range slices.Concat(slices.Collect(maps.Keys(c.byName)), slices.Collect(maps.Keys(c.passed))) {
			if _, set := c.env[name]; !set || done[name] {
				continue
			}
			done[name], more = true, true
			for _, u := range uses {
				if slices.Contains(c.references[name], u.name) {
					c.byName[u.name] = append(c.byName[u.name], occurrence{use: u, location: location{path: dotEnv}})
				}
			}
		}
	}
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
