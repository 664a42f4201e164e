package compiler

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/servicecheck"
	"github.com/colonyfleet/colony/protocol"
)

// surroundings fills in how a container's processes are run: what is around them, and
// what they may do.
func (t *translation) surroundings(name string, s types.ServiceConfig, c *protocol.Container) {
	c.Init = s.Init != nil && *s.Init
	c.TTY, c.Stdin = s.Tty, s.StdinOpen
	c.OOMScoreAdj, c.Domainname, c.Annotations = int(s.OomScoreAdj), s.DomainName, nonEmpty(s.Annotations)
	c.ShmBytes = uint64(max(s.ShmSize, 0))
	c.Ulimits = t.ulimits(name, s.Ulimits)
	c.Networks, c.Addressing = t.networks(name, s), t.addresses[name][""]
	c.HostNamespaces = t.hostNamespaces(name, s)
	c.Platform = s.Platform
	c.Reservations = t.reservations(name, s, c.Limits.MemoryBytes)
	t.security(name, s.SecurityOpt, c)
	t.resolver(name, s, c)
	if c.NetworkOf = t.networkOf(name, s); c.NetworkOf != "" {
		c.Hostname = t.project.Services[c.NetworkOf].Hostname // as in Docker
	}
}

// limitNames are the resources of setrlimit(2).
var limitNames = strings.Fields("as core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack")

func (t *translation) ulimits(service string, given map[string]*types.UlimitsConfig) []protocol.Ulimit {
	var all []protocol.Ulimit
	for _, name := range slices.Sorted(maps.Keys(given)) {
		u := given[name]
		l := protocol.Ulimit{Name: name, Soft: int64(u.Soft), Hard: int64(u.Hard)}
		if u.Single != 0 {
			l.Soft, l.Hard = int64(u.Single), int64(u.Single)
		}
		// -1 is no limit, and so more than any number.
		above := func(n int64) uint64 { return uint64(n) }
		switch {
		case !slices.Contains(limitNames, name):
			t.problem(service, "ulimits."+name, "Linux has no such limit; it has %s", strings.Join(limitNames, ", "))
		case l.Soft < -1 || l.Hard < -1:
			t.problem(service, "ulimits."+name, "want numbers, or -1 for no limit")
		case above(l.Soft) > above(l.Hard):
			t.problem(service, "ulimits."+name, "the soft limit is above the hard one")
		case name == "nofile" && l.Hard == -1:
			t.problem(service, "ulimits."+name, "Linux has no unlimited number of open files, and the container would not start: want a number, such as 1048576")
		}
		all = append(all, l)
	}
	return all
}

// hostNamespaces reads pid and ipc.
func (t *translation) hostNamespaces(service string, s types.ServiceConfig) []protocol.HostNamespace {
	var all []protocol.HostNamespace
	switch s.Pid {
	case "":
	case "host":
		all = append(all, protocol.HostPID)
	default:
		t.problem(service, "pid", "%q: want host, or leave it out", s.Pid)
	}
	switch s.Ipc {
	case "", "private", "shareable":
	case "host":
		all = append(all, protocol.HostIPC)
	default:
		t.problem(service, "ipc", "%q: want host, private, or leave it out", s.Ipc)
	}
	return all
}

// reservations reads deploy.resources.reservations, or mem_reservation.
func (t *translation) reservations(service string, s types.ServiceConfig, limit uint64) protocol.Limits {
	own, key := types.Resource{MemoryBytes: s.MemReservation}, "mem_reservation"
	if s.Deploy != nil && s.Deploy.Resources.Reservations != nil {
		r := s.Deploy.Resources.Reservations
		own.NanoCPUs = r.NanoCPUs
		if r.MemoryBytes != 0 {
			own.MemoryBytes, key = r.MemoryBytes, "deploy.resources.reservations.memory"
		}
	}
	if own.NanoCPUs < 0 || own.MemoryBytes < 0 {
		t.problem(service, "deploy.resources.reservations", "a reservation is negative: want numbers from 0")
		return protocol.Limits{}
	}
	if limit > 0 && uint64(own.MemoryBytes) > limit {
		t.problem(service, key, "%d bytes are reserved, and the limit is %d: reserve less, or raise the limit", own.MemoryBytes, limit)
	}
	return protocol.Limits{NanoCPUs: uint64(math.Round(float64(own.NanoCPUs)*1e4)) * 1e5, MemoryBytes: uint64(own.MemoryBytes)}
}

// security reads security_opt.
func (t *translation) security(service string, options []string, c *protocol.Container) {
	for _, option := range options {
		key, value := option, ""
		if i := strings.IndexAny(option, "=:"); i >= 0 {
			key, value = option[:i], option[i+1:]
		}
		switch key {
		case "no-new-privileges":
			if value != "" && value != "true" && value != "false" {
				t.problem(service, "security_opt", "%q: want no-new-privileges:true", option)
			}
			c.NoNewPrivileges = value != "false"
		case "seccomp":
			c.Seccomp = t.seccomp(service, value)
		case "apparmor":
			c.AppArmor, c.AppArmorProfile = t.appArmor(service, option, value)
		case "label":
			t.warn("services."+service+".security_opt", "%q changes nothing: containers get no SELinux label", option)
		default:
			t.problem(service, "security_opt", "%q is not supported; no-new-privileges, seccomp, apparmor and label are", option)
		}
	}
}

// appArmor returns the name of a profile, "" for none, which is what a container has here, and
// the text of one of the archive.
func (t *translation) appArmor(service, option, value string) (name, text string) {
	_, file := t.archive.Files[value]
	switch {
	case value == "":
		t.problem(service, "security_opt", "%q: want the name of a profile, a file of the archive with one, or unconfined", option)
	case file, strings.HasPrefix(value, "./"), strings.HasPrefix(value, "../"):
		b, err := t.archive.File(value)
		if err == nil {
			name, text, err = servicecheck.AppArmor(b)
		}
		if err != nil {
			t.problem(service, "security_opt", "apparmor: %s: %v", value, err)
		}
		return name, text
	case value == "docker-default":
		t.warn("services."+service+".security_opt", "%q: nodes do not have Docker's profile: the container runs unconfined by AppArmor", option)
		return "", ""
	case value == "unconfined":
		return "", ""
	}
	return value, ""
}

// seccomp returns the content of a profile of the archive.
func (t *translation) seccomp(service, value string) string {
	if value == protocol.SeccompUnconfined {
		return value
	}
	b, err := t.archive.File(value)
	if err != nil {
		t.problem(service, "security_opt", "seccomp: %v", err)
		return ""
	}
	if err := servicecheck.Seccomp(b); err != nil {
		t.problem(service, "security_opt", "seccomp: %s is no profile: %v", value, err)
	}
	return string(b)
}

// resolver reads dns, dns_search and dns_opt.
func (t *translation) resolver(service string, s types.ServiceConfig, c *protocol.Container) {
	for _, server := range s.DNS {
		if a, err := netip.ParseAddr(server); err != nil || a.Zone() != "" {
			t.problem(service, "dns", "%q: want an IP address, without a zone", server)
		}
	}
	for _, domain := range slices.Concat(s.DNSSearch, s.DNSOpts) {
		if domain == "" || strings.ContainsAny(domain, " \t\r\n\x00") {
			t.problem(service, "dns_search", "%q: want one domain or option for each entry", domain)
		}
	}
	c.DNS, c.DNSSearch, c.DNSOptions = slices.Clone(s.DNS), slices.Clone(s.DNSSearch), slices.Clone(s.DNSOpts)
}

// networkOf reads network_mode: service:x, and refuses what would belong to x.
func (t *translation) networkOf(service string, s types.ServiceConfig) string {
	owner, ok := strings.CutPrefix(s.NetworkMode, types.NetworkModeServicePrefix)
	if !ok {
		return ""
	}
	of, exists := t.project.Services[owner]
	switch {
	case !exists:
		t.problem(service, "network_mode", "there is no service %q", owner)
	case of.NetworkMode != "" && of.NetworkMode != "bridge":
		t.problem(service, "network_mode", "the service %s has no network of its own: name the one that has it", owner)
	case of.GetScale() > 1:
		t.problem(service, "network_mode", "the service %s has %d replicas: name one that has one", owner, of.GetScale())
	case s.DependsOn[owner].Condition == types.ServiceConditionCompletedSuccessfully:
		t.problem(service, "depends_on."+owner, "the service shares the network of %s, which must run", owner)
	}
	given := map[string]bool{
		"ports": len(s.Ports) > 0, "domainname": s.DomainName != "", "hostname": s.Hostname != "", "networks": len(s.Networks) > 0, "links": len(s.Links) > 0, "extra_hosts": len(s.ExtraHosts) > 0,
		"dns": len(s.DNS) > 0, "dns_search": len(s.DNSSearch) > 0, "dns_opt": len(s.DNSOpts) > 0,
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if given[key] {
			t.problem(service, key, "the service shares the network of %s: say it there", owner)
		}
	}
	return owner
}
