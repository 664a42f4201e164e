// Package examination judges a component before there is a deployment: it has it translated
// with several values of the variables that parameters set, and says what each of them shows.
// It is pure but for the translation that it is given.
package examination

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// profilesVariable chooses the profiles whose services run, as it does for Compose.
const profilesVariable = "COMPOSE_PROFILES"

// profileBound bounds how many profiles are looked at that are not chosen by default.
const profileBound = 10

// An Input says how a component is translated.
type Input struct {
	Values     map[string]string // of variables
	Open       map[string]bool   // variables whose value a deployment will say
	Parameters map[string]bool   // all variables that parameters set
}

// An Outcome is what a translation shows.
type Outcome struct {
	Containers []protocol.Container
	Problems   []string
	Warnings   []string
	Paths      map[string]string   // of Problems, in the document
	Uses       map[string][]string // the variables of each text of the document, by its path
	Profiles   []string            // that services have
	Chosen     []string            // of Profiles
	Open       map[string]bool     // services whose image depends on open variables
	Values     map[string]string   // of variables, with those of .env
}

// A Result is what is known of a component before there is a deployment.
type Result struct {
	// Containers are those with the defaults, as far as these are right. The image of one is
	// empty where a deployment must say a part of it.
	Containers []protocol.Container
	// Problems say why no deployment compiles, or none with the defaults.
	Problems []string
	Warnings []string
	// Unfit are the variables with whose defaults it does not compile.
	Unfit []string
}

// Run translates a component with each variable open, with their defaults, with values that
// their schemas name, and with each profile that a deployment may choose.
func Run(variables []v1rc3.Variable, translate func(Input) Outcome) Result {
	e := &examination{variables: variables, translation: translate}
	open := e.translate(func(v1rc3.Variable) (*string, bool) { return nil, true })
	e.Containers, e.Warnings, e.Problems = open.Containers, open.Warnings, open.Problems
	if len(variables) == 0 {
		return e.Result
	}
	values := func(v v1rc3.Variable) (*string, bool) { return v.Default, v.Required }
	fixed := e.translate(values)
	e.judge(open, fixed)
	for _, w := range fixed.Warnings {
		if !slices.Contains(e.Warnings, w) {
			e.Warnings = append(e.Warnings, w)
		}
	}
	if len(fixed.Problems) == 0 && len(e.Problems) == 0 {
		e.Containers = fixed.Containers
	}
	unknown := fixed.Open
	if len(fixed.Problems) > 0 || len(e.Problems) > 0 {
		unknown = open.Open
	}
	for i := range e.Containers {
		if c := &e.Containers[i]; unknown[c.Name] {
			c.Image = "" // a deployment must say it
		}
	}
	if len(e.Problems) > 0 {
		return e.Result
	}
	if slices.ContainsFunc(variables, func(v v1rc3.Variable) bool { return v.Sample != nil }) {
		sampled := e.translate(func(v v1rc3.Variable) (*string, bool) {
			if v.Sample != nil {
				return v.Sample, false
			}
			return values(v)
		})
		e.warn(fixed, sampled, func(named []v1rc3.Variable) string {
			return "where a deployment says " + shown(named, sampled.Values) + ", which the schema allows"
		})
	}
	e.profiles(fixed, values)
	return e.Result
}

type examination struct {
	Result
	variables   []v1rc3.Variable
	translation func(Input) Outcome
}

// translate translates the component with values of its variables: a value, nil for one
// that is not set, or open.
func (e *examination) translate(value func(v1rc3.Variable) (text *string, open bool)) Outcome {
	in := Input{Values: map[string]string{}, Open: map[string]bool{}, Parameters: map[string]bool{}}
	for _, v := range e.variables {
		in.Parameters[v.Name] = true
		if text, open := value(v); open {
			in.Open[v.Name] = true
		} else if text != nil {
			in.Values[v.Name] = *text
		}
	}
	return e.translation(in)
}

// profiles judges the profiles that are not chosen by default.
func (e *examination) profiles(fixed Outcome, values func(v1rc3.Variable) (*string, bool)) {
	if !slices.ContainsFunc(e.variables, func(v v1rc3.Variable) bool { return v.Name == profilesVariable }) {
		return
	}
	for _, profile := range fixed.Profiles[:min(len(fixed.Profiles), profileBound)] {
		if slices.Contains(fixed.Chosen, profile) {
			continue
		}
		chosen := e.translate(func(v v1rc3.Variable) (*string, bool) {
			if v.Name == profilesVariable {
				return &profile, false
			}
			return values(v)
		})
		e.warn(fixed, chosen, func([]v1rc3.Variable) string { return "where a deployment chooses the profile " + profile })
	}
}

// judge reports what is wrong with the defaults alone. It is a problem where the author gave
// each of them, and a warning where a value is missing: a deployment may give one.
func (e *examination) judge(open, fixed Outcome) {
	for _, text := range fixed.Problems {
		if said(open, fixed, text) {
			continue
		}
		named := e.named(fixed, text)
		for _, v := range named {
			e.Unfit = append(e.Unfit, v.Name)
		}
		missing := slices.DeleteFunc(slices.Clone(named), func(v v1rc3.Variable) bool { return fixed.Values[v.Name] != "" })
		switch {
		case len(named) == 0 && slices.ContainsFunc(e.variables, func(v v1rc3.Variable) bool { return fixed.Values[v.Name] == "" }):
			e.Warnings = append(e.Warnings, text+"; so it is where a deployment gives no values: it must")
		case len(named) == 0:
			e.Problems = append(e.Problems, text+"; so it is with the defaults of the parameters: change one, or leave its value out, so that a deployment must give it")
		case len(missing) > 0:
			e.Warnings = append(e.Warnings, text+"; so it is where a deployment gives no value for "+names(missing)+": it must, or give a default")
		default:
			e.Problems = append(e.Problems, text+"; so it is with the default "+shown(named, fixed.Values)+": change it, or leave the value out, so that a deployment must give it")
		}
	}
}

// warn warns of what is wrong under a condition, and not without it.
func (e *examination) warn(before, now Outcome, condition func([]v1rc3.Variable) string) {
	for _, text := range now.Problems {
		if !said(before, now, text) {
			e.Warnings = append(e.Warnings, text+"; so it is "+condition(e.named(now, text)))
		}
	}
}

// said reports whether another translation has a problem at the place of one of t.
func said(before, t Outcome, text string) bool {
	at, placed := t.Paths[text]
	return slices.ContainsFunc(before.Problems, func(other string) bool {
		there, ok := before.Paths[other]
		return other == text || placed && ok && there == at
	})
}

// named returns the variables that the place of a problem names; else those of another place that
// its text names. A service may take a section of the file, such as a config: then it returns those
// of that section.
func (e *examination) named(t Outcome, text string) []v1rc3.Variable {
	at, ok := t.Paths[text]
	if !ok || at == "" {
		return nil
	}
	found := e.usedAt(t, at)
	for _, place := range slices.Sorted(maps.Keys(t.Uses)) {
		if len(found) == 0 && strings.Contains(text, place) {
			found = e.usedAt(t, place)
		}
	}
	if len(found) == 0 && strings.Contains(text, profilesVariable) {
		found = slices.DeleteFunc(slices.Clone(e.variables), func(v v1rc3.Variable) bool { return v.Name != profilesVariable })
	}
	if parts := strings.Split(at, "."); len(found) == 0 && len(parts) > 2 && parts[0] == "services" {
		section, _, _ := strings.Cut(parts[2], "[")
		found = e.usedAt(t, section)
	}
	return found
}

// usedAt returns the variables that texts at a path, below it or around it name.
func (e *examination) usedAt(t Outcome, at string) (found []v1rc3.Variable) {
	for _, v := range e.variables {
		for place, names := range t.Uses {
			near := place == at || below(place, at) || below(at, place)
			if near && slices.Contains(names, v.Name) {
				found = append(found, v)
				break
			}
		}
	}
	return found
}

// below reports whether a path is one below another.
func below(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

func names(variables []v1rc3.Variable) string {
	var all []string
	for _, v := range variables {
		all = append(all, v.Name)
	}
	return strings.Join(all, " and ")
}

// maxShown bounds how much of a value a message shows, in bytes.
const maxShown = 60

// shown names variables with their values.
func shown(variables []v1rc3.Variable, values map[string]string) string {
	var all []string
	for _, v := range variables {
		value := values[v.Name]
		if len(value) > maxShown {
			value = value[:maxShown] + "…"
		}
		all = append(all, fmt.Sprintf("%q of %s", value, v.Name))
	}
	return strings.Join(all, " and ")
}
