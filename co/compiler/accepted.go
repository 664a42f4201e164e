package compiler

import (
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// checkAccepted looks at the keys of a service that change nothing here, and refuses
// the values of them that would.
func (t *translation) checkAccepted(name string, s types.ServiceConfig) {
	if s.Scale != nil && *s.Scale != 1 {
		t.problem(name, "scale", "%d: one replica of a service runs on a node: place the deployment on several nodes instead", *s.Scale)
	}
	if s.Deploy != nil && s.Deploy.Mode != "" && s.Deploy.Mode != "replicated" {
		t.problem(name, "deploy.mode", "%q: want replicated: where an application runs is said by the deployment", s.Deploy.Mode)
	}
	switch policy, _, _ := strings.Cut(s.PullPolicy, "_"); policy {
	case "", "always", "missing", "if", "daily", "weekly", "every":
	default:
		t.problem(name, "pull_policy", "%q: images come from a registry: push it, and leave this out", s.PullPolicy)
	}
	if l := s.Logging; l != nil {
		switch l.Driver {
		case "", "json-file", "local", "journald", "none":
		default:
			t.warn("services."+name+".logging", "the driver %q is not used: the agent keeps the logs of containers on the node", l.Driver)
		}
	}
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind && strings.HasSuffix(v.Source, "/docker.sock") {
			t.warn("services."+name+".volumes", "%s: Colony's nodes run containerd: there is no Docker socket unless the node has Docker beside it", v.Source)
		}
	}
}

// linked returns the services that links name; the loader waits for them as for those of
// depends_on.
func linked(s types.ServiceConfig) (names []string) {
	for _, link := range s.Links {
		to, _, _ := strings.Cut(link, ":")
		names = append(names, to)
	}
	return names
}

// checkVolumes looks at the named volumes.
func (t *translation) checkVolumes() {
	for _, name := range slices.Sorted(maps.Keys(t.project.Volumes)) {
		v, at := t.project.Volumes[name], "volumes."+name
		if v.Driver != "" && v.Driver != "local" {
			t.problemAt(at+".driver", "%q: want local; for a file system of the network, mount it on the node and bind its path", v.Driver)
		}
		if bool(v.External) {
			t.warn(at, "it is external: the deployment has a volume of its own, which begins empty")
		}
	}
}
