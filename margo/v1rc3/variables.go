package v1rc3

import (
	"cmp"
	"slices"
)

// A Variable is where the value of a parameter goes in a component: for Compose, an
// environment variable.
type Variable struct {
	Name      string // the pointer of the target
	Parameter string // that sets it
	// Default is the value that it has where a deployment gives none; nil where it is not set
	// then, or Required.
	Default *string
	// Required says that a deployment must give a value.
	Required bool
	// Sample is a value that the schema names, of one that is Required: an option, or a
	// bound; nil where it names none.
	Sample *string
}

// Variables lists where the parameters go in a component, sorted by name and parameter.
func (a *Application) Variables(component string) (all []Variable) {
	for name, p := range a.Parameters {
		for _, t := range p.Targets {
			if !slices.Contains(t.Components, component) {
				continue
			}
			v := Variable{Name: t.Pointer, Parameter: name, Required: a.required(name)}
			if v.Required {
				v.Sample = a.sample(name)
			} else if p.Value != nil {
				v.Default = new(Text(p.Value))
			}
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b Variable) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Parameter, b.Parameter))
	})
	return slices.CompactFunc(all, func(a, b Variable) bool { return a.Name == b.Name && a.Parameter == b.Parameter })
}

// required reports whether a deployment must give a value for a parameter: one that is shown,
// may not be empty, and is so by default.
func (a *Application) required(name string) bool {
	_, schema, ok := a.Setting(name)
	return ok && !schema.AllowEmpty && Text(a.Parameters[name].Value) == ""
}

// sample returns a value that the schema of a parameter names, nil where it names none.
func (a *Application) sample(name string) *string {
	_, s, _ := a.Setting(name)
	switch {
	case len(s.Options) > 0:
		return new(Text(s.Options[0]))
	case s.isArray():
		return nil
	case s.DataType == "boolean":
		return new("true")
	case s.MinValue != nil:
		return new(Text(*s.MinValue))
	case s.MaxValue != nil:
		return new(Text(*s.MaxValue))
	}
	return nil
}
