// Package addresses reads the addresses that a Compose file gives to its services: ipam of
// networks, and ipv4_address. A bridge of a node has 256 addresses (a /24), so that all of
// one network that are given must lie in one such range. It is pure.
package addresses

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// Note says what is wrong at a path of the file, or will come true in another way.
type Note func(at, format string, args ...any)

// A Plan says which addresses a container gets on each network; the one bridge that a
// deployment has where nothing is separate is "".
type Plan map[string]map[string]*protocol.Addressing // by service and network

// chosen is how a warning ends: what is not given is chosen.
const chosen = "the node chooses the address, and others find the service by its name"

// Of returns the addresses of the services of a project. Attached are the networks of each
// service; separate says that each is a bridge of its own. Refuse and warn get what is wrong.
func Of(p *types.Project, attached map[string]map[string]bool, separate bool, refuse, warn Note) Plan {
	r := reader{project: p, separate: separate, refuse: refuse, warn: warn, subnets: map[string]netip.Prefix{}, given: map[string]map[netip.Addr]string{}}
	for _, name := range slices.Sorted(maps.Keys(p.Networks)) {
		r.network(name)
	}
	for _, service := range slices.Sorted(maps.Keys(attached)) {
		for _, network := range slices.Sorted(maps.Keys(attached[service])) {
			r.service(service, network)
		}
	}
	r.ranges()
	plan := Plan{}
	for service, networks := range attached {
		plan[service] = map[string]*protocol.Addressing{}
		for network := range networks {
			key := r.key(network)
			if a := addressing(service, r.given[key]); a != nil {
				plan[service][key] = a
			}
		}
	}
	return plan
}

type reader struct {
	project      *types.Project
	separate     bool
	refuse, warn Note
	subnets      map[string]netip.Prefix          // of networks
	given        map[string]map[netip.Addr]string // services by address, of each bridge
}

// key is the bridge that a network is.
func (r *reader) key(network string) string {
	if r.separate {
		return network
	}
	return ""
}

// network reads ipam of a network.
func (r *reader) network(name string) {
	ipam, at := r.project.Networks[name].Ipam, "networks."+name+".ipam"
	if ipam.Driver != "" && ipam.Driver != "default" {
		r.warn(at, "the driver %q is not used: the node gives the addresses", ipam.Driver)
	}
	for i, c := range ipam.Config {
		here := fmt.Sprintf("%s.config[%d]", at, i)
		if c == nil {
			continue
		}
		if c.Subnet != "" {
			subnet, err := netip.ParsePrefix(c.Subnet)
			if err != nil {
				r.refuse(here+".subnet", "%q: want a network such as 172.20.0.0/24", c.Subnet)
				continue
			}
			if subnet.Addr().Is4() && !r.subnets[name].IsValid() {
				r.subnets[name] = subnet.Masked()
			}
		}
		if c.Gateway != "" {
			r.warn(here+".gateway", "%s is not used: the node has the first address of the range of the bridge", c.Gateway)
		}
		if c.IPRange != "" || len(c.AuxiliaryAddresses) > 0 {
			r.warn(here, "ip_range and aux_addresses are not used: services that give no address get one that no other gives")
		}
	}
	if len(ipam.Config) > 0 && !r.subnets[name].IsValid() {
		r.warn(at, "it has no subnet of IPv4: the node chooses the subnet")
	}
}

// service reads the addresses of a service on a network.
func (r *reader) service(service, network string) {
	n, at := r.project.Services[service].Networks[network], "services."+service+".networks."+network
	if n == nil {
		return
	}
	if n.Ipv6Address != "" {
		r.warn(at+".ipv6_address", "containers have IPv4 addresses alone: others find the service by its name")
	}
	if n.Ipv4Address == "" {
		return
	}
	at += ".ipv4_address"
	a, err := netip.ParseAddr(n.Ipv4Address)
	subnet, key := r.subnets[network], r.key(network)
	switch s := r.project.Services[service]; {
	case err != nil || !a.Is4():
		r.refuse(at, "%q: want an IPv4 address such as 172.20.0.10", n.Ipv4Address)
	case !subnet.IsValid():
		r.warn(at, "the network has no subnet under ipam.config: %s", chosen)
	case !subnet.Contains(a):
		r.warn(at, "it is not in the subnet %s of the network: %s", subnet, chosen)
	case s.GetScale() > 1:
		r.warn(at, "the service has several replicas: %s", chosen)
	case a.As4()[3] < 2 || a.As4()[3] == 255:
		r.warn(at, "the node has the first address of a range of 256, and no container the first and last number: %s", chosen)
	case !a.IsPrivate():
		r.warn(at, "it is no private address (RFC 1918), and belongs to others: %s", chosen)
	case r.given[key][a] != "" && r.given[key][a] != service:
		r.refuse(at, "%s: services.%s has it, too: choose another one", a, r.given[key][a])
	default:
		if r.given[key] == nil {
			r.given[key] = map[netip.Addr]string{}
		}
		r.given[key][a] = service
	}
}

// ranges keeps the addresses of the bridges that have one range for all, and warns where ipam is
// not followed.
func (r *reader) ranges() {
	for _, name := range slices.Sorted(maps.Keys(r.subnets)) {
		at, key := "networks."+name+".ipam", r.key(name)
		ranges := map[netip.Prefix]bool{}
		holders := map[string]int{}
		for a, service := range r.given[key] {
			ranges[rangeOf(a)] = true
			holders[service]++
		}
		several := slices.ContainsFunc(slices.Collect(maps.Values(holders)), func(n int) bool { return n > 1 })
		switch {
		case len(ranges) == 0:
			r.warn(at, "the node chooses the subnet")
		case len(ranges) > 1 || several:
			r.warn(at, "the addresses that are given lie in several ranges of 256, or a service has several, and the bridge has one: the node chooses them")
			defer delete(r.given, key)
		default:
			r.warn(at, "the addresses are given where the node does not use %s otherwise; else it chooses them", slices.Collect(maps.Keys(ranges))[0])
		}
	}
}

// rangeOf returns the 256 addresses around one.
func rangeOf(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, 24).Masked()
}

// addressing returns what a service gets on a bridge on which addresses are given, nil where
// none are.
func addressing(service string, given map[netip.Addr]string) *protocol.Addressing {
	if len(given) == 0 {
		return nil
	}
	var out protocol.Addressing
	taken := map[byte]bool{1: true, 255: true}
	for a, owner := range given {
		taken[a.As4()[3]] = true
		out.Subnet = rangeOf(a).String()
		if owner == service {
			out.Address = a.String()
		}
	}
	// The others get theirs where most are free in a row.
	base := netip.MustParsePrefix(out.Subnet).Addr().As4()
	at := func(n int) string { return netip.AddrFrom4([4]byte{base[0], base[1], base[2], byte(n)}).String() }
	longest, from := 0, 2
	for n := 2; n <= 255; n++ {
		if !taken[byte(n)] {
			continue
		}
		if n-from > longest {
			longest, out.From, out.To = n-from, at(from), at(n-1)
		}
		from = n + 1
	}
	return &out
}

// Check refuses two components that both give addresses on the bridge that they share. The
// error is of kind protocol.Invalid.
func Check(components []protocol.Component) error {
	owner := ""
	for _, c := range components {
		if !slices.ContainsFunc(c.Containers, func(c protocol.Container) bool { return c.Addressing != nil }) {
			continue
		}
		if owner != "" {
			return protocol.Errorf(protocol.Invalid, "the components %s and %s both give addresses on the network of the deployment: take ipv4_address out of one", owner, c.Name)
		}
		owner = c.Name
	}
	return nil
}

// Share gives the containers of all components that share the bridge of a deployment what one
// component says of it.
func Share(components []protocol.Component) {
	var of *protocol.Addressing
	for _, c := range components {
		for _, container := range c.Containers {
			if a := container.Addressing; a != nil {
				of = &protocol.Addressing{Subnet: a.Subnet, From: a.From, To: a.To}
			}
		}
	}
	for i := range components {
		for j := range components[i].Containers {
			c := &components[i].Containers[j]
			if c.Addressing == nil && c.Network == protocol.NetworkBridge && c.NetworkOf == "" && len(c.Networks) == 0 {
				c.Addressing = of
			}
		}
	}
}
