package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/format"
	"github.com/compose-spec/compose-go/v2/types"
)

// references returns what the services of a document name and it does not have, and the
// short forms that cannot be read.
func references(document map[string]any) (all []Finding) {
	services, _ := document["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, ok := services[name].(map[string]any)
		if !ok {
			continue
		}
		r := refs{document: document, at: "services." + name}
		r.named(service, "networks", "networks", "default")
		r.named(service, "depends_on", "services")
		r.listed(service, "secrets", "secrets")
		r.listed(service, "configs", "configs")
		r.listed(service, "links", "services")
		r.listed(service, "volumes_from", "services")
		if mode, ok := service["network_mode"].(string); ok && strings.HasPrefix(mode, types.NetworkModeServicePrefix) {
			r.check("network_mode", "services", strings.TrimPrefix(mode, types.NetworkModeServicePrefix))
		}
		r.short(service)
		if test, ok := dig(service, "healthcheck", "test").([]any); ok {
			r.test(test)
		}
		all = append(all, r.found...)
	}
	return all
}

func dig(v any, keys ...string) any {
	for _, key := range keys {
		mapping, _ := v.(map[string]any)
		v = mapping[key]
	}
	return v
}

// refs are the references of one service.
type refs struct {
	document map[string]any
	at       string
	found    []Finding
}

func (r *refs) say(key, format string, args ...any) {
	r.found = append(r.found, Finding{r.at + "." + key, fmt.Sprintf(format, args...)})
}

// check looks for a name in a section.
func (r *refs) check(key, section, name string, implied ...string) {
	entries, _ := r.document[section].(map[string]any)
	if _, ok := entries[name]; ok || slices.Contains(implied, name) {
		return
	}
	what := map[string]string{"services": "service", "networks": "network", "secrets": "secret", "configs": "config", "volumes": "volume"}[section]
	if section == "services" {
		r.say(key, "there is no service %q%s", name, others(entries))
		return
	}
	r.say(key, "the %s %q is undefined: list it under %s%s", what, name, section, others(entries))
}

// others lists the names that a section has.
func others(entries map[string]any) string {
	names := slices.Sorted(maps.Keys(entries))
	if len(names) == 0 || len(names) > 12 {
		return ""
	}
	return "; there are " + strings.Join(names, ", ")
}

// named looks for the names in a list, or those of a mapping.
func (r *refs) named(service map[string]any, key, section string, implied ...string) {
	switch v := service[key].(type) {
	case []any:
		r.listed(service, key, section, implied...)
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if dig(v, name, "required") != false {
				r.check(key+"."+name, section, name, implied...)
			}
		}
	}
}

// listed looks for the names in a list: texts, or mappings with a source.
func (r *refs) listed(service map[string]any, key, section string, implied ...string) {
	list, _ := service[key].([]any)
	for i, item := range list {
		name, ok := item.(string)
		if !ok {
			name, ok = dig(item, "source").(string)
		}
		if section == "services" {
			name, _, _ = strings.Cut(name, ":")
		}
		if ok {
			r.check(fmt.Sprintf("%s[%d]", key, i), section, name, implied...)
		}
	}
}

// short reads the short forms of ports and volumes.
func (r *refs) short(service map[string]any) {
	ports, _ := service["ports"].([]any)
	for i, item := range ports {
		text, ok := item.(string)
		if !ok {
			continue
		}
		if _, err := types.ParsePortConfig(text); err != nil {
			r.say(fmt.Sprintf("ports[%d]", i), "%q: want [address:][port of the node:]<port of the container>[/udp]: %v", text, err)
		}
	}
	volumes, _ := service["volumes"].([]any)
	for i, item := range volumes {
		at := fmt.Sprintf("volumes[%d]", i)
		source, kind := "", ""
		switch v := item.(type) {
		case string:
			volume, err := format.ParseVolume(v)
			if err != nil {
				r.say(at, "%q: want [source:]<target>[:options]: %v", v, err)
				continue
			}
			source, kind = volume.Source, volume.Type
		case map[string]any:
			source, _ = v["source"].(string)
			kind, _ = v["type"].(string)
		}
		if kind == types.VolumeTypeVolume && source != "" {
			r.check(at, "volumes", source)
		}
	}
}

// test judges the list form of a health check.
func (r *refs) test(list []any) {
	first := ""
	if len(list) > 0 {
		first, _ = list[0].(string)
	}
	if !slices.Contains([]string{"CMD", "CMD-SHELL", "NONE"}, first) {
		r.say("healthcheck.test", "%q: want CMD, CMD-SHELL or NONE as the first entry, or a text for a shell", first)
	}
}
