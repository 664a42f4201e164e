package composefile

import (
	"path"
	"path/filepath"
	"strings"
)

// relocate makes the relative paths in a document of the directory from such that they
// name the same files as seen from the directory to.
func relocate(values map[string]any, from, to string) {
	if from == to {
		return
	}
	prefix, err := filepath.Rel(to, from)
	if err != nil {
		return // both are relative paths
	}
	services, _ := values["services"].(map[string]any)
	for _, v := range services {
		if service, ok := v.(map[string]any); ok {
			service["env_file"] = relocateEach(service["env_file"], prefix, "path")
			service["volumes"] = relocateVolumes(service["volumes"], prefix)
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
					entry["file"] = relocated(prefix, file)
				}
			}
		}
	}
}

func relocated(prefix, file string) string {
	if path.IsAbs(file) || strings.HasPrefix(file, "~") || strings.HasPrefix(file, "$") {
		return file
	}
	return "./" + path.Join(prefix, file)
}

// relocateEach relocates a path, a list of paths, or mappings that have one under key.
func relocateEach(v any, prefix, key string) any {
	switch v := v.(type) {
	case string:
		return relocated(prefix, v)
	case []any:
		for i := range v {
			v[i] = relocateEach(v[i], prefix, key)
		}
	case map[string]any:
		if file, ok := v[key].(string); ok {
			v[key] = relocated(prefix, file)
		}
	}
	return v
}

// relocateVolumes relocates the sources of binds: what begins with a dot in the short form.
func relocateVolumes(v any, prefix string) any {
	list, _ := v.([]any)
	for i := range list {
		switch volume := list[i].(type) {
		case string:
			if source, rest, ok := strings.Cut(volume, ":"); ok && strings.HasPrefix(source, ".") {
				list[i] = relocated(prefix, source) + ":" + rest
			}
		case map[string]any:
			if source, ok := volume["source"].(string); ok && volume["type"] == "bind" {
				volume["source"] = relocated(prefix, source)
			}
		}
	}
	return v
}
