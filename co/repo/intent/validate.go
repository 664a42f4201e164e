package intent

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Validate holds a deployment, whoever wrote its file, against the rules that Create and
// Update hold a request to: its profile and parameters exist, each value keeps its
// schema, none that is required is missing, and an immutable one has the value of the
// first install. installed are those values, from Installed. raw is the file, for the
// lines; it may be nil. Wrong input is an error that holds v1rc3.Problems.
func Validate(app *v1rc3.Application, d *v1rc3.Deployment, installed map[string]any, raw []byte) error {
	err := validate(app, d, installed)
	problems, ok := errors.AsType[v1rc3.Problems](err)
	if !ok {
		return err
	}
	for i := range problems {
		p := &problems[i]
		if name, ok := strings.CutPrefix(p.Path, "values."); ok {
			p.Path = "spec.parameters." + name + ".value"
		} else if p.Path == "profile" {
			p.Path = "spec." + v1rc3.ExtensionKey + ".profile"
		}
	}
	return protocol.Errorf(protocol.Invalid, "%w", document.Locate(raw, problems))
}

func validate(app *v1rc3.Application, d *v1rc3.Deployment, installed map[string]any) error {
	values := previousValues(d, app)
	for name, p := range d.Spec.Parameters {
		if _, known := app.Parameters[name]; !known {
			values[name] = p.Value
		}
	}
	before := maps.Clone(values) // what was not installed before may have any value
	for name, x := range installed {
		if _, known := app.Parameters[name]; known {
			before[name] = x
		}
	}
	if err := app.ValidateValues(values, before); err != nil {
		return err
	}
	if d.Spec.Colony == nil || d.Spec.Colony.Profile == "" {
		return nil // which parameters it needs is not known
	}
	_, err := v1rc3.Build(app, d.Spec.Colony.Profile, values, v1rc3.Request{
		ID: d.ID, Name: d.Metadata.Name, DeviceID: d.Metadata.DeviceID,
	})
	return err
}

// Runs reports whether a deployment runs a profile of an application: each of its components is one of the
// profile, from the same archive.
func Runs(app *v1rc3.Application, d *v1rc3.Deployment) bool {
	return slices.ContainsFunc(app.Profiles, func(p v1rc3.Profile) bool {
		return p.Type == d.Spec.Profile.Type && len(p.Components) == len(d.Spec.Profile.Components) &&
			!slices.ContainsFunc(d.Spec.Profile.Components, func(c v1rc3.Component) bool {
				return !slices.ContainsFunc(p.Components, func(own v1rc3.Component) bool { return archive(own) == archive(c) })
			})
	})
}

// archive says what a component runs.
func archive(c v1rc3.Component) string {
	return c.Name + " " + c.Properties.Repository + " " + c.Properties.Revision
}

// Version tells by which version of an application a deployment goes: by the one that it names, and
// by what it runs.
func Version(d *v1rc3.Deployment) string {
	var all []string
	if d.Spec.Colony != nil {
		all = append(all, d.Spec.Colony.ApplicationVersion)
	}
	for _, c := range d.Spec.Profile.Components {
		all = append(all, archive(c))
	}
	return strings.Join(all, "\n")
}

// HasImmutable reports whether an application has parameters that may not change after
// the first install.
func HasImmutable(app *v1rc3.Application) bool {
	for name := range app.Parameters {
		if setting, _, ok := app.Setting(name); ok && setting.Immutable {
			return true
		}
	}
	return false
}

// Installed returns the values that the immutable parameters of app had first in a
// deployment. revisions are those of its file, the oldest first; nil is one that removed
// the file, or that cannot be read. A deployment begins with its id: what another one
// under the same name had is left out. So is all of a revision that breaks the rules of
// its application, because it was never installed; rules returns the application that a
// revision names, nil where its rules are not known.
func Installed(app *v1rc3.Application, id string, revisions []*v1rc3.Deployment, rules func(*v1rc3.Deployment) *v1rc3.Application) map[string]any {
	first := map[string]any{}
	for _, d := range revisions {
		if d == nil || d.ID != id || d.Spec.ApplicationID != app.ID {
			continue
		}
		if own := rules(d); own != nil && validate(own, d, first) != nil {
			continue
		}
		for name, x := range previousValues(d, app) {
			setting, _, ok := app.Setting(name)
			_, known := first[name]
			if !ok || !setting.Immutable || known || v1rc3.Text(x) == "" {
				continue
			}
			if app.ValidateValues(map[string]any{name: x}, nil) == nil {
				first[name] = x
			}
		}
	}
	return first
}
