package v1rc3

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// scalarTypes are the data types of a schema, also as array[…].
var scalarTypes = []string{"string", "integer", "double", "boolean"}

func readConfiguration(v value) Configuration {
	o := v.object("sections", "schema")
	var c Configuration
	shown := map[string]bool{}
	for _, item := range o.need("sections").list() {
		s := item.object("name", "settings")
		section := Section{Name: s.need("name").name()}
		for _, one := range s.need("settings").some() {
			f := one.object("parameter", "name", "description", "immutable", "schema")
			immutable := f.get("immutable").boolean()
			setting := Setting{
				Parameter:   f.need("parameter").name(),
				Name:        f.need("name").name(),
				Description: f.get("description").text(),
				Immutable:   immutable != nil && *immutable,
				Schema:      f.need("schema").name(),
			}
			if setting.Parameter != "" && shown[setting.Parameter] {
				f.get("parameter").report("the parameter %q has a setting already", setting.Parameter)
			}
			shown[setting.Parameter] = true
			section.Settings = append(section.Settings, setting)
		}
		c.Sections = append(c.Sections, section)
	}
	names := map[string]bool{}
	for _, item := range o.get("schema").list() {
		s := readSchema(item)
		if s.Name != "" && names[s.Name] {
			item.problem("the schema name %q is used twice", s.Name)
		}
		names[s.Name] = true
		c.Schemas = append(c.Schemas, s)
	}
	return c
}

// scalarType returns the type of the value, or of an array's elements.
func (s Schema) scalarType() string {
	return strings.TrimSuffix(strings.TrimPrefix(s.DataType, "array["), "]")
}

func (s Schema) isArray() bool { return strings.HasPrefix(s.DataType, "array[") }

// rules are the keys of a schema that hold for some data types only.
var rules = map[string][]string{
	"minLength": {"string"}, "maxLength": {"string"}, "regexMatch": {"string"},
	"minValue": {"integer", "double"}, "maxValue": {"integer", "double"},
	"minPrecision": {"double"}, "maxPrecision": {"double"},
}

func readSchema(v value) Schema {
	o := v.object("name", "dataType", "allowEmpty", "minLength", "maxLength", "regexMatch", "minValue", "maxValue",
		"minPrecision", "maxPrecision", "options", "multiselect")
	empty, multi := o.get("allowEmpty").boolean(), o.get("multiselect").boolean()
	dataType := o.need("dataType")
	s := Schema{
		Name:         o.need("name").name(),
		DataType:     dataType.name(),
		AllowEmpty:   empty != nil && *empty,
		MinLength:    o.get("minLength").count(),
		MaxLength:    o.get("maxLength").count(),
		RegexMatch:   o.get("regexMatch").text(),
		MinValue:     o.get("minValue").number(),
		MaxValue:     o.get("maxValue").number(),
		MinPrecision: o.get("minPrecision").count(),
		MaxPrecision: o.get("maxPrecision").count(),
		Multiselect:  multi != nil && *multi,
	}
	if !dataType.exists() {
		return s
	}
	if !slices.Contains(scalarTypes, s.scalarType()) || s.isArray() != strings.HasSuffix(s.DataType, "]") {
		dataType.report("%q: want string, integer, double or boolean, or one of them as array[…]", s.DataType)
		return s
	}
	for _, key := range o.keys {
		if types, limited := rules[key]; limited && !slices.Contains(types, s.scalarType()) {
			o.fields[key].problem("this rule has no meaning for dataType %s", s.DataType)
		}
	}
	s.checkRules(o)
	s.Options = readOptions(o, s)
	return s
}

func (s Schema) checkRules(o object) {
	if _, err := regexp.Compile(s.RegexMatch); err != nil {
		o.get("regexMatch").problem("this regular expression is not supported (RE2 syntax, no lookaround, no back references): %v", err)
	}
	inverted := func(low, high string) {
		o.get(low).problem("is above %s", high)
	}
	if s.MinLength != nil && s.MaxLength != nil && *s.MinLength > *s.MaxLength {
		inverted("minLength", "maxLength")
	}
	if s.MinValue != nil && s.MaxValue != nil && *s.MinValue > *s.MaxValue {
		inverted("minValue", "maxValue")
	}
	if s.MinPrecision != nil && s.MaxPrecision != nil && *s.MinPrecision > *s.MaxPrecision {
		inverted("minPrecision", "maxPrecision")
	}
}

func readOptions(o object, s Schema) []any {
	list := o.get("options")
	if list.node == nil {
		if s.Multiselect {
			o.problem("a schema with multiselect needs options")
		}
		return nil
	}
	for _, key := range o.keys {
		if _, rule := rules[key]; rule {
			o.fields[key].problem("this rule has no meaning beside options")
		}
	}
	var all []any
	for _, item := range list.some() {
		if !item.exists() {
			continue
		}
		x := item.scalar()
		if _, err := convert(s.scalarType(), x); err != nil {
			item.report("%v", err)
		}
		all = append(all, x)
	}
	return all
}

// checkReferences checks what names something elsewhere in the document, and the
// defaults against their schemas.
func (a *Application) checkReferences(o object) {
	components := map[string]bool{}
	for _, p := range a.Profiles {
		for _, c := range p.Components {
			components[c.Name] = true
		}
	}
	parameters := o.get("parameters").object()
	for _, name := range parameters.keys {
		f := parameters.fields[name].object()
		for _, target := range f.get("targets").list() {
			for _, c := range target.object().get("components").list() {
				if n := c.text(); n != "" && !components[n] {
					c.report("no profile has a component %q", n)
				}
			}
		}
		a.checkDefault(name, f.get("value"))
	}
	schemas := map[string]bool{}
	for _, s := range a.Configuration.Schemas {
		schemas[s.Name] = true
	}
	for _, section := range o.get("configuration").object().get("sections").list() {
		for _, setting := range section.object().get("settings").list() {
			f := setting.object()
			if v := f.get("parameter"); v.exists() && a.Parameters[v.text()].Targets == nil {
				v.report("there is no parameter %q", v.text())
			}
			if v := f.get("schema"); v.exists() && !schemas[v.text()] {
				v.report("there is no schema %q", v.text())
			}
		}
	}
}

func (a *Application) checkDefault(name string, v value) {
	_, schema, ok := a.Setting(name)
	if !ok || !v.exists() {
		return
	}
	for _, message := range schema.check(a.Parameters[name].Value) {
		v.problem("the default breaks its schema %s: %s", fmt.Sprintf("%q", schema.Name), message)
	}
}
