// Package pruning takes out of a Compose document what depends on values that are not known
// before a deployment, so that the rest of it can be judged. It is pure.
package pruning

import (
	"maps"
	"slices"
	"strings"
)

// A Pruner prunes documents.
type Pruner struct {
	// Open reports whether a text needs a value that is not known.
	Open func(text string) bool
	// HealthKey is the extension with the check of a service from outside.
	HealthKey string
	// Placeholder stands for what is not known.
	Placeholder string
	// SetVariable is a variable that is always set.
	SetVariable string
}

// textual are the keys of a service that may hold any text, so that a placeholder
// in the place of a variable does no harm.
var textual = map[string]bool{
	"image": true, "command": true, "entrypoint": true, "environment": true, "labels": true,
}

// Prune changes a document. It returns the services whose image is not known, and whether it is
// not known which networks a service is on.
func (p *Pruner) Prune(document map[string]any) (unknown map[string]bool, unsettled bool) {
	unknown = map[string]bool{}
	for section, v := range document {
		entries, _ := v.(map[string]any)
		switch {
		case strings.HasPrefix(section, "x-"):
		case section == "services":
			for name, v := range entries {
				if service, ok := v.(map[string]any); ok {
					unknown[name] = p.open(service["image"])
					unsettled = p.service(service) || unsettled
				}
			}
		case section == "configs":
			for name, v := range entries {
				config, _ := v.(map[string]any)
				if file, ok := config["file"].(string); ok && p.open(file) {
					entries[name] = map[string]any{"content": ""}
				}
			}
		case section == "secrets":
			for name, v := range entries {
				secret, _ := v.(map[string]any)
				if file, ok := secret["file"].(string); ok && p.open(file) {
					entries[name] = map[string]any{"environment": p.SetVariable}
				}
			}
		default:
			if left, ok := p.known(v); ok {
				document[section] = left
			} else {
				delete(document, section)
			}
		}
	}
	return unknown, unsettled
}

// twins are the keys of a service whose values must be those at paths below deploy, where
// that has a part of the path.
var twins = map[string]string{
	"cpus": "resources.limits.cpus", "mem_limit": "resources.limits.memory", "pids_limit": "resources.limits.pids",
	"mem_reservation": "resources.reservations.memory", "scale": "replicas",
}

// service prunes a service, and reports whether its networks are not known.
func (p *Pruner) service(service map[string]any) (unsettled bool) {
	for key, path := range twins {
		if p.open(at(service["deploy"], path)) {
			delete(service, key) // whether both are the same, a deployment will show
		}
	}
	for key, v := range service {
		if textual[key] {
			continue
		}
		if key == p.HealthKey && p.open(v) {
			service[key] = map[string]any{"port": p.Placeholder}
			continue
		}
		mapping, _ := v.(map[string]any)
		test := mapping["test"]
		if key == "healthcheck" {
			if p.open(mapping["disable"]) { // a deployment says whether what it holds counts
				service[key] = map[string]any{"test": p.Placeholder}
				continue
			}
			delete(mapping, "test")
		}
		if policy, ok := mapping["restart_policy"].(map[string]any); ok && key == "deploy" && p.open(policy["condition"]) {
			delete(mapping, "restart_policy") // without the condition it would be another policy
		}
		if key == "depends_on" {
			maps.DeleteFunc(mapping, func(_ string, v any) bool { return p.open(v) })
		}
		unsettled = unsettled || strings.HasPrefix(key, "network") && p.open(v)
		left, ok := p.known(v)
		if !ok {
			delete(service, key)
			continue
		}
		if key == "healthcheck" && test != nil {
			left.(map[string]any)["test"] = test
		}
		service[key] = left
	}
	return unsettled
}

// at returns the value at a path of keys, nil where there is none.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		mapping, _ := v.(map[string]any)
		v = mapping[key]
	}
	return v
}

// known returns v without the values that are open, and false where nothing is left
// of it. An item of a list is taken out as a whole.
func (p *Pruner) known(v any) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if left, ok := p.known(value); ok {
				v[key] = left
			} else {
				delete(v, key)
			}
		}
		return v, true
	case []any:
		return slices.DeleteFunc(v, p.open), true
	default:
		return v, !p.open(v)
	}
}

// open reports whether a value, or one in it, is open.
func (p *Pruner) open(v any) (open bool) {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			open = open || p.open(value)
		}
	case []any:
		open = slices.ContainsFunc(v, p.open)
	case string:
		open = p.Open(v)
	}
	return open
}
