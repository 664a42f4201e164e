package compiler

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/template"
)

// dotEnv is the file of the archive with the defaults of variables.
const dotEnv = ".env"

// placeholder is the value of a variable that is not known before a deployment.
const placeholder = "1"

// readVariables joins .env and what parameters set, the latter winning.
func (t *translation) readVariables(parameters map[string]string) {
	t.variables = map[string]string{"COMPOSE_PROJECT_NAME": t.component}
	if b, ok := t.archive.Files[dotEnv]; ok {
		read, err := dotenv.ParseWithLookup(bytes.NewReader(b), func(name string) (string, bool) {
			v, ok := parameters[name]
			return v, ok
		})
		if err != nil {
			t.problems = append(t.problems, fmt.Sprintf("%s: %v", dotEnv, err))
		}
		maps.Copy(t.variables, read)
	}
	maps.Copy(t.variables, parameters)
}

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
		_, err := substitute(v, func(name string) (string, bool) {
			value, ok := t.lookup(name)
			missing[name] = missing[name] || !ok
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
	return "set it by a parameter of the application, or in " + dotEnv
}

// warnEmpty warns of the variables of a text that are missing and have no default.
func (t *translation) warnEmpty(at, prefix, text string, missing map[string]bool) {
	for _, m := range plain.FindAllStringSubmatch(strings.ReplaceAll(text, "$$", ""), -1) {
		if name := m[1] + m[2]; missing[name] && !t.parameters[name] {
			t.warn(at, "%s%s is empty: no parameter of the application sets it, nor does %s; give a default as in ${%s:-value}", prefix, name, dotEnv, name)
		}
	}
}

// passed warns of an environment variable that is named without a value, and that
// nobody sets.
func (t *translation) passed(at, name string) {
	if _, ok := t.lookup(name); !ok && !t.parameters[name] {
		t.warn(at, "%s is left out: no parameter of the application sets it, nor does %s", name, dotEnv)
	}
}

func (t *translation) warn(at, format string, args ...any) {
	message := t.plain(fmt.Sprintf(format, args...))
	path, line := t.located(at, message)
	t.warnings = append(t.warnings, line+path+": "+message)
}

// textual are the keys of a service that may hold any text, so that a placeholder
// in the place of a variable does no harm.
var textual = map[string]bool{
	"image": true, "command": true, "entrypoint": true, "environment": true, "labels": true,
}

// prune takes out of a document what depends on variables whose values are not known
// yet, so that what is left can be judged before there is a deployment.
func (t *translation) prune(document map[string]any) {
	for section, v := range document {
		entries, _ := v.(map[string]any)
		switch {
		case strings.HasPrefix(section, "x-"):
		case section == "services":
			for name, v := range entries {
				if service, ok := v.(map[string]any); ok {
					t.unknown[name] = t.isOpen(service["image"])
					t.pruneService(service)
				}
			}
		case section == "configs":
			for name, v := range entries {
				config, _ := v.(map[string]any)
				if file, ok := config["file"].(string); ok && t.isOpen(file) {
					entries[name] = map[string]any{"content": ""}
				}
			}
		default:
			if left, ok := t.known(v); ok {
				document[section] = left
			} else {
				delete(document, section)
			}
		}
	}
}

func (t *translation) pruneService(service map[string]any) {
	for key, v := range service {
		if textual[key] {
			continue
		}
		if key == healthKey && t.isOpen(v) {
			service[key] = map[string]any{"port": placeholder}
			continue
		}
		mapping, _ := v.(map[string]any)
		test := mapping["test"]
		if key == "healthcheck" {
			if t.isOpen(mapping["disable"]) { // a deployment says whether what it holds counts
				service[key] = map[string]any{"test": placeholder}
				continue
			}
			delete(mapping, "test")
		}
		if policy, ok := mapping["restart_policy"].(map[string]any); ok && key == "deploy" && t.isOpen(policy["condition"]) {
			delete(mapping, "restart_policy") // without the condition it would be another policy
		}
		if key == "depends_on" {
			maps.DeleteFunc(mapping, func(_ string, v any) bool { return t.isOpen(v) })
		}
		t.unsettled = t.unsettled || strings.HasPrefix(key, "network") && t.isOpen(v)
		left, ok := t.known(v)
		if !ok {
			delete(service, key)
			continue
		}
		if key == "healthcheck" && test != nil {
			left.(map[string]any)["test"] = test
		}
		service[key] = left
	}
}

// known returns v without the values that are open, and false where nothing is left
// of it. An item of a list is taken out as a whole.
func (t *translation) known(v any) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if left, ok := t.known(value); ok {
				v[key] = left
			} else {
				delete(v, key)
			}
		}
		return v, true
	case []any:
		return slices.DeleteFunc(v, t.isOpen), true
	default:
		return v, !t.isOpen(v)
	}
}

// isOpen reports whether a value, or one in it, needs a variable that is not known yet.
func (t *translation) isOpen(v any) (open bool) {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			open = open || t.isOpen(value)
		}
	case []any:
		open = slices.ContainsFunc(v, t.isOpen)
	case string:
		_, _ = substitute(v, func(name string) (string, bool) { // what is wrong with it, resolve has said
			open = open || t.open[name]
			return t.lookup(name)
		})
	}
	return open
}
