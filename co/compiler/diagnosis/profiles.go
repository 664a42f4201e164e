package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// An Absence is a reference of a service that runs to one that does not.
type Absence struct {
	At      string // in the document
	Service string // that does not run
	// Profiles are those under which it runs; none where the document has no such service.
	Profiles []string
	// Required says that the service cannot run without it.
	Required bool
}

// String says what is wrong, and what to do about it.
func (a Absence) String() string {
	if len(a.Profiles) == 0 {
		return fmt.Sprintf("there is no service %q: it is left out, as it is not required", a.Service)
	}
	instead := "or take this out"
	if strings.Contains(a.At, ".depends_on") {
		instead = "or write required: false here"
	}
	return fmt.Sprintf("the service %q runs under the profile %s alone, and COMPOSE_PROFILES does not name it: choose it there, %s",
		a.Service, strings.Join(a.Profiles, " or "), instead)
}

// Absent finds the references of services that run to services that do not, because none of
// their profiles is among chosen, or because the document does not have them and they are not
// required. It has those run that are required, so that the rest can be judged, and takes the
// references to the others out. Fill fills in the variables of a text.
func Absent(document map[string]any, chosen []string, fill func(string) string) []Absence {
	services, _ := document["services"].(map[string]any)
	x := absences{services: services, chosen: chosen, fill: fill}
	for before := -1; before < len(x.found); {
		before = len(x.found)
		for _, name := range slices.Sorted(maps.Keys(services)) {
			if service, ok := services[name].(map[string]any); ok && len(x.waiting(name)) == 0 {
				x.service("services."+name+".", service)
			}
		}
		for _, a := range x.found[before:] {
			if service, ok := services[a.Service].(map[string]any); ok && a.Required {
				delete(service, "profiles")
			}
		}
	}
	return x.found
}

type absences struct {
	services map[string]any
	chosen   []string
	fill     func(string) string
	found    []Absence
}

// waiting returns the profiles of a service of which none is chosen.
func (x *absences) waiting(name string) (profiles []string) {
	service, _ := x.services[name].(map[string]any)
	list, _ := service["profiles"].([]any)
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil
		}
		profiles = append(profiles, x.fill(text))
	}
	if slices.ContainsFunc(profiles, func(p string) bool { return p == "*" || slices.Contains(x.chosen, p) }) || slices.Contains(x.chosen, "*") {
		return nil
	}
	return profiles
}

// absent notes a reference to a service that does not run.
func (x *absences) absent(at, service string, required bool) bool {
	profiles := x.waiting(service)
	if _, defined := x.services[service]; len(profiles) == 0 && (defined || required) {
		return false
	}
	x.found = append(x.found, Absence{at, service, profiles, required})
	return true
}

// service looks at what a service that runs names.
func (x *absences) service(at string, service map[string]any) {
	for _, key := range []string{"depends_on", "links", "volumes_from"} {
		list, _ := service[key].([]any)
		for i, item := range list {
			if text, ok := item.(string); ok {
				name, _, _ := strings.Cut(x.fill(text), ":")
				x.absent(fmt.Sprintf("%s%s[%d]", at, key, i), name, true)
			}
		}
	}
	mapping, _ := service["depends_on"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(mapping)) {
		required := true
		if word := dig(mapping[name], "required"); word != nil {
			required = x.fill(fmt.Sprint(word)) != "false"
		}
		if x.absent(at+"depends_on."+name, name, required) && !required {
			delete(mapping, name)
		}
	}
	if mode, ok := service["network_mode"].(string); ok {
		if owner, of := strings.CutPrefix(x.fill(mode), types.NetworkModeServicePrefix); of {
			x.absent(at+"network_mode", owner, true)
		}
	}
}
