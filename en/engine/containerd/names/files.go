package names

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/nameserver"
	"github.com/colonyfleet/colony/protocol"
)

const localHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// word is what may stand in the files of a container as one name.
var word = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// check refuses names and addresses of a container of which one would be several in its files or in
// those of others. The CO refuses them already; this check does not rely on it.
func check(c engine.Container) error {
	names := append([]string{Hostname(c), c.ID.Name}, c.Spec.Aliases...)
	texts := slices.Clone(c.Spec.DNS)
	for _, line := range c.Spec.ExtraHosts {
		name, address, _ := strings.Cut(line, "=")
		if names = append(names, name); address != "host-gateway" {
			texts = append(texts, address)
		}
	}
	for _, name := range names {
		if !word.MatchString(name) {
			return engine.Errorf(protocol.CreateFailed, "container %s: the name %q: want letters, digits, dots, _ and -", c.ID, name)
		}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
			return engine.Errorf(protocol.CreateFailed, "container %s: %q: want an IP address without a zone", c.ID, text)
		}
	}
	for _, text := range slices.Concat(c.Spec.DNSSearch, c.Spec.DNSOptions) {
		if strings.ContainsAny(text, " \t\r\n\x00") {
			return engine.Errorf(protocol.CreateFailed, "container %s: %q: want one domain or option for each entry", c.ID, text)
		}
	}
	return nil
}

// extraHosts turns "name=address" into lines. The address host-gateway means
// the node.
func extraHosts(lines []string, gateway string) []byte {
	var out []byte
	for _, line := range lines {
		name, address, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		if address == "host-gateway" {
			address = gateway
		}
		out = fmt.Appendf(out, "%s\t%s\n", address, name)
	}
	return out
}

// A member is a container that has an address on a network.
type member struct {
	key string
	*bridgenet.Attachment
}

// members returns the containers on a network, in the order of their keys.
func members(network string, attached map[string]*bridgenet.Attachment) []member {
	var list []member
	for _, k := range slices.Sorted(maps.Keys(attached)) {
		if a := attached[k]; a.Network == network && a.IP != "" {
			list = append(list, member{k, a})
		}
	}
	return list
}

// An entry is an address and the names that it has.
type entry struct {
	ip    string
	names []string
}

// view returns what one container sees of its network: itself, then the others of its
// component, then those of other components under the names still free.
func view(key string, list []member) []entry {
	at := slices.IndexFunc(list, func(m member) bool { return m.key == key })
	if at < 0 {
		return nil
	}
	me := list[at]
	var out []entry
	taken := map[string]bool{}
	add := func(m member, names ...string) {
		e := entry{ip: addressFor(me, m)}
		for _, name := range names {
			if name != "" && !taken[name] && !slices.Contains(e.names, name) {
				e.names = append(e.names, name)
			}
		}
		if e.ip != "" && len(e.names) > 0 {
			out = append(out, e)
		}
	}
	add(me, append([]string{me.Hostname, me.Name}, me.Aliases...)...)
	taken[me.Hostname], taken[me.Name] = true, true
	for _, m := range list {
		if m.key != key && m.Group == me.Group { // of which several may have one alias
			add(m, append([]string{m.Name, m.Name + "." + m.Group}, m.Aliases...)...)
		}
	}
	for _, m := range list {
		for _, e := range out {
			for _, name := range e.names {
				taken[name] = true
			}
		}
		if m.key != key && m.Group != me.Group {
			add(m, append([]string{m.Name, m.Name + "." + m.Group}, m.Aliases...)...)
		}
	}
	return out
}

// addressFor returns the address at which one container reaches another: that on a network
// that both are on, "" where there is none.
func addressFor(from, to member) string {
	if len(from.Links) == 0 && len(to.Links) == 0 {
		return to.IP
	}
	for _, a := range from.Links {
		for _, b := range to.Links {
			if a.Name == b.Name {
				return b.IP
			}
		}
	}
	return ""
}

// hostsOf returns the hosts file of a container.
func hostsOf(v []entry, a *bridgenet.Attachment) []byte {
	out := []byte(localHosts)
	for _, e := range v {
		out = fmt.Appendf(out, "%s\t%s\n", e.ip, strings.Join(e.names, " "))
	}
	return append(out, extraHosts(a.ExtraHosts, a.Gateway)...)
}

// zoneOf returns the DNS zone of a container.
func zoneOf(v []entry, s settings) *nameserver.Zone {
	zone := &nameserver.Zone{Names: map[string][]netip.Addr{}, Pointers: map[netip.Addr]string{}, Upstreams: nameserver.Upstreams(outside(s.Servers))}
	for _, e := range v {
		ip, err := netip.ParseAddr(e.ip)
		if err != nil {
			continue
		}
		zone.Pointers[ip] = e.names[0]
		for _, name := range e.names {
			lower := strings.ToLower(name)
			zone.Names[lower] = append(zone.Names[lower], ip)
		}
	}
	return zone
}

func addresses(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// outside returns the addresses that are not of the loopback: there a container means
// itself, and the agent the node.
func outside(texts []string) []netip.Addr {
	return slices.DeleteFunc(addresses(texts), func(a netip.Addr) bool { return a.IsLoopback() })
}

// maxServers is how many name servers the C library reads.
const maxServers = 3

// resolvConf returns the resolv.conf of a container. The caller holds the lock.
func (n *Names) resolvConf(s settings) []byte {
	own := addresses(s.Servers)
	if s.Network != protocol.NetworkBridge && own == nil && s.Search == nil && s.Options == nil {
		return n.node.raw // it reaches what the node reaches, or nothing
	}
	servers := own
	switch {
	case own != nil:
	case s.Network == protocol.NetworkBridge:
		servers = n.node.reached
	default:
		servers = n.node.own.Servers
	}
	options := cmp.Or(strings.Join(s.Options, " "), strings.Join(n.node.own.Options, " "))
	if s.Network == protocol.NetworkBridge {
		servers = slices.Insert(slices.Clone(servers), 0, netip.MustParseAddr(address))
		// The name of a service has no dot: it is asked for as it is, before the domains of
		// search are put behind it.
		if !strings.Contains(options, "ndots:") {
			options = strings.TrimSpace("ndots:0 " + options)
		}
	}
	var out []byte
	for _, a := range servers[:min(len(servers), maxServers)] {
		out = fmt.Appendf(out, "nameserver %s\n", a)
	}
	search := n.node.own.Search
	if s.Search != nil {
		search = s.Search
	}
	// A dot alone is how Compose says none.
	if search = slices.DeleteFunc(slices.Clone(search), func(d string) bool { return d == "." }); len(search) > 0 {
		out = fmt.Appendf(out, "search %s\n", strings.Join(search, " "))
	}
	if options != "" {
		out = fmt.Appendf(out, "options %s\n", options)
	}
	return out
}
