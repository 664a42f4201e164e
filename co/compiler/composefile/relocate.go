package composefile

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
)

// relocate makes the relative paths in a document of the directory from such that they
// name the same files as seen from the directory to.
func (r *reader) relocate(values map[string]any, from, to string) {
	if from == to {
		return
	}
	prefix, err := filepath.Rel(to, from)
	if err != nil {
		return // both are relative paths
	}
	l := relocation{prefix, r.lookup}
	services, _ := values["services"].(map[string]any)
	for _, v := range services {
		if service, ok := v.(map[string]any); ok {
			service["env_file"] = l.each(service["env_file"], "path")
			service["volumes"] = l.volumes(service["volumes"])
			for _, key := range []string{"env_file", "volumes"} {
				if service[key] == nil {
					delete(service, key)
				}
			}
		}
	}
	for _, section := range []string{"configs", "secrets"} {
		entries, _ := values[section].(map[string]any)
		for _, v := range entries {
			if entry, ok := v.(map[string]any); ok {
				if file, ok := entry["file"].(string); ok {
					entry["file"] = l.path(file)
				}
			}
		}
	}
}

// lookup returns the value of a variable as a document names it. PWD is the folder of the main
// file, wherever it is named, so that what begins with it is no relative path here.
func (r *reader) lookup(name string) (string, bool) {
	if v, ok := r.variables[name]; ok {
		return v, true
	}
	v, ok := r.project[name]
	if name == "PWD" && v == "." {
		v = "/"
	}
	return v, ok
}

// A relocation puts a prefix before relative paths.
type relocation struct {
	prefix string
	lookup template.Mapping
}

// value returns what a text is with its variables filled in; where that fails, the text: the
// loader says what is wrong with it.
func (l relocation) value(text string) string {
	if filled, err := template.SubstituteWithOptions(text, l.lookup, template.WithoutLogging); err == nil {
		return filled
	}
	return text
}

func (l relocation) path(file string) string {
	if value := l.value(file); value == "" || path.IsAbs(value) || strings.HasPrefix(value, "~") {
		return file
	}
	return l.before(file)
}

// before puts the prefix before a path, and what follows it. One with a variable is cleaned
// where it is read: here the variable would count as a directory.
func (l relocation) before(file string) string {
	if strings.Contains(file, "$") {
		return "./" + l.prefix + "/" + file
	}
	source, rest, found := strings.Cut(file, ":")
	source = "./" + path.Join(l.prefix, source)
	if found {
		source += ":" + rest
	}
	return source
}

// each relocates a path, a list of paths, or mappings that have one under key.
func (l relocation) each(v any, key string) any {
	switch v := v.(type) {
	case string:
		return l.path(v)
	case []any:
		for i := range v {
			v[i] = l.each(v[i], key)
		}
	case map[string]any:
		if file, ok := v[key].(string); ok {
			v[key] = l.path(file)
		}
	}
	return v
}

// volumes relocates the sources of binds: what begins with a dot in the short form.
func (l relocation) volumes(v any) any {
	list, _ := v.([]any)
	for i := range list {
		switch volume := list[i].(type) {
		case string:
			if strings.HasPrefix(l.value(volume), ".") {
				list[i] = l.before(volume)
			}
		case map[string]any:
			if source, ok := volume["source"].(string); ok && volume["type"] == "bind" {
				volume["source"] = l.path(source)
			}
		}
	}
	return v
}
