package compiler

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/distribution/reference"

	"github.com/colonyfleet/colony/co/compiler/devicespec"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/compiler/servicecheck"
	"github.com/colonyfleet/colony/protocol"
)

// container translates a service. Problems are noted; the container is then of no use.
func (t *translation) container(name string, s types.ServiceConfig) protocol.Container {
	say := func(key, format string, args ...any) { t.problem(name, key, format, args...) }
	c := protocol.Container{
		Name: name, Image: s.Image, Env: t.environment(name, s),
		WorkingDir: s.WorkingDir, User: s.User, Hostname: s.Hostname,
		Network: t.network(name, s), Ports: t.ports(name, s), Mounts: t.mounting().Mounts(name, s), Devices: devicespec.Of(s, say),
		Limits: t.limits(name, s), Restart: t.restart(name, s), Health: t.health(name, s), DependsOn: t.dependencies(name, s),
		CapAdd: servicecheck.Capabilities("cap_add", s.CapAdd, say), CapDrop: servicecheck.Capabilities("cap_drop", s.CapDrop, say), Privileged: s.Privileged, ReadOnly: s.ReadOnly,
		StopSignal: s.StopSignal, StopTimeoutMillis: t.grace(name, s.StopGracePeriod),
		Labels: nonEmpty(s.Labels), Aliases: t.aliases(name, s), ExtraHosts: t.hosts(name, s),
		Sysctls: nonEmpty(s.Sysctls), GroupAdd: slices.Clone(s.GroupAdd),
	}
	t.arguments(name, s, &c)
	t.surroundings(name, s, &c)
	t.checkImage(name, s.Image)
	t.checkLinks(name, s)
	t.checkAccepted(name, s)
	servicecheck.Sizes(c, say)
	return c
}

// checkImage refuses what no registry could have.
func (t *translation) checkImage(service, image string) {
	if strings.TrimSpace(image) == "" {
		t.problem(service, "image", "empty; is a parameter missing?")
	} else if _, err := reference.ParseNormalizedNamed(image); err != nil && !t.unknown[service] {
		t.problem(service, "image", "%q is no name of an image: %v", image, err)
	}
}

// arguments reads entrypoint and command. An entrypoint of its own leaves the image's command out,
// too. One that is empty leaves the command to be all that is run, and an empty command
// leaves the image's out.
func (t *translation) arguments(service string, s types.ServiceConfig, c *protocol.Container) {
	c.Entrypoint, c.Command = slices.Clone([]string(s.Entrypoint)), slices.Clone([]string(s.Command))
	switch {
	case s.Entrypoint != nil && len(s.Entrypoint) == 0:
		if len(s.Command) == 0 {
			t.problem(service, "entrypoint", "empty: nothing is run, as what the image runs is left out; name the command, or leave entrypoint out")
		}
		if len(s.Command) > 0 && s.Command[0] == "" {
			t.problem(service, "command", "the program has no name: want one first")
		}
		c.Entrypoint, c.Command = c.Command, nil
	case len(s.Entrypoint) > 0 && s.Entrypoint[0] == "":
		t.problem(service, "entrypoint", "the program has no name: want one first, or [] to leave the image's out")
	case s.Entrypoint == nil && s.Command != nil && len(s.Command) == 0:
		c.Command, c.NoCommand = nil, true
		t.warn("services."+service+".command", "empty: the image's command is left out, as the Compose specification has it; Docker runs it: leave the key out for that")
	}
}

// environment joins env_file and environment, the later winning, in sorted lines.
func (t *translation) environment(service string, s types.ServiceConfig) []string {
	warn := func(string, string) {}
	e := interpolate.NewEnvironment(s.Environment, func(name string) (string, bool) {
		value, ok := t.lookup(name)
		warn(name, value)
		return value, ok
	})
	for _, f := range s.EnvFiles {
		at, prefix := "services."+service+".env_file", f.Path+": "
		b, err := t.archive.File(f.Path)
		if err != nil {
			if bool(f.Required) || strings.Contains(err.Error(), "leads out") {
				t.problem(service, "env_file", "%v", err)
			}
			continue
		}
		warn = func(name, value string) { t.warnFolder(at, prefix, name, value) }
		missing, err := e.File(f.Path, b)
		if err != nil {
			t.problem(service, "env_file", "%s: %v", f.Path, err)
			continue
		}
		t.warnEmpty(at, prefix, string(b), missing)
	}
	t.warnFixed(service, s)
	env := e.Values()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			t.problem(service, "environment", "%q cannot be an environment variable: want a name that is not empty and without =, and a value without a zero byte", name)
			continue
		}
		lines = append(lines, name+"="+env[name])
	}
	return lines
}

func (t *translation) network(service string, s types.ServiceConfig) protocol.Network {
	switch s.NetworkMode {
	case "", "bridge":
		return protocol.NetworkBridge
	case "host":
		return protocol.NetworkHost
	case "none":
		return protocol.NetworkNone
	}
	if !strings.HasPrefix(s.NetworkMode, types.NetworkModeServicePrefix) { // see networkOf
		t.problem(service, "network_mode", "%q: want bridge, host, none or service:<name>", s.NetworkMode)
	}
	return protocol.NetworkBridge
}

func (t *translation) ports(service string, s types.ServiceConfig) []protocol.Port {
	var all []protocol.Port
	for _, p := range s.Ports {
		host, err := strconv.ParseUint(p.Published, 10, 16)
		switch {
		case s.NetworkMode == "host" || s.NetworkMode == "none":
			t.problem(service, "ports", "network_mode %s has no ports to publish: leave them out", s.NetworkMode)
			return nil
		case p.Target == 0 || p.Target > math.MaxUint16:
			t.problem(service, "ports", "container port %d: want 1 to 65535", p.Target)
			continue
		case err != nil && p.Published != "": // without one, the node chooses it
			t.problem(service, "ports", "port %q of the node: want one number from 1 to 65535", p.Published)
			continue
		}
		port := protocol.Port{Container: uint16(p.Target), Host: uint16(host), HostIP: p.HostIP}
		switch strings.ToLower(p.Protocol) {
		case "", "tcp":
		case "udp":
			port.Protocol = "udp"
		default:
			t.problem(service, "ports", "protocol %q: want tcp or udp", p.Protocol)
		}
		if p.Mode != "" && p.Mode != "ingress" && p.Mode != "host" {
			t.problem(service, "ports", "mode %q: want host or ingress", p.Mode)
		}
		if p.HostIP != "" {
			port.HostIP = t.hostIP(service, p.HostIP)
		}
		all = append(all, port)
	}
	slices.SortFunc(all, func(a, b protocol.Port) int {
		if a.Host != b.Host {
			return int(a.Host) - int(b.Host)
		}
		return strings.Compare(a.Protocol+a.HostIP, b.Protocol+b.HostIP)
	})
	return all
}

// checkPorts refuses a port of the node that two services of the component publish, or one
// twice.
func (t *translation) checkPorts(document map[string]any) {
	type published struct {
		at string
		protocol.Port
	}
	taken := map[string][]published{}
	services, _ := document["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		service, _ := services[name].(map[string]any)
		written, _ := service["ports"].([]any)
		ports := t.project.Services[name].Ports
		for i, p := range ports {
			if p.Published == "" || p.Published == "0" {
				continue // the node chooses one
			}
			at := "services." + name + ".ports"
			if len(written) == len(ports) {
				at += fmt.Sprintf("[%d]", i)
			}
			// What is wrong with an address is said elsewhere.
			port := protocol.Port{HostIP: strings.Trim(p.HostIP, "[]"), Protocol: p.Protocol}
			for _, other := range taken[p.Published] {
				if port.Meets(other.Port) {
					t.problemAt(at, "port %s of the node is published twice in this deployment: %s has it; publish another one", p.Published, other.at)
					break
				}
			}
			taken[p.Published] = append(taken[p.Published], published{at, port})
		}
	}
}

// hostIP returns the address of the node that a port is published on, in one form.
func (t *translation) hostIP(service, text string) string {
	ip, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		t.problem(service, "ports", "host_ip %q: want an IPv4 or IPv6 address", text)
	}
	return ip.Unmap().String()
}

// limits reads deploy.resources.limits, or the older keys of the service itself.
func (t *translation) limits(service string, s types.ServiceConfig) protocol.Limits {
	own := types.Resource{NanoCPUs: types.NanoCPUs(s.CPUS), MemoryBytes: s.MemLimit, Pids: s.PidsLimit}
	if s.Deploy != nil {
		if l := s.Deploy.Resources.Limits; l != nil {
			t.same(service, "cpus", own.NanoCPUs != 0 && l.NanoCPUs != 0 && own.NanoCPUs != l.NanoCPUs)
			t.same(service, "mem_limit", own.MemoryBytes != 0 && l.MemoryBytes != 0 && own.MemoryBytes != l.MemoryBytes)
			t.same(service, "pids_limit", own.Pids != 0 && l.Pids != 0 && own.Pids != l.Pids)
			if l.NanoCPUs != 0 {
				own.NanoCPUs = l.NanoCPUs
			}
			if l.MemoryBytes != 0 {
				own.MemoryBytes = l.MemoryBytes
			}
			if l.Pids != 0 {
				own.Pids = l.Pids
			}
		}
	}
	if own.NanoCPUs < 0 || own.MemoryBytes < 0 || own.Pids < -1 { // checkAccepted says so
		return protocol.Limits{}
	}
	return protocol.Limits{
		MemorySwapBytes: t.memswap(service, int64(s.MemSwapLimit), int64(own.MemoryBytes)),
		CPUShares:       uint64(max(s.CPUShares, 0)), CPUSet: strings.ReplaceAll(s.CPUSet, " ", ""),
		// The loader holds cores in 32 bits: rounding to a ten-thousandth makes 0.1 of 0.100000001.
		NanoCPUs:    uint64(math.Round(float64(own.NanoCPUs)*1e4)) * 1e5,
		MemoryBytes: uint64(own.MemoryBytes),
		Pids:        uint64(max(own.Pids, 0)), // -1 is Compose's word for no limit
	}
}

// memswap reads memswap_limit, the bound of memory and swap together.
func (t *translation) memswap(service string, given, memory int64) uint64 {
	switch {
	case given == 0:
		return 0
	case memory == 0:
		t.problem(service, "memswap_limit", "want mem_limit beside it, which it contains")
	case given == -1:
		return protocol.UnlimitedSwap
	case given < memory:
		t.problem(service, "memswap_limit", "%d is less than the memory alone, %d bytes: it is memory and swap together", given, memory)
	}
	return uint64(given)
}

func (t *translation) same(service, key string, differ bool) {
	if differ {
		t.problem(service, key, "differs from deploy.resources.limits: give one of them")
	}
}

// restart reads deploy.restart_policy, or the older restart.
func (t *translation) restart(service string, s types.ServiceConfig) protocol.Restart {
	if s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		if s.Restart != "" {
			t.problem(service, "restart", "deploy.restart_policy is given too: give one of them")
		}
		p := s.Deploy.RestartPolicy
		policy, ok := map[string]protocol.RestartPolicy{
			"": protocol.RestartAlways, "any": protocol.RestartAlways,
			"on-failure": protocol.RestartOnFailure, "none": protocol.RestartNo,
		}[p.Condition]
		if !ok {
			t.problem(service, "deploy.restart_policy.condition", "%q: want any, on-failure or none", p.Condition)
		}
		r := protocol.Restart{Policy: policy}
		if p.MaxAttempts != nil {
			if policy != protocol.RestartOnFailure || *p.MaxAttempts > math.MaxUint32 {
				t.problem(service, "deploy.restart_policy.max_attempts", "only with the condition on-failure, and below 2^32")
				return r
			}
			r.Max = uint32(*p.MaxAttempts)
		}
		return r
	}
	word, limit, bounded := strings.Cut(s.Restart, ":")
	switch policy := protocol.RestartPolicy(word); {
	case word == "" || word == "no" && !bounded:
		return protocol.Restart{}
	case word == "on-failure":
		n, err := strconv.ParseUint(limit, 10, 32)
		if bounded && err != nil {
			t.problem(service, "restart", "%q: want on-failure:<count>", s.Restart)
		}
		return protocol.Restart{Policy: policy, Max: uint32(n)}
	case (policy == protocol.RestartAlways || policy == protocol.RestartUnlessStopped) && !bounded:
		return protocol.Restart{Policy: policy}
	}
	t.problem(service, "restart", "%q: want no, always, on-failure, on-failure:<count> or unless-stopped", s.Restart)
	return protocol.Restart{}
}

func (t *translation) dependencies(service string, s types.ServiceConfig) []protocol.Dependency {
	var all []protocol.Dependency
	for _, name := range slices.Sorted(maps.Keys(s.DependsOn)) {
		if _, runs := t.project.Services[name]; !runs && !s.DependsOn[name].Required {
			continue
		}
		condition := protocol.Condition(s.DependsOn[name].Condition)
		switch condition {
		case "", types.ServiceConditionStarted:
			condition = protocol.ServiceStarted
		case protocol.ServiceHealthy:
			on := t.project.Services[name]
			if _, probe := on.Extensions[healthKey]; !probe && on.HealthCheck != nil && !checked(on) {
				t.problem(service, "depends_on."+name, "service_healthy, but the healthcheck of %s is disabled, and it has no %s", name, healthKey)
			}
		case protocol.ServiceCompleted:
			if servicecheck.RunsForever(t.project.Services[name]) {
				t.problem(service, "depends_on."+name, "service_completed_successfully, but %s is restarted whenever it ends, and never completes: give it restart: on-failure or \"no\"", name)
			}
		default:
			t.problem(service, "depends_on."+name, "condition %q is not known", condition)
		}
		// The loader sets restart for links and for the owner of a network as well: names are
		// found anew without it, and the network's owner replaces its guests anyway.
		restart := s.DependsOn[name].Restart && !slices.Contains(linked(s), name) && s.NetworkMode != types.NetworkModeServicePrefix+name
		all = append(all, protocol.Dependency{Container: name, Condition: condition, Restart: restart})
	}
	return all
}

// hostGateway stands for the address of the node in extra_hosts.
const hostGateway = "host-gateway"

func (t *translation) hosts(service string, s types.ServiceConfig) []string {
	if len(s.ExtraHosts) == 0 {
		return nil
	}
	lines := s.ExtraHosts.AsList("=")
	slices.Sort(lines)
	for _, line := range lines {
		_, address, _ := strings.Cut(line, "=")
		if a, err := netip.ParseAddr(address); (err != nil || a.Zone() != "") && address != hostGateway {
			t.problem(service, "extra_hosts", "%q: want name=address with an IP address, without a zone, or %s", line, hostGateway)
		}
	}
	return lines
}

// millis returns a duration of a service's key in milliseconds, 0 where none is given.
func (t *translation) millis(service, key string, d *types.Duration) uint64 {
	if d == nil {
		return 0
	}
	if *d < 0 {
		t.problem(service, key, "%s: want a duration of 0 or more", d)
	}
	return servicecheck.Millis(time.Duration(*d))
}

// grace returns the time that a service has to stop. The spec's 0 means its default:
// none at all is the least that it can say.
func (t *translation) grace(service string, d *types.Duration) uint64 {
	if d != nil && *d == 0 {
		return 1
	}
	return t.millis(service, "stop_grace_period", d)
}

// nonEmpty returns a copy, or nil, so that an empty mapping leaves no trace.
func nonEmpty[M ~map[string]string](m M) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(map[string]string(m))
}
