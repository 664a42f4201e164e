package compiler

import (
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/mountspec"
	"github.com/colonyfleet/colony/co/compiler/servicecheck"
	"github.com/colonyfleet/colony/co/compiler/topology"
)

// checkAccepted refuses values of a service that cannot work, and warns of some that
// change nothing.
func (t *translation) checkAccepted(name string, s types.ServiceConfig) {
	servicecheck.Judge(s, func(key, format string, args ...any) { t.problem(name, key, format, args...) })
	if l := s.Logging; l != nil {
		const kept = "is not used: the agent keeps the logs of containers on the node, within bounds of its own"
		switch l.Driver {
		case "", "json-file", "local":
		default:
			t.warn("services."+name+".logging", "the driver %q %s", l.Driver, kept)
		}
		for _, option := range slices.Sorted(maps.Keys(l.Options)) {
			t.warn("services."+name+".logging.options", "%s %s", option, kept)
		}
	}
	for _, v := range s.Volumes {
		at := "services." + name + ".volumes"
		mountspec.JudgeBind(v, func(format string, args ...any) { t.problemAt(at, format, args...) }, func(format string, args ...any) { t.warn(at, format, args...) })
	}
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind && strings.HasSuffix(v.Source, "/docker.sock") {
			t.warn("services."+name+".volumes", "%s: Colony's nodes run containerd: there is no Docker socket unless the node has Docker beside it", v.Source)
		}
	}
}

// replicas returns how many containers a service has, and refuses what several could not
// have each.
func (t *translation) replicas(name string, s types.ServiceConfig) int {
	n, key := s.GetScale(), "scale"
	if s.Scale == nil {
		key = "deploy.replicas"
	}
	switch {
	case n < 1 || n > topology.MaxReplicas:
		t.problem(name, key, "%d: want 1 to %d; a service that is not to run has a profile", n, topology.MaxReplicas)
	case n == 1:
	case slices.ContainsFunc(s.Ports, func(p types.ServicePortConfig) bool { return p.Published != "" && p.Published != "0" }):
		t.problem(name, "ports", "the service has %d replicas, which cannot all have one port of the node: leave that out, so that the node chooses one for each", n)
	}
	return n
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
