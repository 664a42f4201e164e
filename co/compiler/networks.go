package compiler

import (
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/addresses"
	"github.com/colonyfleet/colony/co/compiler/topology"
	"github.com/colonyfleet/colony/protocol"
)

// ownAddress is what takes the place of a network in which a service has an address of its own.
const ownAddress = "; a service that needs an address in the network of the plant has those of the node with network_mode: host, or publishes its ports on one of them, as in ports: ['192.168.1.10:80:80']"

// insteadOfDriver says what to write in the place of drivers of networks that others have.
var insteadOfDriver = map[string]string{
	"macvlan": ownAddress, "ipvlan": ownAddress,
	"host":    "; network_mode: host of a service gives it the network of the node",
	"none":    "; network_mode: none of a service gives it no network",
	"overlay": "; the network of a deployment does not reach other nodes: publish ports, and let services of other nodes use the address of the node",
}

// checkNetworks finds which services the file keeps apart, refuses what a bridge cannot
// give, and warns of what it does in another way.
func (t *translation) checkNetworks() {
	attached := topology.Attached(t.project.Services)
	internal := false
	for _, networks := range attached {
		for name := range networks {
			internal = internal || t.project.Networks[name].Internal
		}
	}
	if internal || topology.Separated(attached) {
		t.attached = attached
	}
	t.checkAliases(attached)
	for _, name := range slices.Sorted(maps.Keys(t.project.Networks)) {
		n, at := t.project.Networks[name], "networks."+name
		switch {
		case n.Driver != "" && n.Driver != "bridge":
			t.problemAt(at+".driver", "%q: want bridge%s", n.Driver, insteadOfDriver[n.Driver])
		case bool(n.External):
			t.warn(at, "it is external: the deployment has a network of its own, and reaches no container outside of it by name")
		}
		if n.EnableIPv6 != nil && *n.EnableIPv6 {
			t.warn(at+".enable_ipv6", "containers have IPv4 addresses alone; a service under network_mode host has those of the node")
		}
	}
	t.addresses = addresses.Of(t.project, attached, t.attached != nil, t.problemAt, t.warn)
}

// checkAliases refuses an alias that would name two services where Compose has one, and
// warns of one that is answered where Compose does not.
func (t *translation) checkAliases(attached map[string]map[string]bool) {
	if t.unsettled {
		return
	}
	for _, s := range topology.Strays(t.project.Services, attached, t.attached != nil) {
		at := "services." + s.Service + ".networks." + s.Network + ".aliases"
		if s.Instead != "" {
			t.problemAt(at, "%q is an alias of %s as well, on another network; a service answers to its aliases on all of its networks, so that %s would find both: give them different aliases", s.Alias, s.Instead, s.Client)
		} else {
			t.warn(at, "a service answers to its aliases on all of its networks: %s finds it as %q, too", s.Client, s.Alias)
		}
	}
}

// networks returns the networks of a service, where the file keeps some services apart or
// from what is outside; else the deployment has one for all.
func (t *translation) networks(service string, s types.ServiceConfig) (on []protocol.Attachment) {
	out := false
	for _, name := range slices.Sorted(maps.Keys(t.attached[service])) {
		a := protocol.Attachment{Network: name, Internal: t.project.Networks[name].Internal, Addressing: t.addresses[service][name]}
		on, out = append(on, a), out || !a.Internal
	}
	if on != nil && !out && len(s.Ports) > 0 {
		t.problem(service, "ports", "the service is on internal networks alone, on which nothing is published: put it on another one, too")
	}
	return on
}

// aliases returns the further names of a container: the aliases of its networks,
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

// checkLinks refuses links to services that do not exist.
func (t *translation) checkLinks(service string, s types.ServiceConfig) {
	for _, link := range s.Links {
		to, _, _ := strings.Cut(link, ":")
		if _, ok := t.project.Services[to]; !ok {
			t.problem(service, "links", "there is no service %q", to)
		}
	}
}
