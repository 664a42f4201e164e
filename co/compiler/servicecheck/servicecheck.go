// Package servicecheck judges values of a service that Linux or the node would refuse when the
// container is made, or that mean something else there. It is pure.
package servicecheck

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// MinMemory is the least limit of memory, in bytes. It is Docker's minimum: a program with less is
// killed before it begins.
const MinMemory = 6 << 20

// maxGrace bounds stop_grace_period; it is the bound of the timeouts of a Margo component.
const maxGrace = 168 * time.Hour

// maxHostname is how many bytes sethostname(2) takes: HOST_NAME_MAX of Linux.
const maxHostname = 64

// Say notes that the value of a service's key is wrong.
type Say func(key, format string, args ...any)

// Judge says what is wrong with a service.
func Judge(s types.ServiceConfig, say Say) {
	modes(s, say)
	sysctls(s, say)
	identity(s, say)
	name(s, say)
	names(s, say)
	limits(s, say)
	stopSignal(s.StopSignal, say)
	if s.WorkingDir != "" && !strings.HasPrefix(s.WorkingDir, "/") {
		say("working_dir", "%q: want an absolute path, such as /%s", s.WorkingDir, strings.TrimPrefix(s.WorkingDir, "./"))
	}
	if d := s.StopGracePeriod; d != nil && time.Duration(*d) > maxGrace {
		say("stop_grace_period", "%s: want at most %s", d, maxGrace)
	}
	if s.ShmSize < 0 {
		say("shm_size", "%d: want bytes, or a form such as 64m; without it, it is 64 MiB", s.ShmSize)
	}
}

var platform = regexp.MustCompile(`^linux/[a-z0-9_]+(/[a-z0-9_.]+)?$`)

// modes judges the keys that have a few words each.
func modes(s types.ServiceConfig, say Say) {
	if s.Deploy != nil && s.Deploy.Mode != "" && s.Deploy.Mode != "replicated" && s.Deploy.Mode != "global" {
		say("deploy.mode", "%q: want replicated or global, which are the same here: where an application runs is said by the deployment", s.Deploy.Mode)
	}
	switch policy, _, _ := strings.Cut(s.PullPolicy, "_"); policy {
	case "", "always", "missing", "if", "daily", "weekly", "every", "refresh":
	default:
		say("pull_policy", "%q: images come from a registry: push it, and leave this out", s.PullPolicy)
	}
	if s.UserNSMode != "" && s.UserNSMode != "host" {
		say("userns_mode", "%q: containers are in the user namespace of the node: want host, or leave it out", s.UserNSMode)
	}
	if s.Platform != "" && !platform.MatchString(s.Platform) {
		say("platform", "%q: want linux/<architecture>, such as linux/arm64", s.Platform)
	}
}

// ofIPC are the parameters of the kernel that each IPC namespace has of its own, as runc
// takes them, beside fs.mqueue.
var ofIPC = strings.Fields("kernel.msgmax kernel.msgmnb kernel.msgmni kernel.sem kernel.shmall kernel.shmmax kernel.shmmni kernel.shm_rmid_forced")

func sysctls(s types.ServiceConfig, say Say) {
	for _, name := range slices.Sorted(maps.Keys(s.Sysctls)) {
		key, dotted := "sysctls."+name, name
		if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' { // the other form of sysctl(8)
			dotted = strings.NewReplacer("/", ".", ".", "/").Replace(name)
		}
		switch {
		case strings.TrimSpace(s.Sysctls[name]) == "":
			say(key, "it has no value, with which nothing is set: write one, as in %s: 1, or leave it out", name)
		case strings.HasPrefix(dotted, "net."):
			if s.NetworkMode == "host" {
				say(key, "network_mode is host, whose network belongs to the node: set it there with sysctl(8), or use a network of the deployment")
			}
		case slices.Contains(ofIPC, dotted), strings.HasPrefix(dotted, "fs.mqueue."):
			if s.Ipc == "host" {
				say(key, "ipc is host, whose System V IPC and queues belong to the node: set it there with sysctl(8), or leave ipc out")
			}
		case dotted == "kernel.hostname", dotted == "kernel.domainname":
			say(key, "the name of the container is not set by a sysctl: write it as hostname of the service")
		default:
			say(key, "the container has no such parameter of its own: it can set net.*, fs.mqueue.* and %s; set others on the node with sysctl(8)", strings.Join(ofIPC, ", "))
		}
	}
}

var (
	label  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)
	number = regexp.MustCompile(`^[-+]?[0-9]+$`)
)

// identity judges hostname, user and group_add. An underscore is no letter of RFC 1123, but
// Linux takes it, and files use it as Docker does.
func identity(s types.ServiceConfig, say Say) {
	invalid := func(l string) bool { return !label.MatchString(l) }
	switch {
	case s.DomainName == "":
	case slices.ContainsFunc(strings.Split(s.DomainName, "."), invalid) || len(s.DomainName) > maxHostname:
		say("domainname", "%q: want labels of letters, digits and - inside, with dots between them, %d bytes at most", s.DomainName, maxHostname)
	case s.NetworkMode == "host" && s.Hostname == "":
		say("domainname", "the service has the name of the node: give it a hostname, or leave this out")
	}
	switch {
	case s.Hostname == "":
	case slices.ContainsFunc(strings.Split(s.Hostname, "."), invalid):
		say("hostname", "%q: want labels of letters, digits and - inside, 1 to 63 each, with dots between them (RFC 1123)", s.Hostname)
	case len(s.Hostname) > maxHostname:
		say("hostname", "%q has %d bytes, Linux takes %d: shorten it", s.Hostname, len(s.Hostname), maxHostname)
	}
	const want = "want a name, or a number from 0 to 2147483647"
	if user, group, both := strings.Cut(s.User, ":"); s.User != "" && (!named(user) || both && !named(group)) {
		say("user", "%q: %s, and with a group <user>:<group>", s.User, want)
	}
	for _, group := range s.GroupAdd {
		if !named(group) {
			say("group_add", "%q: %s", group, want)
		}
	}
}

// maxName is how many bytes a name in the DNS has at most (RFC 1035, section 2.3.4).
const maxName = 253

var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// names judges the names that stand in the hosts files of containers, where a space ends a
// name and the end of a line an entry.
func names(s types.ServiceConfig, say Say) {
	judge := func(key, name string) {
		if len(name) > maxName || !hostName.MatchString(name) {
			say(key, "%q: want a name of letters, digits, dots, _ and -, %d bytes at most", name, maxName)
		} else if slices.ContainsFunc(strings.Split(name, "."), func(l string) bool { return len(l) > maxLabel }) {
			say(key, "%q: want %d bytes at most between two dots, which is what the DNS takes", name, maxLabel)
		}
	}
	if s.ContainerName != "" {
		judge("container_name", s.ContainerName)
	}
	for _, network := range slices.Sorted(maps.Keys(s.Networks)) {
		if n := s.Networks[network]; n != nil {
			for _, alias := range n.Aliases {
				judge("networks."+network+".aliases", alias)
			}
		}
	}
	for _, link := range s.Links {
		if _, alias, given := strings.Cut(link, ":"); given {
			judge("links", alias)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.ExtraHosts)) {
		judge("extra_hosts", name)
	}
}

// named reports whether a text can be the name or number of a user or group.
func named(text string) bool {
	if text == "" || strings.ContainsAny(text, " \t\r\n\x00:") {
		return false
	}
	if !number.MatchString(text) {
		return true
	}
	_, err := strconv.ParseUint(text, 10, 31)
	return err == nil
}

var processors = regexp.MustCompile(`^[0-9]+(-[0-9]+)?( *, *[0-9]+(-[0-9]+)?)*$`)

// minCPUs is the least share of a processor that can be asked for, as with Docker; the kernel gives
// a millisecond of each 100 at least.
const minCPUs = 0.01

// ascending reports whether each range of processors ends at or above its beginning.
func ascending(set string) bool {
	for part := range strings.SplitSeq(set, ",") {
		first, last, found := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if err != nil || found && (errTo != nil || to < from) {
			return false
		}
	}
	return true
}

func limits(s types.ServiceConfig, say Say) {
	if s.CPUShares != 0 && (s.CPUShares < 2 || s.CPUShares > 262144) {
		say("cpu_shares", "%d: want 2 to 262144; 1024 is what others have", s.CPUShares)
	}
	if s.CPUSet != "" && (!processors.MatchString(s.CPUSet) || !ascending(s.CPUSet)) {
		say("cpuset", "%q: want the numbers of processors, such as 0-3,5", s.CPUSet)
	}
	judge := func(cores, bytes, processes string, cpus float32, memory types.UnitBytes, pids int64) {
		if cpus < 0 || cpus > 0 && cpus < minCPUs {
			say(cores, "%g: want a number of cores such as 0.5, %g at least, or leave it out for no limit", cpus, minCPUs)
		}
		if memory < 0 || memory > 0 && memory < MinMemory {
			say(bytes, "%d bytes: want 6m (6 MiB) or more, or leave it out for no limit", memory)
		}
		if pids < -1 {
			say(processes, "%d: want a number, or -1 for no limit", pids)
		}
	}
	judge("cpus", "mem_limit", "pids_limit", s.CPUS, s.MemLimit, s.PidsLimit)
	if s.Deploy != nil && s.Deploy.Resources.Limits != nil {
		l := s.Deploy.Resources.Limits
		const at = "deploy.resources.limits"
		judge(at+".cpus", at+".memory", at+".pids", l.NanoCPUs.Value(), l.MemoryBytes, l.Pids)
	}
}

// RunsForever reports whether a service is started again when it exits with 0, so that it
// never completes.
func RunsForever(s types.ServiceConfig) bool {
	if s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		c := s.Deploy.RestartPolicy.Condition
		return c == "" || c == "any"
	}
	return s.Restart == types.RestartPolicyAlways || s.Restart == types.RestartPolicyUnlessStopped
}
