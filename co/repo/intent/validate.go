package intent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Resolve checks a deployment of any author against the rules that Create and Update apply to a
// request. Its profile and parameters exist, each value satisfies its schema, no required value is
// missing, an immutable one has the value of the first install, and the targets are those of the
// application (Margo 1.0.0-rc.3, Parameter). It returns the deployment as it runs: with the
// defaults of the parameters that the file leaves out, which the import checked. installed are the
// values of the first install, from Installed. raw is the file, for the line numbers; it may be
// nil. Wrong input is an error that holds v1rc3.Problems.
func Resolve(app *v1rc3.Application, d *v1rc3.Deployment, installed map[string]any, raw []byte) (*v1rc3.Deployment, error) {
	resolved, err := resolve(app, d, installed)
	problems, ok := errors.AsType[v1rc3.Problems](err)
	if !ok {
		return resolved, err
	}
	for i := range problems {
		p := &problems[i]
		if name, ok := strings.CutPrefix(p.Path, "values."); ok {
			p.Path = "spec.parameters." + name + ".value"
		} else if p.Path == "profile" {
			p.Path = "spec." + v1rc3.ExtensionKey + ".profile"
		}
	}
	return nil, protocol.Errorf(protocol.Invalid, "%w", document.Locate(raw, problems))
}

func resolve(app *v1rc3.Application, d *v1rc3.Deployment, installed map[string]any) (*v1rc3.Deployment, error) {
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
		return nil, err
	}
	id := profileOf(app, d)
	if id == "" {
		return nil, ofNoProfile(app, d)
	}
	built, err := v1rc3.Build(app, id, values, v1rc3.Request{
		ID: d.ID, Name: d.Metadata.Name, DeviceID: d.Metadata.DeviceID,
	})
	if err != nil {
		return nil, err
	}
	if err := slices.Concat(checkComponents(built, d), checkArchives(built, d), checkTargets(built, d)).Err(); err != nil {
		return nil, err
	}
	resolved := *d
	resolved.Spec.Parameters = maps.Clone(built.Spec.Parameters)
	maps.Copy(resolved.Spec.Parameters, d.Spec.Parameters)
	return &resolved, nil
}

// profileOf returns the id of the profile of an application that a deployment runs: the one
// that it names, else the one whose archives it has. It is empty where neither is known.
func profileOf(app *v1rc3.Application, d *v1rc3.Deployment) string {
	if d.Spec.Colony != nil && d.Spec.Colony.Profile != "" {
		return d.Spec.Colony.Profile
	}
	for _, p := range app.Profiles {
		if runs(p, d) {
			return p.ID
		}
	}
	return ""
}

// checkComponents finds components that the profile does not have, and the reverse: the rules
// of another profile would be those of something else.
func checkComponents(want, got *v1rc3.Deployment) v1rc3.Problems {
	names := func(d *v1rc3.Deployment) (all []string) {
		for _, c := range d.Spec.Profile.Components {
			all = append(all, c.Name)
		}
		slices.Sort(all)
		return all
	}
	has, wants := names(got), names(want)
	if slices.Equal(has, wants) {
		return nil
	}
	return v1rc3.Problems{{Path: "spec.deploymentProfile.components", Message: fmt.Sprintf("the profile %s of application %s %s has the components %s, not %s",
		want.Spec.Colony.Profile, want.Spec.ApplicationID, want.Spec.Colony.ApplicationVersion, strings.Join(wants, ", "), strings.Join(has, ", "))}}
}

// checkArchives finds components that come from elsewhere than those of the application: what
// runs would be another one under its name.
func checkArchives(want, got *v1rc3.Deployment) (problems v1rc3.Problems) {
	for i, c := range got.Spec.Profile.Components {
		for _, own := range want.Spec.Profile.Components {
			if own.Name != c.Name || archive(own) == archive(c) {
				continue
			}
			key := "repository"
			if own.Properties.Repository == c.Properties.Repository {
				key = "revision"
			}
			problems = append(problems, v1rc3.Problem{
				Path: fmt.Sprintf("spec.deploymentProfile.components[%d].properties.%s", i, key),
				Message: fmt.Sprintf("component %s of application %s %s is %s, not %s: name that, or the application whose component this is",
					c.Name, want.Spec.ApplicationID, want.Spec.Colony.ApplicationVersion, source(own), source(c)),
			})
		}
	}
	return problems
}

// CheckOwners refuses a deployment whose application has no rules that are known where a
// component of it is one of other applications. Owners are, for each component, the
// applications of the catalog that have its archive. raw is the file, for the lines; it may be
// nil. Wrong input is an error that holds v1rc3.Problems.
func CheckOwners(d *v1rc3.Deployment, owners [][]string, raw []byte) error {
	var problems v1rc3.Problems
	for i, c := range d.Spec.Profile.Components {
		if len(owners[i]) > 0 && !slices.Contains(owners[i], d.Spec.ApplicationID) {
			problems = append(problems, v1rc3.Problem{
				Path: fmt.Sprintf("spec.deploymentProfile.components[%d].properties.repository", i),
				Message: fmt.Sprintf("%s is a component of application %s, not of %s: name that as applicationId, or the component of this one",
					source(c), strings.Join(owners[i], " and "), d.Spec.ApplicationID),
			})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.Invalid, "%w", document.Locate(raw, problems))
}

// ofNoProfile is the error of a deployment that runs no profile of its application and names none.
func ofNoProfile(app *v1rc3.Application, d *v1rc3.Deployment) error {
	var have []string
	for _, p := range app.Profiles {
		var parts []string
		for _, c := range p.Components {
			parts = append(parts, c.Name+" from "+source(c))
		}
		have = append(have, fmt.Sprintf("%s (%s) with %s", p.ID, p.Type, strings.Join(parts, ", ")))
	}
	return protocol.Errorf(protocol.Invalid, "%w", v1rc3.Problems{{
		Path: "spec.deploymentProfile.components",
		Message: fmt.Sprintf("application %s %s has no profile of type %s with these components; it has %s",
			app.ID, app.Metadata.Version, d.Spec.Profile.Type, strings.Join(have, "; ")),
	}})
}

// checkTargets finds targets of parameters that are not those of the application: a value
// that goes elsewhere, or not to all places, is not what the import judged.
func checkTargets(want, got *v1rc3.Deployment) (problems v1rc3.Problems) {
	for _, name := range slices.Sorted(maps.Keys(got.Spec.Parameters)) {
		at, own := "spec.parameters."+name, want.Spec.Parameters[name]
		goes := destinations(own)
		if len(goes) == 0 {
			problems = append(problems, v1rc3.Problem{Path: at, Message: fmt.Sprintf("the parameter goes to no component of profile %s: leave it out", want.Spec.Colony.Profile)})
			continue
		}
		for i, t := range got.Spec.Parameters[name].Targets {
			for j, c := range t.Components {
				if !slices.Contains(goes, destination(t.Pointer, c)) {
					problems = append(problems, v1rc3.Problem{
						Path:    fmt.Sprintf("%s.targets[%d].components[%d]", at, i, j),
						Message: fmt.Sprintf("the application does not have the target %s: its parameter goes to %s", destination(t.Pointer, c), strings.Join(goes, ", ")),
					})
				}
			}
		}
		has := destinations(got.Spec.Parameters[name])
		for _, p := range goes {
			if !slices.Contains(has, p) {
				problems = append(problems, v1rc3.Problem{Path: at + ".targets", Message: fmt.Sprintf("the target %s of the application is missing", p)})
			}
		}
	}
	return problems
}

// destinations lists where a parameter goes.
func destinations(p v1rc3.Parameter) (all []string) {
	for _, t := range p.Targets {
		for _, c := range t.Components {
			all = append(all, destination(t.Pointer, c))
		}
	}
	return all
}

func destination(pointer, component string) string { return pointer + " of component " + component }

// Runs reports whether a deployment runs a profile of an application: each of its components is one of the
// profile, from the same archive.
func Runs(app *v1rc3.Application, d *v1rc3.Deployment) bool {
	return slices.ContainsFunc(app.Profiles, func(p v1rc3.Profile) bool { return runs(p, d) })
}

func runs(p v1rc3.Profile, d *v1rc3.Deployment) bool {
	return p.Type == d.Spec.Profile.Type && len(p.Components) == len(d.Spec.Profile.Components) &&
		!slices.ContainsFunc(d.Spec.Profile.Components, func(c v1rc3.Component) bool {
			return !slices.ContainsFunc(p.Components, func(own v1rc3.Component) bool { return archive(own) == archive(c) })
		})
}

// archive says what a component runs.
func archive(c v1rc3.Component) string { return c.Name + " " + source(c) }

// source says where the archive of a component is.
func source(c v1rc3.Component) string { return c.Properties.Repository + ":" + c.Properties.Revision }

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
		if own := rules(d); own != nil {
			resolved, err := resolve(own, d, first)
			if err != nil {
				continue
			}
			d = resolved // a default that was installed counts as one that was given
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
