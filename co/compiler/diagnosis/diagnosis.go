// Package diagnosis finds everything that is wrong with a Compose document that the loader
// refuses. The loader names one thing, often without its place: here each key is given to it
// alone, and what fails alone is reported with its place. It is pure but for the loader.
package diagnosis

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A Finding is what is wrong at a place.
type Finding struct {
	At      string // as services.web.ports[0]
	Message string // what is wrong, and what to write instead
}

// stub stands for an image, or a text, where that is not what is looked at.
const stub = "stub"

// stubs are entries of sections with which nothing is wrong. The variable always has a value.
var stubs = map[string]func() any{
	"services": func() any { return map[string]any{"image": stub} },
	"networks": func() any { return map[string]any{} },
	"volumes":  func() any { return map[string]any{} },
	"configs":  func() any { return map[string]any{"content": stub} },
	"secrets":  func() any { return map[string]any{"environment": "COMPOSE_PROJECT_NAME"} },
}

// names are those that Compose takes.
var names = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

const (
	// maxLoads bounds how many keys are given to the loader alone.
	maxLoads = 2000
	// maxRounds bounds how many faults between keys are reported.
	maxRounds = 50
)

// A part is the path of what is given to the loader alone: a section, an entry of it, or a
// key of a service.
type part []string

// Find returns what is wrong with a document that load refuses, and takes it out of the
// document, so that the rest can be judged. Filled is the document with its variables filled
// in. Of the list of a service's key only the items that fail are taken out; rest are the indices
// of those that are left, by the path of the list. Whole is false where something is left that has
// no place, or there is too much to look at.
func Find(document, filled map[string]any, load func(map[string]any) error) (findings []Finding, rest map[string][]int, whole bool) {
	known := append(schemaFindings(filled), references(filled)...)
	all := parts(document)
	if len(all) > maxLoads {
		return nil, nil, false
	}
	rest = map[string][]int{}
	loads := len(all)
	for _, p := range all {
		err := load(alone(document, p))
		if err == nil {
			continue
		}
		at := strings.Join(p, ".")
		reported := below(known, at)
		list := listOf(document, p)
		if loads += len(list); len(list) > 1 && loads <= maxLoads {
			more, left := items(document, p, reported, load)
			reported = append(reported, more...)
			if len(left) > 0 && len(left) < len(list) {
				rest[at] = left
				keep(document, p, left)
				if err = load(alone(document, p)); err == nil {
					findings = append(findings, reported...)
					continue
				}
			}
		}
		for _, f := range said(err, at) {
			same := func(o Finding) bool { return strings.HasPrefix(o.At, f.At) }
			if !slices.ContainsFunc(reported, same) {
				reported = append(reported, f)
			}
		}
		findings = append(findings, reported...)
		remove(document, p)
	}
	for range maxRounds {
		err := load(document)
		if err == nil {
			return findings, rest, true
		}
		f, p := between(err)
		if p == nil {
			return append(findings, Finding{Message: plain(err.Error())}), rest, false
		}
		findings = append(findings, f)
		if !remove(document, p) {
			return findings, rest, false
		}
	}
	return findings, rest, false
}

// listOf returns the list under the key of a service, nil where there is none.
func listOf(document map[string]any, p part) []any {
	if len(p) != 3 {
		return nil
	}
	list, _ := dig(document, p...).([]any)
	return list
}

// items gives each item of a list to the loader alone. It returns the faults of the items for which
// nothing is reported yet, and the indices of the items without a fault.
func items(document map[string]any, p part, reported []Finding, load func(map[string]any) error) (findings []Finding, left []int) {
	at := strings.Join(p, ".")
	for i, item := range listOf(document, p) {
		one := alone(document, p)
		service, _ := dig(one, p[:2]...).(map[string]any)
		service[p[2]] = []any{item}
		err := load(one)
		if err == nil {
			left = append(left, i)
			continue
		}
		here := fmt.Sprintf("%s[%d]", at, i)
		if len(below(reported, here)) > 0 {
			continue
		}
		for _, f := range said(err, at) {
			f.At = here + strings.TrimPrefix(strings.TrimPrefix(f.At, at), "[0]")
			findings = append(findings, f)
		}
	}
	return findings, left
}

// keep leaves items in a list of a document.
func keep(document map[string]any, p part, left []int) {
	list := listOf(document, p)
	var some []any
	for _, i := range left {
		some = append(some, list[i])
	}
	service, _ := dig(document, p[:2]...).(map[string]any)
	service[p[2]] = some
}

// parts returns what can be looked at alone.
func parts(document map[string]any) (all []part) {
	for _, section := range slices.Sorted(maps.Keys(document)) {
		entries, ok := document[section].(map[string]any)
		if !ok || stubs[section] == nil {
			all = append(all, part{section})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			service, ok := entries[name].(map[string]any)
			if section != "services" || !ok || !names.MatchString(name) {
				all = append(all, part{section, name})
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(service)) {
				all = append(all, part{section, name, key})
			}
		}
	}
	return all
}

// alone returns a document with one part of another one. What it may name is there, too, as
// if it were well.
func alone(document map[string]any, p part) map[string]any {
	out := map[string]any{}
	for section, entry := range stubs {
		entries, _ := document[section].(map[string]any)
		list := map[string]any{}
		for name := range entries {
			if names.MatchString(name) {
				list[name] = entry()
			}
		}
		out[section] = list
	}
	if services := out["services"].(map[string]any); len(services) == 0 { //nolint:errcheck // made above
		services[stub] = stubs["services"]()
	}
	if len(p) == 1 {
		out[p[0]] = document[p[0]]
		return out
	}
	entries, _ := document[p[0]].(map[string]any)
	list, _ := out[p[0]].(map[string]any)
	list[p[1]] = entries[p[1]]
	if len(p) == 3 {
		service, _ := entries[p[1]].(map[string]any)
		list[p[1]] = map[string]any{"image": stub, p[2]: service[p[2]]}
	}
	return out
}

// remove removes a part of a document; what others may name leaves a stub. It returns false
// where the part is not there.
func remove(document map[string]any, p part) bool {
	last := p[len(p)-1]
	if len(p) == 1 {
		document[last] = map[string]any{}
		if last == "services" {
			document[last] = map[string]any{stub: stubs["services"]()}
		}
		return true
	}
	at, _ := document[p[0]].(map[string]any)
	if len(p) == 3 {
		at, _ = at[p[1]].(map[string]any)
	}
	_, ok := at[last]
	switch {
	case len(p) == 3 && last == "image" && at != nil:
		at[last] = stub
	case !ok:
		return false
	case len(p) == 2 && names.MatchString(last):
		at[last] = stubs[p[0]]()
	default:
		delete(at, last)
	}
	return true
}

// below returns the findings at a place and below it.
func below(all []Finding, at string) (found []Finding) {
	for _, f := range all {
		if f.At == at || strings.HasPrefix(f.At, at+".") || strings.HasPrefix(f.At, at+"[") {
			found = append(found, f)
		}
	}
	return found
}

// The forms of what the loader says.
var (
	prefixes = regexp.MustCompile(`(?m)^(validating [^:]+: |error while interpolating \S+: |failed to cast to expected type: |decoding failed due to the following error\(s\):\s*|'[^' ]+' )`)
	suffixes = regexp.MustCompile(`: (invalid compose project|invalid value|not found)$`)
	parsing  = regexp.MustCompile(`strconv\.(\w+): parsing ("[^"]*"): .*`)
	infinite = regexp.MustCompile(`json: unsupported value: (\S+)`)
	boolean  = regexp.MustCompile(`invalid boolean: ?(.*)`)
	size     = regexp.MustCompile(`invalid size: '([^']*)'`)
	unit     = regexp.MustCompile(`invalid suffix: '([^']*)'`)
	quotes   = regexp.MustCompile(`invalid command line string`)
	duration = regexp.MustCompile(`time: (invalid duration|missing unit in duration|unknown unit "[^"]*" in duration) ("[^"]*")`)
	missing  = regexp.MustCompile(`invalid additional host, missing IP: (.*)`)
	twice    = regexp.MustCompile(`target (\S+) already mounted as (\S+)`)
)

// where finds the place in what the loader says.
var where = regexp.MustCompile(`'(services|networks|volumes|configs|secrets)\[([^\]]+)\](\S*)' |error while interpolating (\S+?)(?:\.\[\]\S*)?: `)

// said returns what the loader says of a place, each line of it.
func said(err error, at string) (all []Finding) {
	if f, p := between(err); p != nil && strings.Join(p, ".") == at {
		return []Finding{f}
	}
	for line := range strings.Lines(err.Error()) {
		f := Finding{at, plain(line)}
		f.Message = strings.TrimPrefix(f.Message, at+": ")
		if m := where.FindStringSubmatch(line); m != nil {
			if inner := m[4] + m[1] + "." + m[2] + m[3]; m[1] != "" && strings.HasPrefix(inner, at) {
				f.At = inner
			} else if strings.HasPrefix(m[4], at) {
				f.At = m[4]
			}
		}
		if f.Message != "" {
			all = append(all, f)
		}
	}
	return all
}

// plain returns what the loader says without the words that are for its programmers.
func plain(text string) string {
	text = strings.TrimSpace(text)
	for before := ""; before != text; {
		before, text = text, strings.TrimSpace(prefixes.ReplaceAllString(text, ""))
	}
	text = suffixes.ReplaceAllString(text, "")
	text = parsing.ReplaceAllStringFunc(text, func(found string) string {
		m := parsing.FindStringSubmatch(found)
		if m[1] == "ParseFloat" {
			return m[2] + ": want a number"
		}
		return m[2] + ": want a whole number"
	})
	text = infinite.ReplaceAllString(text, `$1 is not finite: want a number`)
	text = boolean.ReplaceAllString(text, `"$1": want true or false`)
	text = size.ReplaceAllString(text, `"$1": want bytes, or a form such as 64m`)
	text = unit.ReplaceAllString(text, `"$1" is no unit: want bytes, or a form such as 64m or 1g`)
	text = quotes.ReplaceAllString(text, `a quote is not closed, or nothing follows a backslash: want a text as for a shell, or a list`)
	text = duration.ReplaceAllString(text, `$2: want a duration such as 10s`)
	text = missing.ReplaceAllString(text, `"$1": want name=address`)
	text = twice.ReplaceAllString(text, `two mounts at $1: the other is $2; take one out`)
	return strings.Join(strings.Fields(text), " ")
}

// The faults between the keys of a service, or between services.
var (
	noImage  = regexp.MustCompile(`service "([^"]+)" has neither an image nor a build context`)
	modeToo  = regexp.MustCompile("service (\\S+) declares mutually exclusive `network_mode` and `networks`")
	distinct = regexp.MustCompile(`services\.([^:]+): can't set distinct values on '([^']+)' and '([^']+)'`)
	oneName  = regexp.MustCompile(`services\.(?:scale|deploy\.replicas): can't set container_name and (\S+) as container name must be unique`)
	cycle    = regexp.MustCompile(`dependency cycle detected: (.+)`)
	mounted  = regexp.MustCompile(`services\.([^:]+)\.(tmpfs|volumes)\[\d+\]: target`)
)

// between reads what the loader says of keys that do not go together: the finding, and what
// to take out of the document to look for others. Without a place it is not known.
func between(err error) (Finding, part) {
	text := err.Error()
	found := func(service, key, format string, args ...any) (Finding, part) {
		p := part{"services", service, key}
		return Finding{strings.Join(p, "."), fmt.Sprintf(format, args...)}, p
	}
	if m := noImage.FindStringSubmatch(text); m != nil {
		_, p := found(m[1], "image", "")
		return Finding{"services." + m[1], "it has no image: name one in image"}, p
	}
	if m := modeToo.FindStringSubmatch(text); m != nil {
		return found(m[1], "network_mode", "networks is given too: give one of them")
	}
	if m := distinct.FindStringSubmatch(text); m != nil {
		return found(m[1], m[2], "it differs from %s: give one of them", m[3])
	}
	if m := oneName.FindStringSubmatch(text); m != nil {
		return found(m[1], "container_name", "the service has several replicas, which cannot all have one name: leave it out")
	}
	if m := cycle.FindStringSubmatch(text); m != nil {
		names := strings.Split(strings.TrimSpace(m[1]), " -> ")
		names = slices.Compact(slices.Sorted(slices.Values(names)))
		if len(names) == 1 {
			return found(names[0], "depends_on", "the service waits for itself in a cycle: take that out")
		}
		return found(names[0], "depends_on", "the services %s wait for each other in a cycle: take one of these dependencies out", strings.Join(names, ", "))
	}
	if m := mounted.FindStringSubmatch(text); m != nil {
		_, message, _ := strings.Cut(plain(text), ": ")
		return found(m[1], m[2], "%s", message)
	}
	return Finding{}, nil
}
