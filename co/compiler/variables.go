package compiler

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"

	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/compiler/pruning"
)

// placeholder is the value of a variable that is not known before a deployment.
const placeholder = "1"

func (t *translation) lookup(name string) (string, bool) {
	v, ok := t.variables[name]
	return v, ok
}

// plain finds variables that are given without a default or a message.
var plain = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)

// resolve looks at the variables of every text of the document. One that is
// required and not set is a problem of its place, and the key that it stands under is taken
// out; one that is not set and has no default is a warning. It returns false where v is to
// be taken out.
func (t *translation) resolve(at string, v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			path := strings.TrimPrefix(at+"."+key, ".")
			if !t.resolve(path, v[key]) {
				if delete(v, key); key == "image" { // so that the rest of the service can be judged
					v[key] = placeholder
				}
				continue
			}
			if v[key] == nil && strings.HasSuffix(at, ".environment") {
				t.passed(path, key)
			}
		}
	case []any:
		ok := true
		for i, item := range v {
			ok = t.resolve(fmt.Sprintf("%s[%d]", at, i), item) && ok
			if name, is := item.(string); is && strings.HasSuffix(at, ".environment") && !strings.ContainsAny(name, "=$") {
				t.passed(at, name)
			}
		}
		return ok
	case string:
		missing := map[string]bool{}
		_, err := interpolate.Text(v, func(name string) (string, bool) {
			value, ok := t.lookup(name)
			missing[name] = missing[name] || !ok
			if !interpolate.IsPath(at) {
				t.warnFolder(at, "", name, value)
			}
			return value, ok
		})
		if err != nil {
			t.problemAt(at, "%v: %s", err, instead(err))
			return false
		}
		t.warnEmpty(at, "", v, missing)
	}
	return true
}

// instead says what to write in the place of a variable that cannot be filled in.
func instead(err error) string {
	if _, ok := errors.AsType[*template.InvalidTemplateError](err); ok {
		return "want a form such as ${NAME}, ${NAME:-default} or ${NAME:?message}, and $$ for a $ that is none"
	}
	return "set it by a parameter of the application, or in " + interpolate.DotEnv
}

// warnEmpty warns of the variables of a text that are missing and have no default.
func (t *translation) warnEmpty(at, prefix, text string, missing map[string]bool) {
	for _, m := range plain.FindAllStringSubmatch(strings.ReplaceAll(text, "$$", ""), -1) {
		if name := m[1] + m[2]; missing[name] && !t.parameters[name] {
			t.warn(at, "%s%s is empty: no parameter of the application sets it, nor does %s; give a default as in ${%s:-value}", prefix, name, interpolate.DotEnv, name)
		}
	}
}

// warnFolder warns of a variable that names a folder of Compose's own environment, or that .env
// derives from one, in a text that is no path.
func (t *translation) warnFolder(at, prefix, name, value string) {
	if interpolate.IsFolder(name, value) {
		t.warn(at, "%s%s is %q: a node has no such folder; write what the container is to get", prefix, name, value)
	} else if from, ok := t.folders[name]; ok {
		t.warn(at, "%s%s is %q, which %s makes of %s: a node has no such folder; write what the container is to get", prefix, name, value, interpolate.DotEnv, from)
	}
}

// passed warns of an environment variable that is named without a value, and that is not set.
func (t *translation) passed(at, name string) {
	if value, ok := t.lookup(name); (!ok || interpolate.IsFolder(name, value)) && !t.parameters[name] {
		t.warn(at, "%s is left out: no parameter of the application sets it, nor does %s", name, interpolate.DotEnv)
	} else if ok && !interpolate.IsFolder(name, value) {
		t.warnFolder(at, "", name, value)
	}
}

func (t *translation) warn(at, format string, args ...any) {
	message := t.plain(fmt.Sprintf(format, args...))
	path, line := t.located(at, message)
	t.warnings = append(t.warnings, line+path+": "+message)
}

// prune takes out of a document what depends on variables whose values are not known
// yet, so that what is left can be judged before there is a deployment.
func (t *translation) prune(document map[string]any) {
	p := pruning.Pruner{Open: t.isOpen, HealthKey: healthKey, Placeholder: placeholder, SetVariable: interpolate.ProjectName}
	t.unknown, t.unsettled = p.Prune(document)
}

// isOpen reports whether a text needs a variable that is not known yet.
func (t *translation) isOpen(text string) (open bool) {
	_, _ = interpolate.Text(text, func(name string) (string, bool) { // what is wrong with it, resolve has said
		open = open || t.open[name]
		return t.lookup(name)
	})
	return open
}
