package semantics

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/protocol"
)

// A scenario shows what keys do. Without any one of them its check fails.
type scenario struct {
	name    string
	keys    []string // as paths in compose
	compose string
	files   map[string]string
	check   check
}

// a returns a file with the service "a", which has these lines of YAML.
func a(lines ...string) string { return service("a", lines...) }

func service(name string, lines ...string) string {
	return "services:\n" + entry(name, lines...)
}

// entry returns a service with the image tools, unless a line names another.
func entry(name string, lines ...string) string {
	all := "  " + name + ":\n"
	if !strings.Contains(strings.Join(lines, "\n"), "image:") {
		all += "    image: tools\n"
	}
	for _, line := range lines {
		all += "    " + line + "\n"
	}
	return all
}

// of returns the paths of keys of the service "a".
func of(keys ...string) []string {
	for i := range keys {
		keys[i] = "services.a." + keys[i]
	}
	return keys
}

// outside returns an address of this machine that is not a loopback.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !strings.HasPrefix(a.String(), "10.") {
			return p.Addr().String()
		}
	}
	t.Fatalf("this machine has no address but loopbacks: %v", addrs)
	return ""
}

// scenarios are run all at once, on one node.
func scenarios(t *testing.T) []scenario {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the node"), 0o644); err != nil {
		t.Fatal(err)
	}
	list := append(processScenarios(), tuningScenarios()...)
	list = append(list, deviceScenarios()...)
	list = append(list, cornerScenarios()...)
	list = append(list, fileScenarios(dir)...)
	list = append(list, networkScenarios(t)...)
	list = append(list, healthScenarios()...)
	return append(list, projectScenarios()...)
}

func processScenarios() []scenario {
	return []scenario{
		{"image", of("image"), "services: {a: {image: volumes}}", nil, says("seed", "cat", "/data/seed")},
		{"command", of("command"), a("command: [serve, '80', by command]"), nil, says("by command", "get", "http://127.0.0.1/")},
		{"entrypoint", of("entrypoint"), a("entrypoint: [/toolbox, serve, '80', by entrypoint]"), nil, says("by entrypoint", "get", "http://127.0.0.1/")},
		{"entrypoint, empty", of("entrypoint"), a("image: spoken", "entrypoint: []", "command: [/toolbox, wait, by command]"), nil, runs("/toolbox", "wait", "by command")},
		{"command, empty", of("command"), a("image: spoken", "command: []"), nil, runs("/toolbox", "wait")},
		{"environment", of("environment"), a("environment: {COLOUR: blue}"), nil, says("COLOUR=blue", "env", "COLOUR")},
		{
			"env_file", of("env_file", "env_file[0].path", "env_file[1].required"), a("env_file: [{path: a.env}, {path: none.env, required: false}]"),
			map[string]string{"a.env": "COLOUR=green\n"},
			says("COLOUR=green", "env", "COLOUR"),
		},
		{"working_dir", of("working_dir"), a("working_dir: /data"), nil, says("/data", "id")},
		{"user", of("user"), a("user: '1000:1001'"), nil, says("1000 1001", "id")},
		{"group_add", of("group_add"), a("group_add: ['4242']"), nil, says("4242", "cat", "/proc/1/status")},
		{"hostname", of("hostname"), a("hostname: teller"), nil, says("teller", "cat", "/etc/hostname")},
		{"init", of("init"), a("init: true"), nil, says("docker-init", "cat", "/proc/1/cmdline")},
		{"tty", of("tty"), a("tty: true", "command: [isatty, /out]"), nil, all(says("true", "cat", "/out"), logged("ready"))},
		{"stdin_open", of("stdin_open"), a("stdin_open: true", "command: [stdin, /out]"), nil, all(logged("ready"), says("open", "cat", "/out"))},
		{"privileged", of("privileged"), a("privileged: true"), nil, says("Seccomp:\t0", "cat", "/proc/1/status")},
		{"cap_add", of("cap_add"), a("user: '0'", "cap_drop: [ALL]", "cap_add: [NET_ADMIN]"), nil, says("CapEff:\t0000000000001000", "cat", "/proc/1/status")},
		{"cap_drop", of("cap_drop"), a("cap_drop: [ALL]"), nil, says("CapEff:\t0000000000000000", "cat", "/proc/1/status")},
		{"read_only", of("read_only"), a("read_only: true"), nil, fails("write", "/file", "x")},
		{"bind in the place of a mount of the runtime", of("volumes"), a("volumes: ['/sys/fs/cgroup:/sys/fs/cgroup:ro', '/proc:/dev/mqueue:ro']"), nil, says("Linux version", "cat", "/dev/mqueue/version")},
		{"sysctls", of("sysctls"), a("sysctls: {net.ipv4.ip_default_ttl: '77'}"), nil, says("77", "cat", "/proc/sys/net/ipv4/ip_default_ttl")},
		{"labels", of("labels"), a("labels: {example.org/line: '3'}"), nil, annotated("example.org/line", "3")},
		{"shm_size", of("shm_size"), a("shm_size: 1m"), nil, says("size=1024k", "cat", "/proc/mounts")},
		{
			"ulimits", of("ulimits", "ulimits.msgqueue", "ulimits.msgqueue.soft", "ulimits.msgqueue.hard"), a("ulimits: {msgqueue: {soft: 77, hard: 88}}"), nil,
			says("Max msgqueue size         77                   88", "cat", "/proc/1/limits"),
		},
		{"pid", of("pid"), a("pid: host"), nil, ofTheNode("pid")},
		{"ipc", of("ipc"), a("ipc: host"), nil, ofTheNode("ipc")},
		{"no-new-privileges", of("security_opt"), a("security_opt: ['no-new-privileges:true']"), nil, says("NoNewPrivs:\t1", "cat", "/proc/1/status")},
		{
			"seccomp", of("security_opt"), a("security_opt: ['seccomp:./profile.json']"),
			map[string]string{"profile.json": `{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [], "syscalls": [{"names": ["chmod", "fchmodat"], "action": "SCMP_ACT_ERRNO"}]}`},
			fails("chmod", "/data"),
		},
		{"seccomp unconfined", of("security_opt"), a("security_opt: ['seccomp=unconfined']"), nil, says("Seccomp:\t0", "cat", "/proc/1/status")},
		{"apparmor", of("security_opt"), a("security_opt: ['apparmor=no-such-profile']"), nil, failing(protocol.Incompatible, "no-such-profile")},
		{
			"apparmor of the archive", of("security_opt"), a("security_opt: ['apparmor:./profile']"),
			map[string]string{"profile": "include <tunables/global>\nprofile mine flags=(attach_disconnected,mediate_deleted) {\n  file,\n  signal,\n}\n"},
			underAppArmor,
		},
		{"platform", of("platform"), a("platform: linux/s390x"), nil, failing(protocol.Incompatible, "linux/s390x")},
		{"cpus", of("cpus"), a("cpus: 0.25"), nil, cgroup("cpu.max", "25000 100000", "cpu/cpu.cfs_quota_us", "25000")},
		{"mem_limit", of("mem_limit"), a("mem_limit: 64m"), nil, cgroup("memory.max", "67108864", "memory/memory.limit_in_bytes", "67108864")},
		{"memswap_limit", of("memswap_limit"), a("mem_limit: 64m", "memswap_limit: 96m"), nil, cgroup("memory.swap.max", "33554432", "memory/memory.memsw.limit_in_bytes", "100663296")},
		{"mem_reservation", of("mem_reservation"), a("mem_reservation: 32m"), nil, cgroup("memory.low", "33554432", "memory/memory.soft_limit_in_bytes", "33554432")},
		{"pids_limit", of("pids_limit"), a("pids_limit: 40"), nil, cgroup("pids.max", "40", "pids/pids.max", "40")},
		{
			"limits", of("deploy.resources.limits.cpus", "deploy.resources.limits.memory", "deploy.resources.limits.pids"),
			a("deploy: {resources: {limits: {cpus: '0.5', memory: 32m, pids: 30}}}"), nil, all(
				cgroup("cpu.max", "50000 100000", "cpu/cpu.cfs_quota_us", "50000"), cgroup("memory.max", "33554432", "memory/memory.limit_in_bytes", "33554432"),
				cgroup("pids.max", "30", "pids/pids.max", "30"),
			),
		},
		{
			"reserved memory", of("deploy.resources.reservations.memory"), a("deploy: {resources: {reservations: {memory: 16m}}}"), nil,
			cgroup("memory.low", "16777216", "memory/memory.soft_limit_in_bytes", "16777216"),
		},
		{"reserved processors", of("deploy.resources.reservations.cpus"), a("deploy: {resources: {reservations: {cpus: '5000'}}}"), nil, failing(protocol.Incompatible, "reserves 5000.0 processors")},
		{"stop_signal", of("stop_signal"), a("stop_signal: SIGUSR1", "command: [usr1]"), nil, all(logged("ready"), stopped(0))},
		{"stop_grace_period", of("stop_grace_period"), a("stop_grace_period: 1h", "command: [linger, '11']"), nil, all(logged("ready"), stopped(0))},
	}
}

func fileScenarios(dir string) []scenario {
	both := func(lines ...string) string { return a(lines...) + entry("b", lines...) }
	shared := func(d *deployed) error {
		if _, err := d.exec("a", "write", "/shared/file", "from a"); err != nil {
			return err
		}
		return saysIn("b", "from a", "cat", "/shared/file")(d)
	}
	ofBoth := []string{"services.a.volumes", "services.a.volumes[0].type", "services.a.volumes[0].source", "services.a.volumes[0].target", "volumes", "volumes.vo"}
	return []scenario{
		{"named volume", ofBoth, both("volumes: [{type: volume, source: vo, target: /shared}]") + "volumes: {vo: {}}\n", nil, shared},
		{"named volume, short", nil, both("volumes: ['vo:/shared']") + "volumes: {vo: {}}\n", nil, shared},
		{
			"read-only volume", of("volumes[0].read_only"), a("volumes: [{type: volume, source: vo, target: /data, read_only: true}]") + "volumes: {vo: {}}\n", nil,
			all(says("seed", "cat", "/data/seed"), fails("write", "/data/file", "x")),
		},
		{
			"nocopy", of("volumes[0].volume", "volumes[0].volume.nocopy"), a("volumes: [{type: volume, source: vo, target: /data, volume: {nocopy: true}}]") + "volumes: {vo: {}}\n", nil,
			all(writable("/data/file"), fails("cat", "/data/seed")),
		},
		{
			"subpath", of("volumes[0].volume", "volumes[0].volume.subpath"),
			a("volumes: [{type: volume, source: vo, target: /part, volume: {subpath: inner/part}}]", "depends_on: {b: {condition: service_completed_successfully}}") +
				entry("b", "command: [mkdir, /whole/inner/part]", "volumes: ['vo:/whole']") + entry("c", "volumes: ['vo:/whole']") + "volumes: {vo: {}}\n", nil,
			all(writable("/part/file"), saysIn("c", "written", "cat", "/whole/inner/part/file")),
		},
		{
			"subpath that is not there", nil, a("volumes: [{type: volume, source: vo, target: /part, volume: {subpath: none}}]") + "volumes: {vo: {}}\n", nil,
			failing(protocol.CreateFailed, "let a service that completes before this one starts make it"),
		},
		{"nocopy, short", nil, a("volumes: ['vo:/data:nocopy']") + "volumes: {vo: {}}\n", nil, all(writable("/data/file"), fails("cat", "/data/seed"))},
		{
			"driver_opts",
			[]string{"volumes.vo.driver_opts"},
			a("volumes: ['vo:/bound']") + "volumes: {vo: {driver_opts: {type: none, o: bind, device: " + dir + "}}}\n", nil, says("of the node", "cat", "/bound/file"),
		},
		{
			"volumes_from", of("volumes_from"), a("volumes_from: ['b:ro']") + entry("b", "volumes: ['vo:/data']") + "volumes: {vo: {}}\n", nil,
			all(func(d *deployed) error { _, err := d.exec("b", "write", "/data/file", "from b"); return err }, says("from b", "cat", "/data/file"), fails("write", "/data/file", "x")),
		},
		{"bind", of("volumes"), a("volumes: ['" + dir + ":/bound']"), nil, says("of the node", "cat", "/bound/file")},
		{"relative file", of("volumes"), a("volumes: ['./app.conf:/etc/app.conf:ro']"), map[string]string{"app.conf": "of the archive"}, says("of the archive", "cat", "/etc/app.conf")},
		{
			"relative directory, read-only", of("volumes"), a("volumes: ['./conf:/data:ro']"),
			map[string]string{"conf/x/app.conf": "of the archive"},
			all(says("of the archive", "cat", "/data/x/app.conf"), fails("cat", "/data/seed"), fails("write", "/data/file", "x")),
		},
		{
			"relative directory", of("volumes"), both("volumes: ['./conf:/shared']"),
			map[string]string{"conf/x/app.conf": "of the archive"},
			all(says("of the archive", "cat", "/shared/x/app.conf"), writable("/shared/file"), writable("/shared/x/app.conf")),
		},
		{
			"owner of a relative path", of("user", "volumes"), a("user: '1000:1001'", "volumes: ['./storage:/srv/storage', './conf:/srv/conf']"),
			map[string]string{"conf/app.conf": "of the archive"},
			all(writable("/srv/storage/file"), writable("/srv/conf/app.conf"), says("755 1000 1001", "stat", "/srv/storage")),
		},
		{"relative path", of("volumes"), both("volumes: ['./storage:/shared']"), nil, shared},
		{"tmpfs", of("tmpfs"), a("tmpfs: ['/scratch:size=1m']"), nil, says("/scratch tmpfs rw,nosuid,nodev,relatime,size=1024k", "cat", "/proc/mounts")},
		{
			"tmpfs of volumes", of("volumes[0].tmpfs", "volumes[0].tmpfs.size"), a("volumes: [{type: tmpfs, target: /scratch, tmpfs: {size: 1m}}]"), nil,
			says("/scratch tmpfs rw,nosuid,nodev,relatime,size=1024k", "cat", "/proc/mounts"),
		},
		{
			"mode of a tmpfs", of("volumes[0].tmpfs.mode"), a("volumes: [{type: tmpfs, target: /scratch, tmpfs: {mode: 0o750}}]"), nil,
			says("/scratch tmpfs rw,nosuid,nodev,relatime,mode=750", "cat", "/proc/mounts"),
		},
		{"owner of a tmpfs", of("tmpfs"), a("user: '1000:1001'", "tmpfs: ['/scratch:mode=0700,uid=1000,gid=1001']"), nil, all(writable("/scratch/file"), says("uid=1000,gid=1001", "cat", "/proc/mounts"))},
		{"options of a tmpfs", of("tmpfs"), a("tmpfs: ['/scratch:mode=0750,noexec']"), nil, says("/scratch tmpfs rw,nosuid,nodev,noexec,relatime,mode=750", "cat", "/proc/mounts")},
		{
			"variable of a config",
			[]string{"configs.c.environment"},
			a("configs: [c]") + "configs: {c: {environment: MOTD}}\n",
			map[string]string{".env": "MOTD=from a variable\n"},
			says("from a variable", "cat", "/c"),
		},
		{
			"configs", append(of("configs", "configs[0].source", "configs[0].target", "configs[0].mode"), "configs.c", "configs.c.file"),
			a("user: '1000'", "configs: [{source: c, target: /etc/c, mode: 0400}, {source: e}]") + "configs: {c: {file: ./c.txt}, e: {content: 'inline'}}\n",
			map[string]string{"c.txt": "x"},
			all(says("inline", "cat", "/e"), says("/etc/c", "cat", "/proc/mounts"), fails("cat", "/etc/c")),
		},
		{"content of a config", []string{"configs.c.content", "configs"}, a("configs: [c]") + "configs: {c: {content: 'text ${COMPOSE_PROJECT_NAME}'}}\n", nil, says("text app", "cat", "/c")},
		{
			"secrets", append(of("secrets", "secrets[0].source", "secrets[0].target"), "secrets", "secrets.f", "secrets.f.file", "secrets.e.environment"),
			a("secrets: [{source: f, target: pass}, e]") + "secrets: {f: {file: ./f.txt}, e: {environment: PASSWORD}}\n",
			map[string]string{"f.txt": "from the file", ".env": "PASSWORD=from a variable\n"},
			all(says("from the file", "cat", "/run/secrets/pass"), says("from a variable", "cat", "/run/secrets/e")),
		},
		{
			"mode of a secret", of("secrets[0].mode"), a("user: '1000'", "secrets: [{source: f, mode: 0400}]") + "secrets: {f: {file: ./f.txt}}\n",
			map[string]string{"f.txt": "x"},
			all(says("/run/secrets/f", "cat", "/proc/mounts"), fails("cat", "/run/secrets/f")),
		},
		{
			"devices", of("devices", "devices[0].source", "devices[0].target", "devices[0].permissions"), a("devices: [{source: /dev/kmsg, target: /dev/colony, permissions: r}]"), nil,
			all(says("", "chmod", "/dev/colony"), fails("write", "/dev/colony", "x")),
		},
	}
}

// writable wants a file of "a" to be written, and read again.
func writable(path string) check {
	return func(d *deployed) error {
		if _, err := d.exec("a", "write", path, "written"); err != nil {
			return err
		}
		return says("written", "cat", path)(d)
	}
}

// addressIn returns an address of a /24.
func addressIn(subnet netip.Prefix, last byte) string {
	a := subnet.Addr().As4()
	a[3] = last
	return netip.AddrFrom4(a).String()
}

func networkScenarios(t *testing.T) []scenario {
	t.Helper()
	tcp, udp, short := freeport.Everywhere(t), freeport.Everywhere(t), freeport.Everywhere(t)
	six, every, four, udp6 := freeport.Everywhere(t), freeport.Everywhere(t), freeport.Everywhere(t), freeport.Everywhere(t)
	web := func(lines ...string) string { return entry("web", append(lines, "command: [serve, '80', web]")...) }
	lookup := func(name string) check { return says("10.", "lookup", name) }
	vpn := entry("vpn", "command: [serve, '80', vpn]")
	subnet, other := freeport.Subnet(t), freeport.Subnet(t)
	for other == subnet {
		other = freeport.Subnet(t)
	}
	first, second, apartOf := addressIn(subnet, 10), addressIn(subnet, 11), addressIn(other, 10)
	return []scenario{
		{
			"ports", of("ports", "ports[0].target", "ports[0].published", "ports[0].host_ip"),
			a("command: [serve, '80', ported]", fmt.Sprintf("ports: [{target: 80, published: '%d', host_ip: 127.0.0.1}]", tcp)), nil,
			all(fetched("127.0.0.1", tcp, "ported"), closed(outside(t), tcp)),
		},
		{
			"ports on IPv6", of("ports[0].host_ip"), a("command: [serve, '80', six]", fmt.Sprintf("ports: [{target: 80, published: '%d', host_ip: '::1'}]", six)), nil,
			all(fetched("::1", six, "six"), closed("127.0.0.1", six)),
		},
		{"ports on all addresses", nil, a("command: [serve, '80', every]", fmt.Sprintf("ports: ['%d:80']", every)), nil, all(fetched("::1", every, "every"), fetched("127.0.0.1", every, "every"))},
		{
			"ports on all IPv4 addresses", of("ports[0].host_ip"), a("command: [serve, '80', four]", fmt.Sprintf("ports: [{target: 80, published: '%d', host_ip: 0.0.0.0}]", four)), nil,
			all(fetched("127.0.0.1", four, "four"), closed("::1", four)),
		},
		{"UDP port on IPv6", of("ports[0].host_ip"), a("command: [udp, '80']", fmt.Sprintf("ports: [{target: 80, published: '%d', protocol: udp, host_ip: '::1'}]", udp6)), nil, all(echoed("::1", udp6), silent("127.0.0.1", udp6))},
		{"ports, short", nil, a("command: [serve, '80', ported]", fmt.Sprintf("ports: ['%d:80']", short)), nil, fetched(outside(t), short, "ported")},
		{"port that the node chooses", of("ports"), a("command: [serve, '80', chosen]", "ports: ['80']"), nil, chosenPort("chosen")},
		{"scale", []string{"services.web.scale"}, a() + web("scale: 3"), nil, all(containers(4), answers("web", 3))},
		{"replicas", []string{"services.web.deploy.replicas"}, a("depends_on: [web]") + web("deploy: {replicas: 3}"), nil, all(containers(4), answers("web", 3))},
		{
			"shared alias",
			[]string{"services.b.networks.default.aliases"},
			a("networks: {default: {aliases: [all]}}") + entry("b", "networks: {default: {aliases: [all]}}"), nil,
			answers("all", 2),
		},
		{
			"separated networks",
			[]string{"services.back.networks", "networks.two"},
			a("networks: [one]") + entry("mid", "networks: [one, two]") + entry("back", "command: [serve, '80', back]", "networks: [two]") + "networks: {one: {}, two: {}}\n", nil,
			all(saysIn("mid", "back", "get", "http://back/"), says("10.", "lookup", "mid"), fails("lookup", "back"), apart("a", "back")),
		},
		{
			"internal",
			[]string{"networks.inner.internal"},
			a("networks: [inner]") + web("networks: [inner]") + "networks: {inner: {internal: true}}\n", nil,
			all(says("web", "get", "http://web/"), noWayOut),
		},
		{"UDP port", of("ports[0].protocol"), a("command: [udp, '80']", fmt.Sprintf("ports: [{target: 80, published: '%d', protocol: udp}]", udp)), nil, echoed("127.0.0.1", udp)},
		{"service names", nil, a() + web(), nil, all(says("web", "get", "http://web/"), lookup("web"), says("0 10.", "dig", "web", "1"))},
		{"container_name", []string{"services.web.container_name"}, a() + web("container_name: front"), nil, all(lookup("front"), says("0 10.", "dig", "front", "1"))},
		{
			"addresses",
			[]string{"services.a.networks.default.ipv4_address", "networks.default.ipam.config", "networks.default.ipam.config[0].subnet"},
			a("networks: {default: {ipv4_address: "+first+"}}") + web("depends_on: [a]") + "networks: {default: {ipam: {config: [{subnet: " + netip.PrefixFrom(subnet.Addr(), 16).Masked().String() + "}]}}}\n", nil,
			all(says(first, "cat", "/proc/net/fib_trie"), says("0 "+first, "dig", "a", "1"), says("0 "+second, "dig", "web", "1")),
		},
		{
			"addresses on networks apart",
			[]string{"services.a.networks.one.ipv4_address"},
			a("networks: {one: {ipv4_address: "+apartOf+"}}") + web("networks: [two]") + "networks: {one: {ipam: {config: [{subnet: " + other.String() + "}]}}, two: {}}\n", nil,
			says(apartOf, "cat", "/proc/net/fib_trie"),
		},
		{"aliases", []string{"services.web.networks.default.aliases"}, a() + web("networks: {default: {aliases: [other]}}"), nil, all(lookup("other"), says("0 10.", "dig", "other", "1"))},
		{"links", of("links"), a("links: ['web:linked']") + web(), nil, lookup("linked")},
		{"host network", of("network_mode"), a("network_mode: host"), nil, ofTheNode("net")},
		{"no network", of("network_mode"), a("network_mode: none"), nil, all(says("lo", "cat", "/proc/net/dev"), fails("lookup", "a"))},
		{
			"network of a service", of("network_mode"), a("network_mode: service:vpn") + vpn + web(), nil,
			all(says("vpn", "get", "http://127.0.0.1/"), says("web", "get", "http://web/"), says("0 10.", "dig", "web", "1")),
		},
		{"dns", of("dns"), a("dns: 192.0.2.1"), nil, says("nameserver 127.0.0.11\nnameserver 192.0.2.1", "cat", "/etc/resolv.conf")},
		{"dns_search", of("dns_search"), a("dns_search: [plant.example]"), nil, says("search plant.example", "cat", "/etc/resolv.conf")},
		{"dns_opt", of("dns_opt"), a("dns_opt: [use-vc]"), nil, says("use-vc", "cat", "/etc/resolv.conf")},
		{"extra_hosts", of("extra_hosts"), a("extra_hosts: ['printer=10.1.2.3', 'node=host-gateway']"), nil, all(says("10.1.2.3", "lookup", "printer"), lookup("node"))},
	}
}

// With starting a container is starting until it ends, however long it takes to.
const starting = "healthcheck: {test: [CMD, /toolbox, cat, /none], interval: 1h}"

func healthScenarios() []scenario {
	bad, healthy := "test: [CMD, /toolbox, cat, /none]", "test: [CMD, /toolbox, append, /count]"
	running := func(s engine.Status) bool { return s.State == engine.Running }
	check := func(lines ...string) string { return a("healthcheck: {" + strings.Join(lines, ", ") + "}") }
	return []scenario{
		{"test", of("healthcheck", "healthcheck.test"), check(bad, "interval: 100ms", "retries: 1"), nil, failing(protocol.ProbeFailed, "a is not healthy")},
		{"test by a shell", of("healthcheck"), check("test: /toolbox cat /none", "interval: 100ms", "retries: 1"), nil, failing(protocol.ProbeFailed, "a is not healthy")},
		{"interval", of("healthcheck.interval"), check(healthy, "interval: 100ms"), nil, lines("/count", 5)},
		{"timeout", of("healthcheck.timeout"), check("test: [CMD, /toolbox, hang]", "interval: 100ms", "retries: 1", "timeout: 500ms"), nil, failing(protocol.ProbeFailed, "a is not healthy")},
		{"retries", of("healthcheck.retries"), check("test: [CMD, /toolbox, flaky, /count, '5']", "interval: 100ms", "retries: 1000"), nil, all(installed, lines("/count", 5))},
		{
			"start period", of("healthcheck.start_period"),
			check("test: [CMD, /toolbox, flaky, /count, '5']", "interval: 100ms", "retries: 1", "start_period: 1h"), nil, all(installed, lines("/count", 5)),
		},
		{
			"start interval", of("healthcheck.start_interval"),
			check("test: [CMD, /toolbox, flaky, /count, '40']", "interval: 1h", "retries: 1", "start_period: 1h", "start_interval: 100ms"), nil, all(installed, lines("/count", 40)),
		},
		{"disable", of("healthcheck.disable"), check(bad, "interval: 100ms", "retries: 1", "disable: true"), nil, all(installed, status("running", running))},
		{"check of the image", nil, a("depends_on: {b: {condition: service_healthy}}") + entry("b", "image: checked"), nil, all(installed, saysIn("b", "line", "cat", "/count"))},
		{"check of the image that fails", []string{"services.a.depends_on.b.condition"}, a("depends_on: {b: {condition: service_healthy}}") + entry("b", "image: sick"), nil, failing(protocol.ProbeFailed, "b is not healthy")},
		{
			"check of the image with other times", of("healthcheck", "healthcheck.interval"), a("image: checked", "healthcheck: {interval: 100ms}"), nil,
			all(installed, lines("/count", 50)),
		},
		{"x-colony-health", of("x-colony-health"), a("command: [serve, '80', x]", "x-colony-health: {http: /, port: 80, interval: 1s}"), nil, all(installed, health("healthy"))},
		{
			"depends_on", of("depends_on", "depends_on.b", "depends_on.b.condition"), a("depends_on: {b: {condition: service_completed_successfully}}") + entry("b", "command: [exit, '0', done]"), nil,
			all(installed, after),
		},
		{
			"not required", of("depends_on.b.required"), a("depends_on: {b: {condition: service_started, required: false}}") + entry("b", "profiles: [other]"), nil,
			all(installed, containers(1)),
		},
		{"restart", of("restart"), a("restart: always", "command: [exit, '0', done]"), nil, restarted(2)},
		{
			"restart policy", of("deploy.restart_policy.condition"), a("deploy: {restart_policy: {condition: none}}", "command: [exit, '1', done]", starting), nil,
			failing(protocol.StartFailed, "exited with 1 while starting"),
		},
		{"out of memory", nil, a("mem_limit: 32m", "command: [eat, '134217728']", starting), nil, failing(protocol.StartFailed, "used up its memory limit of 32 MiB: the last words")},
		{
			"attempts", of("deploy.restart_policy", "deploy.restart_policy.max_attempts"), a("deploy: {restart_policy: {condition: on-failure, max_attempts: 1}}", "command: [exit, '1', done]"), nil,
			failing(protocol.CrashLoop, "its restart policy allows no further start"),
		},
	}
}

func projectScenarios() []scenario {
	const other = "services:\n  base: {image: tools, environment: {COLOUR: based}}\n"
	return []scenario{
		{"profiles", []string{"services.b.profiles"}, a() + entry("b", "profiles: [other]"), nil, containers(1)},
		{"profiles, chosen", nil, a() + entry("b", "profiles: [other]"), map[string]string{".env": "COMPOSE_PROFILES=other\n"}, containers(2)},
		{"extends", of("extends", "extends.service"), a("extends: {service: base}") + entry("base", "environment: {COLOUR: based}"), nil, says("COLOUR=based", "env", "COLOUR")},
		{"extends of a file", of("extends.file"), a("extends: {file: other.yaml, service: base}"), map[string]string{"other.yaml": other}, says("COLOUR=based", "env", "COLOUR")},
		{"include", []string{"include", "include[0].path"}, "include: [{path: other.yaml}]\n" + a(), map[string]string{"other.yaml": other}, saysIn("base", "COLOUR=based", "env", "COLOUR")},
		{
			"variables of include",
			[]string{"include[0].env_file", "include[0].project_directory"},
			"include: [{path: other.yaml, env_file: vars, project_directory: sub}]\n" + a(),
			map[string]string{"other.yaml": "services:\n  base: {image: tools, environment: {COLOUR: '${C:-none}'}, env_file: own.env}\n", "vars": "C=included\n", "sub/own.env": "SHAPE=round\n"},
			all(saysIn("base", "COLOUR=included", "env", "COLOUR"), saysIn("base", "SHAPE=round", "env", "SHAPE")),
		},
	}
}
