package compiler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

// What is around the processes of a container, and what they may do.
func TestSurroundings(t *testing.T) {
	t.Parallel()
	const compose = `
services:
  vpn:
    image: vpn
    hostname: tunnel
    init: true
    tty: true
    stdin_open: true
    shm_size: 128m
    ulimits: {nofile: {soft: 1024, hard: 4096}, memlock: -1, nproc: 7}
    pid: host
    ipc: host
    userns_mode: host
    platform: linux/arm64/v8
    deploy: {mode: global, resources: {reservations: {cpus: "0.5", memory: 32m}}}
    security_opt: [no-new-privileges, "seccomp:./p.json", "apparmor=mine", "label:disable"]
    dns: [10.0.0.1, "fd00::1"]
    dns_search: plant.example
    dns_opt: [ndots:2]
    extra_hosts: [node:host-gateway]
  inside:
    image: inside
    network_mode: service:vpn
    security_opt: [seccomp:unconfined, apparmor:unconfined, "no-new-privileges:false"]
    secrets: [file, {source: variable, target: pass, mode: 0400}, {source: file, target: /etc/pass}]
    depends_on: {vpn: {condition: service_started, restart: true}}
  after:
    image: after
    depends_on: {vpn: {condition: service_started, restart: true}}
    healthcheck: {disable: false}
    mem_reservation: 16m
secrets:
  file: {file: ./secret.txt}
  variable: {environment: PASSWORD}
`
	files := map[string]string{"p.json": `{"defaultAction":"SCMP_ACT_ALLOW"}`, "secret.txt": "hidden\n", ".env": "PASSWORD=x\n"}
	containers, warnings := imported(t, compose, files)
	secret := func(target, content string, mode uint32) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountFile, Target: target, ReadOnly: true, Content: []byte(content), Mode: mode}
	}
	want := []protocol.Container{
		{
			Name: "vpn", Image: "vpn", Hostname: "tunnel", Init: true, TTY: true, Stdin: true, ShmBytes: 128 << 20,
			Ulimits:        []protocol.Ulimit{{Name: "memlock", Soft: -1, Hard: -1}, {Name: "nofile", Soft: 1024, Hard: 4096}, {Name: "nproc", Soft: 7, Hard: 7}},
			HostNamespaces: []protocol.HostNamespace{protocol.HostPID, protocol.HostIPC}, Platform: "linux/arm64/v8",
			Reservations:    protocol.Limits{NanoCPUs: 5e8, MemoryBytes: 32 << 20},
			NoNewPrivileges: true, Seccomp: files["p.json"], AppArmor: "mine",
			DNS: []string{"10.0.0.1", "fd00::1"}, DNSSearch: []string{"plant.example"}, DNSOptions: []string{"ndots:2"},
			ExtraHosts: []string{"node=host-gateway"},
		},
		{
			Name: "after", Image: "after", Reservations: protocol.Limits{MemoryBytes: 16 << 20},
			DependsOn: []protocol.Dependency{{Container: "vpn", Condition: protocol.ServiceStarted, Restart: true}},
		},
		{
			Name: "inside", Image: "inside", NetworkOf: "vpn", Hostname: "tunnel", Seccomp: protocol.SeccompUnconfined,
			Mounts:    []protocol.Mount{secret("/etc/pass", "hidden\n", 0), secret("/run/secrets/file", "hidden\n", 0), secret("/run/secrets/pass", "x", 0o400)},
			DependsOn: []protocol.Dependency{{Container: "vpn", Condition: protocol.ServiceStarted}},
		},
	}
	if diff := cmp.Diff(want, containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		`services.vpn.security_opt: "label:disable" changes nothing`, "services.inside.secrets: file: it stands readable in the deployment",
		"services.after.healthcheck: it says nothing",
	} {
		if !strings.Contains(warnings, want) {
			t.Errorf("the warnings do not say %q:\n%s", want, warnings)
		}
	}
}

// What compose.yaml includes and extends in other files of the archive is read with the
// paths of those, and what is wrong there is reported with its file and line.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"db/db.yaml": `
include: [{path: more.yaml}]
services:
  db:
    image: db
    env_file: db.env
    volumes: ["./init.sql:/init.sql:ro", "data:/data"]
    configs: [c]
volumes: {data: {}}
configs: {c: {file: ./init.sql}}
`,
		"db/more.yaml":     "services:\n  more: {image: more, extends: {file: ../base.yaml, service: base}}\n",
		"db/db.env":        "A=1\n",
		"db/init.sql":      "SELECT 1;\n",
		"base.yaml":        "services:\n  first: {image: base, environment: {FROM: first, TAG: '${TAG}'}}\n  base:\n    extends: first\n    environment: [FROM=base]\n    volumes: ['./base.conf:/base.conf:ro', '/srv:/old']\n",
		"base.conf":        "x\n",
		"broken/bad.yaml":  "services:\n  bad:\n    image: bad\n    build: .\n",
		"broken/port.yaml": "services:\n  port:\n    image: port\n    ports: ['80-90:80']\n",
	}
	const compose = `
include: [db/db.yaml]
services:
  web:
    extends: {file: base.yaml, service: base}
    environment: {OWN: "1"}
    volumes: [/srv/new:/old]
`
	containers, err := compileOne(t, compose, files, map[string]string{"TAG": "t"})
	if err != nil {
		t.Fatal(err)
	}
	file := func(target, content string) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountFile, Target: target, ReadOnly: true, Content: []byte(content)}
	}
	bind := func(source, target string) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountBind, Source: source, Target: target}
	}
	want := []protocol.Container{
		{Name: "db", Image: "db", Env: []string{"A=1"}, Mounts: []protocol.Mount{
			file("/c", "SELECT 1;\n"), {Kind: protocol.MountVolume, Source: "web_data", Target: "/data"}, file("/init.sql", "SELECT 1;\n"),
		}},
		{Name: "more", Image: "more", Env: []string{"FROM=base", "TAG=t"}, Mounts: []protocol.Mount{file("/base.conf", "x\n"), bind("/srv", "/old")}},
		{Name: "web", Image: "base", Env: []string{"FROM=base", "OWN=1", "TAG=t"}, Mounts: []protocol.Mount{file("/base.conf", "x\n"), bind("/srv/new", "/old")}},
	}
	for i := range containers {
		containers[i].Image, _, _ = strings.Cut(containers[i].Image, "@")
		containers[i].Image = containers[i].Image[strings.LastIndex(containers[i].Image, "/")+1:]
	}
	if diff := cmp.Diff(want, containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	for compose, want := range map[string]string{
		"include: [broken/bad.yaml]":                                                       "broken/bad.yaml: line 4: services.bad.build: images are not built",
		"include: [broken/port.yaml]":                                                      "broken/port.yaml: line 4: services.port.ports: port \"80-90\" of the node",
		"services: {port: {extends: {file: broken/port.yaml, service: port}}}":             "broken/port.yaml: line 4: services.port.ports: port \"80-90\" of the node",
		"services: {a: {extends: {file: base.yaml, service: none}}}":                       "line 1: services.a.extends: base.yaml has no service none",
		"services: {db: {image: other}}\ninclude: [db/db.yaml]":                            "line 2: include: db/db.yaml: services.db is defined in both files",
		"services: {a: {image: a, extends: b}, b: {image: b, extends: a}}":                 "extends itself",
		"services: {a: {image: '${A:?x}'}}\ninclude: [{path: [db/db.yaml, db/none.yaml]}]": "line 2: include: the archive has no file \"db/none.yaml\"",
	} {
		if _, err := compileOne(t, compose, files, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", compose, err, want)
		}
	}
}
