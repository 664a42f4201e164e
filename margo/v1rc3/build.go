package v1rc3

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// A Request names the deployment that Build makes.
type Request struct {
	ID        string            // a UUID
	Name      string            // of the deployment, unique on the device
	Namespace string            // empty: colony
	DeviceID  string            // <site>/<node> or <site>/*
	Labels    map[string]string // nil: none
	// Colony are the extensions. ApplicationVersion and Profile are filled in.
	Colony Extensions
}

// Build makes the deployment of one profile of an application with the given
// values; a parameter without one takes its default. Parameters keep the targets
// that are components of the profile, and one without a target is left out, as
// is one that has neither a value nor a default and may be empty. Constraints and
// extensions are copied unchanged. An error is a Problems.
func Build(app *Application, profile string, values map[string]any, to Request) (*Deployment, error) {
	p, ok := app.Profile(profile)
	if !ok {
		ids := make([]string, len(app.Profiles))
		for i := range app.Profiles {
			ids[i] = app.Profiles[i].ID
		}
		return nil, Problems{{Path: "profile", Message: fmt.Sprintf("application %s %s has no profile %q; it has %s",
			app.ID, app.Metadata.Version, profile, strings.Join(ids, ", "))}}
	}
	problems := app.checkValues(values)
	parameters := app.resolve(p, values, &problems)
	problems = append(problems, to.check()...)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	to.Colony.ApplicationVersion, to.Colony.Profile = app.Metadata.Version, p.ID
	if to.Namespace == "" {
		to.Namespace = "colony"
	}
	return &Deployment{
		ID:       to.ID,
		Metadata: DeploymentMetadata{Name: to.Name, Namespace: to.Namespace, DeviceID: to.DeviceID, Labels: to.Labels},
		Spec: DeploymentSpec{
			ApplicationID: app.ID,
			Profile: DeploymentProfile{
				Type: p.Type, Components: slices.Clone(p.Components), Constraints: p.Constraints, Extensions: p.Extensions,
			},
			Parameters: parameters,
			Colony:     &to.Colony,
		},
	}, nil
}

// resolve returns the parameters of a profile with their values.
func (a *Application) resolve(p *Profile, values map[string]any, problems *Problems) map[string]Parameter {
	own := map[string]bool{}
	for _, c := range p.Components {
		own[c.Name] = true
	}
	resolved := map[string]Parameter{}
	for _, name := range slices.Sorted(maps.Keys(a.Parameters)) {
		var targets []Target
		for _, t := range a.Parameters[name].Targets {
			kept := slices.DeleteFunc(slices.Clone(t.Components), func(c string) bool { return !own[c] })
			if len(kept) > 0 {
				targets = append(targets, Target{Pointer: t.Pointer, Components: kept})
			}
		}
		if len(targets) == 0 {
			continue
		}
		x := a.effective(name, values)
		if values[name] == nil && a.required(name) {
			*problems = append(*problems, Problem{Path: "values." + name, Message: "required: the parameter has no default"})
			continue
		}
		if x == nil {
			continue
		}
		resolved[name] = Parameter{Value: a.encode(p.Type, name, x), Targets: targets}
	}
	return resolved
}

// encode returns a value in the form that its target takes: text for Compose,
// whose variables are text; the type of the schema, or else of the default, for
// the others.
func (a *Application) encode(t ProfileType, name string, x any) any {
	if t == Compose {
		return Text(x)
	}
	if _, schema, ok := a.Setting(name); ok && !schema.isArray() && !schema.Multiselect {
		if v, err := convert(schema.scalarType(), x); err == nil {
			return v
		}
	}
	if text, ok := x.(string); ok {
		return likeDefault(a.Parameters[name].Value, text)
	}
	if _, ok := a.Parameters[name].Value.(string); ok {
		return Text(x)
	}
	if n, ok := x.(json.Number); ok {
		if f, err := n.Float64(); err == nil {
			return f
		}
	}
	return x
}

// likeDefault returns a text as the type of a default where it reads as one.
func likeDefault(def any, text string) any {
	dataType := ""
	switch v := reflect.ValueOf(def); {
	case v.Kind() == reflect.Bool:
		dataType = "boolean"
	case v.CanInt() || v.CanUint():
		dataType = "integer"
	case v.CanFloat():
		dataType = "double"
	default:
		return text
	}
	if v, err := convert(dataType, text); err == nil {
		return v
	}
	return text
}

var (
	uuid     = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	anyUUID  = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	deviceID = regexp.MustCompile(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*(/\*)?$`)
)

const (
	wantUUID     = "a UUID in lower case"
	wantDeviceID = "<site>/<node>, or <site>/* for any of its nodes"
)

func (r Request) check() Problems {
	var problems Problems
	add := func(path, got, want string) {
		problems = append(problems, Problem{Path: path, Message: fmt.Sprintf("%q: want %s", got, want)})
	}
	if !uuid.MatchString(r.ID) {
		add("id", r.ID, wantUUID)
	}
	if strings.TrimSpace(r.Name) == "" {
		add("metadata.name", r.Name, "a name")
	}
	if !deviceID.MatchString(r.DeviceID) {
		add("metadata.deviceId", r.DeviceID, wantDeviceID)
	}
	return problems
}
