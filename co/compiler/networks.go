package compiler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// checkNetworks refuses what one bridge per deployment cannot give, and warns of what
// it does in another way.
func (t *translation) checkNetworks() {
	attached := t.attachments()
	for _, pair := range separated(attached) {
		t.problems = append(t.problems, fmt.Sprintf("networks: the services %s and %s have no network in common: a deployment has one network, "+
			"and joining %s would take away what separates them; use one", pair[0], pair[1], strings.Join(allNetworks(attached), " and ")))
		break
	}
	for _, name := range slices.Sorted(maps.Keys(t.project.Networks)) {
		n, at := t.project.Networks[name], "networks."+name
		switch {
		case n.Driver != "" && n.Driver != "bridge":
			t.problemAt(at+".driver", "%q: want bridge", n.Driver)
		case bool(n.External):
			t.warn(at, "it is external: the deployment has a network of its own, and reaches no container outside of it by name")
		}
		if len(n.Ipam.Config) > 0 || n.Ipam.Driver != "" {
			t.warn(at+".ipam", "the node chooses the subnet")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		for network, n := range t.project.Services[name].Networks {
			if n != nil && (n.Ipv4Address != "" || n.Ipv6Address != "") {
				t.warn("services."+name+".networks."+network, "the node chooses the address: others find the service by its name")
			}
		}
	}
}

// attachments returns the networks of each service that has any.
func (t *translation) attachments() map[string]map[string]bool {
	attached := map[string]map[string]bool{}
	for name, s := range t.project.Services {
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

// separated returns the pairs of services that share no network.
func separated(attached map[string]map[string]bool) (pairs [][2]string) {
	names := slices.Sorted(maps.Keys(attached))
	for i, a := range names {
		for _, b := range names[i+1:] {
			shared := false
			for network := range attached[a] {
				shared = shared || attached[b][network]
			}
			if !shared {
				pairs = append(pairs, [2]string{a, b})
			}
		}
	}
	return pairs
}

func allNetworks(attached map[string]map[string]bool) []string {
	all := map[string]bool{}
	for _, networks := range attached {
		maps.Copy(all, networks)
	}
	return slices.Sorted(maps.Keys(all))
}

// aliases returns the further names of a container: the aliases of its network,
// container_name, which Docker resolves as well, and the names that the links of others
// give it.
func (t *translation) aliases(service string, s types.ServiceConfig) []string {
	var all []string
	for _, n := range s.Networks {
		if n != nil {
			all = append(all, n.Aliases...)
		}
	}
	if s.ContainerName != "" {
		all = append(all, s.ContainerName)
	}
	for _, other := range t.project.Services {
		for _, link := range other.Links {
			if to, alias, named := strings.Cut(link, ":"); named && to == service && alias != "" {
				all = append(all, alias)
			}
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(a string) bool { return a == service })
}

// checkLinks refuses links to nobody.
func (t *translation) checkLinks(service string, s types.ServiceConfig) {
	for _, link := range s.Links {
		to, _, _ := strings.Cut(link, ":")
		if _, ok := t.project.Services[to]; !ok {
			t.problem(service, "links", "there is no service %q", to)
		}
	}
}
