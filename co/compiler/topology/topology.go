// Package topology finds what the services of a Compose project are to each other:
// replicas of one, and members of networks. It is pure.
package topology

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// MaxReplicas bounds the replicas of a service on a node.
const MaxReplicas = 100

// Replicate adds the replicas of services: the first one keeps the name, and with it its volumes,
// the others have a number behind it. All have the name of the service in DNS, and a service that
// depends on it waits for all. A name that is taken is an error.
func Replicate(containers map[string]protocol.Container, replicas map[string]int) error {
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		first, ok := containers[name]
		if !ok {
			continue
		}
		var more []string
		for i := 2; i <= replicas[name]; i++ {
			c := first
			c.Name = fmt.Sprintf("%s-%d", name, i)
			if _, taken := containers[c.Name]; taken {
				return fmt.Errorf("its replica %d has the name of the service %s: rename that one", i, c.Name)
			}
			if c.Network == protocol.NetworkBridge {
				c.Aliases = slices.Sorted(slices.Values(append(slices.Clone(first.Aliases), name)))
			}
			containers[c.Name] = c
			more = append(more, c.Name)
		}
		for other, c := range containers {
			at := slices.IndexFunc(c.DependsOn, func(d protocol.Dependency) bool { return d.Container == name })
			if at < 0 {
				continue
			}
			c.DependsOn = slices.Clone(c.DependsOn)
			for _, replica := range more {
				d := c.DependsOn[at]
				d.Container = replica
				c.DependsOn = append(c.DependsOn, d)
			}
			slices.SortFunc(c.DependsOn, func(a, b protocol.Dependency) int { return strings.Compare(a.Container, b.Container) })
			containers[other] = c
		}
	}
	return nil
}

var replicaName = regexp.MustCompile(`^(.+)-[1-9][0-9]*$`)

// MayShare reports whether two containers of a component may both answer to a name: to an
// alias, as in Docker, where DNS gives the addresses of all; and a replica to the name of
// its service.
func MayShare(name string, a, b protocol.Container) bool {
	service := func(c protocol.Container) string { // whose name it has, or is a replica of
		if m := replicaName.FindStringSubmatch(c.Name); m != nil && m[1] == name {
			return name
		}
		return c.Name
	}
	return (service(a) == name) == (service(b) == name)
}

// Attached returns the networks of each service that has any of its own.
func Attached(services types.Services) map[string]map[string]bool {
	attached := map[string]map[string]bool{}
	for name, s := range services {
		if s.NetworkMode != "" && s.NetworkMode != "bridge" {
			continue
		}
		attached[name] = map[string]bool{}
		for network := range s.Networks {
			attached[name][network] = true
		}
		if len(s.Networks) == 0 {
			attached[name]["default"] = true
		}
	}
	return attached
}

// Separated reports whether two services share no network.
func Separated(attached map[string]map[string]bool) bool {
	names := slices.Sorted(maps.Keys(attached))
	for i, a := range names {
		for _, b := range names[i+1:] {
			shared := false
			for network := range attached[a] {
				shared = shared || attached[b][network]
			}
			if !shared {
				return true
			}
		}
	}
	return false
}
