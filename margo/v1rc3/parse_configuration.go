package v1rc3

import (
	"math"
	"regexp"
	"slices"
	"strings"
)

func readConfiguration(v value) Configuration {
	o := v.Object("sections", "schema")
	var c Configuration
	shown := map[string]bool{}
	for _, item := range o.Need("sections").List() {
		s := item.Object("name", "settings")
		section := Section{Name: s.Need("name").Name()}
		for _, one := range s.Need("settings").Some() {
			f := one.Object("parameter", "name", "description", "immutable", "schema")
			immutable := f.Get("immutable").Bool()
			setting := Setting{
				Parameter:   f.Need("parameter").Name(),
				Name:        f.Need("name").Name(),
				Description: f.Get("description").Text(),
				Immutable:   immutable != nil && *immutable,
				Schema:      f.Need("schema").Name(),
			}
			if setting.Parameter != "" && shown[setting.Parameter] {
				f.Get("parameter").Warn("the parameter %q has a setting already, and the schema of that one holds", setting.Parameter)
			}
			shown[setting.Parameter] = true
			section.Settings = append(section.Settings, setting)
		}
		c.Sections = append(c.Sections, section)
	}
	names := map[string]bool{}
	for _, item := range o.Need("schema").List() {
		s := readSchema(item)
		if s.Name != "" && names[s.Name] {
			item.Note("the schema name %q is used twice", s.Name)
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
	o := v.Object("name", "dataType", "allowEmpty", "minLength", "maxLength", "regexMatch", "minValue", "maxValue",
		"minPrecision", "maxPrecision", "options", "multiselect")
	empty, multi := o.Get("allowEmpty").Bool(), o.Get("multiselect").Bool()
	dataType := o.Need("dataType")
	s := Schema{
		Name:         o.Need("name").Name(),
		DataType:     dataType.Name(),
		AllowEmpty:   empty != nil && *empty,
		MinLength:    o.Get("minLength").Count(),
		MaxLength:    o.Get("maxLength").Count(),
		RegexMatch:   o.Get("regexMatch").Text(),
		MinValue:     o.Get("minValue").Number(),
		MaxValue:     o.Get("maxValue").Number(),
		MinPrecision: o.Get("minPrecision").Count(),
		MaxPrecision: o.Get("maxPrecision").Count(),
		Multiselect:  multi != nil && *multi,
	}
	if !dataType.Exists() {
		return s
	}
	if !slices.Contains(rc3.dataTypes, s.scalarType()) || s.isArray() != strings.HasSuffix(s.DataType, "]") {
		dataType.Report("%q: want string, integer, double or boolean, or one of them as array[…]", s.DataType)
		return s
	}
	for _, key := range o.Keys {
		if types, limited := rules[key]; limited && !slices.Contains(types, s.scalarType()) {
			o.Fields[key].Note("this rule has no meaning for dataType %s", s.DataType)
		}
	}
	if s.scalarType() == "integer" {
		for _, key := range []string{"minValue", "maxValue"} {
			if bound := o.Get(key); bound.Exists() && bound.Number() != nil && math.Trunc(*bound.Number()) != *bound.Number() {
				bound.Report("want an integer, got %s", bound.Source())
			}
		}
	}
	s.checkRules(o)
	s.Options = readOptions(o, s)
	return s
}

func (s Schema) checkRules(o object) {
	if _, err := regexp.Compile(s.RegexMatch); err != nil {
		o.Get("regexMatch").Note("this regular expression is not supported (RE2 syntax, no lookaround, no back references): %v", err)
	}
	inverted := func(low, high string) {
		o.Get(low).Note("is above %s", high)
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
	list := o.Get("options")
	if list.Absent() {
		if o.Get("multiselect").Exists() {
			o.Note("a schema with multiselect needs options")
		}
		return nil
	}
	for _, key := range o.Keys {
		if _, rule := rules[key]; rule {
			o.Fields[key].Note("this rule has no meaning beside options")
		}
	}
	var all []any
	for _, item := range list.Some() {
		if !item.Exists() {
			continue
		}
		x := item.Scalar()
		if _, err := convert(s.scalarType(), x); err != nil {
			item.Report("%v", err)
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
	parameters := o.Get("parameters").Object()
	for _, name := range parameters.Keys {
		f := parameters.Fields[name].Object()
		for _, target := range f.Get("targets").List() {
			for _, c := range target.Object().Get("components").List() {
				if n := c.Text(); n != "" && !components[n] {
					c.Report("no profile has a component %q", n)
				}
			}
		}
		a.checkDefault(name, f.Get("value"))
	}
	schemas := map[string]bool{}
	for _, s := range a.Configuration.Schemas {
		schemas[s.Name] = true
	}
	for _, section := range o.Get("configuration").Object().Get("sections").List() {
		for _, setting := range section.Object().Get("settings").List() {
			f := setting.Object()
			if v := f.Get("parameter"); v.Exists() && a.Parameters[v.Text()].Targets == nil {
				v.Report("there is no parameter %q", v.Text())
			}
			if v := f.Get("schema"); v.Exists() && !schemas[v.Text()] {
				v.Report("there is no schema %q", v.Text())
			}
		}
	}
}

func (a *Application) checkDefault(name string, v value) {
	_, schema, ok := a.Setting(name)
	if !ok || !v.Exists() {
		return
	}
	for _, message := range schema.check(a.Parameters[name].Value) {
		v.Warn("the default breaks its schema %q: %s", schema.Name, message)
	}
}
