package compiler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

// A service with every supported key becomes what docs/compose.md says.
func TestTranslateEveryKey(t *testing.T) {
	t.Parallel()
	const compose = `
name: ignored
version: "3"
x-common: &common
  restart: unless-stopped
  cap_drop: [ALL]
services:
  web:
    <<: *common
    image: r.example/web:${TAG:-1}
    entrypoint: /bin/web --name "two words"
    command: [serve, "$PORT"]
    environment:
      - PORT
      - GREETING=${GREETING}
      - UNSET
      - DOLLAR=$$5
    env_file: [a.env, {path: ./missing.env, required: false}]
    working_dir: /srv
    user: "1000:1000"
    hostname: front
    container_name: webby
    ports:
      - "${PORT}:8080"
      - "127.0.0.1:9000-9001:9000-9001/udp"
      - {target: 81, published: "8181", host_ip: 0.0.0.0, protocol: tcp, mode: host}
    volumes:
      - data:/data
      - /srv/x/:/x:ro
      - {type: tmpfs, target: /cache, tmpfs: {size: 1m}}
      - {type: volume, source: data, target: /ro, read_only: true}
    tmpfs: [/run, "/tmp:size=64k,ro"]
    configs:
      - plain
      - {source: inline, target: /etc/inline.conf, mode: 0400}
    devices: ["/dev/ttyUSB0:/dev/tty0:rw", /dev/null]
    cpus: 0.1
    mem_limit: 64m
    pids_limit: 50
    healthcheck:
      test: curl -f http://localhost
      interval: 1m30s
      timeout: 500ms
      retries: 5
      start_period: 2s
      start_interval: 250ms
    depends_on:
      db: {condition: service_healthy}
      init: {condition: service_completed_successfully}
      cache: {condition: service_started}
    networks: {default: {aliases: [www]}}
    cap_add: [net_admin, CAP_SYS_TIME]
    privileged: true
    read_only: true
    stop_signal: SIGINT
    stop_grace_period: 20s
    labels: {a: "1"}
    extra_hosts: ["broker=10.0.0.1", "six:::1"]
    sysctls: [net.core.somaxconn=1024]
    group_add: [dialout, "20"]
  db:
    image: db
    deploy:
      replicas: 1
      resources: {limits: {cpus: "1.5", memory: 1g, pids: 10}}
      restart_policy: {condition: on-failure, max_attempts: 3}
    healthcheck: {test: [CMD, pg_isready]}
  init: {image: init, restart: "on-failure:2"}
  cache:
    image: cache
    restart: always
    x-colony-health: {http: /health, port: "${HEALTH}", interval: 5s, retries: 2}
  alone:
    image: i
    stop_grace_period: 0s
    environment: {DATE: 2020-01-01, N: 1}
    network_mode: host
    healthcheck: {disable: true}
volumes: {data: }
networks: {default: {driver: bridge}}
configs:
  plain: {file: ./conf/plain.txt}
  inline: {content: "port=${PORT}"}
`
	files := map[string]string{"a.env": "FROM_FILE=${GREETING} there\nGREETING=file\n", "conf/plain.txt": "plain ${PORT}"}
	got, err := compileOne(t, compose, files, map[string]string{"PORT": "8088", "GREETING": "Hello", "HEALTH": "8080"})
	if err != nil {
		t.Fatal(err)
	}
	at := "@sha256:" + imageDigest
	want := []protocol.Container{
		{Name: "alone", Image: "i" + at, Env: []string{"DATE=2020-01-01", "N=1"}, Network: protocol.NetworkHost, StopTimeoutMillis: 1},
		{
			Name: "cache", Image: "cache" + at, Restart: protocol.Restart{Policy: protocol.RestartAlways},
			Health: &protocol.Health{HTTP: "/health", Port: 8080, IntervalMillis: 5000, Retries: 2},
		},
		{
			Name: "db", Image: "db" + at, Limits: protocol.Limits{NanoCPUs: 1_500_000_000, MemoryBytes: 1 << 30, Pids: 10},
			Restart: protocol.Restart{Policy: protocol.RestartOnFailure, Max: 3},
			Health:  &protocol.Health{Command: []string{"pg_isready"}},
		},
		{Name: "init", Image: "init" + at, Restart: protocol.Restart{Policy: protocol.RestartOnFailure, Max: 2}},
		{
			Name: "web", Image: "r.example/web:1" + at, Entrypoint: []string{"/bin/web", "--name", "two words"}, Command: []string{"serve", "8088"},
			Env:        []string{"DOLLAR=$5", "FROM_FILE=Hello there", "GREETING=Hello", "PORT=8088"},
			WorkingDir: "/srv", User: "1000:1000", Hostname: "front", Aliases: []string{"webby", "www"},
			Ports: []protocol.Port{
				{Container: 8080, Host: 8088},
				{Container: 81, Host: 8181},
				{Container: 9000, Host: 9000, HostIP: "127.0.0.1", Protocol: "udp"},
				{Container: 9001, Host: 9001, HostIP: "127.0.0.1", Protocol: "udp"},
			},
			Mounts: []protocol.Mount{
				{Kind: protocol.MountTmpfs, Target: "/cache", Size: 1 << 20},
				{Kind: protocol.MountVolume, Target: "/data", Source: "web_data"},
				{Kind: protocol.MountFile, Target: "/etc/inline.conf", ReadOnly: true, Content: []byte("port=8088"), Mode: 0o400},
				{Kind: protocol.MountFile, Target: "/plain", ReadOnly: true, Content: []byte("plain ${PORT}")},
				{Kind: protocol.MountVolume, Target: "/ro", Source: "web_data", ReadOnly: true},
				{Kind: protocol.MountTmpfs, Target: "/run"},
				{Kind: protocol.MountTmpfs, Target: "/tmp", Size: 64 << 10, ReadOnly: true},
				{Kind: protocol.MountBind, Target: "/x", Source: "/srv/x", ReadOnly: true},
			},
			Devices: []protocol.Device{{Host: "/dev/ttyUSB0", Container: "/dev/tty0", Permissions: "rw"}, {Host: "/dev/null", Container: "/dev/null"}},
			Limits:  protocol.Limits{NanoCPUs: 100_000_000, MemoryBytes: 64 << 20, Pids: 50},
			Restart: protocol.Restart{Policy: protocol.RestartUnlessStopped},
			Health: &protocol.Health{
				Command: []string{"/bin/sh", "-c", "curl -f http://localhost"}, IntervalMillis: 90_000, TimeoutMillis: 500,
				StartPeriodMillis: 2000, StartIntervalMillis: 250, Retries: 5,
			},
			DependsOn: []protocol.Dependency{{Container: "cache"}, {Container: "db", Condition: protocol.ServiceHealthy}, {Container: "init", Condition: protocol.ServiceCompleted}},
			CapAdd:    []string{"NET_ADMIN", "SYS_TIME"}, CapDrop: []string{"ALL"}, Privileged: true, ReadOnly: true,
			StopSignal: "SIGINT", StopTimeoutMillis: 20_000, Labels: map[string]string{"a": "1"},
			ExtraHosts: []string{"broker=10.0.0.1", "six=::1"}, Sysctls: map[string]string{"net.core.somaxconn": "1024"}, GroupAdd: []string{"dialout", "20"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}

func TestTranslateRefuses(t *testing.T) {
	t.Parallel()
	for service, want := range map[string]string{
		// Keys.
		"build: .":                                 "line 4: services.web.build: images are not built on nodes",
		"secrets: [a]":                             "line 4: services.web.secrets: secrets are not part of Margo's Compose archives",
		"ulimits: {nofile: 1}":                     "line 4: services.web.ulimits: Colony does not support this key",
		"imag: x":                                  "line 4: services.web.imag: Colony does not support this key",
		"x-colony-heath: {port: 1}":                "services.web.x-colony-heath: Colony has no such extension",
		"extends: {file: /etc/passwd}":             "services.web.extends.file: an archive has one Compose file",
		"deploy: {mode: global}":                   `services.web.deploy.mode: "global": want replicated`,
		"deploy: {resources: {limits: {gpus: 1}}}": "services.web.deploy.resources.limits.gpus: Colony does not support this key; supported here: cpus, memory, pids",
		"volumes: [{type: bind, source: /a, target: /b, bind: {propagation: shared}}]": "services.web.volumes[0].bind.propagation: Colony does not support this key",
		"scale: 2":                          "services.web.scale: 2: one replica",
		"pull_policy: build":                `services.web.pull_policy: "build": images come from a registry`,
		"pull_policy: never":                `services.web.pull_policy: "never": images come from a registry`,
		"links: [nobody]":                   `nobody`,
		"volumes: ['./a.yml:/a']":           `services.web.volumes: /a: bind source "./a.yml": the archive has no such file: put it in`,
		"volumes: ['../a:/a']":              "want a path below the directory of compose.yaml",
		"volumes: ['.:/a']":                 "want a path below the directory of compose.yaml",
		"volumes: ['./a:/a', './a/b:/b']":   "one lies in the other",
		"volumes: ['./a b:/a', './a_b:/b']": "has its name",
		"extends: {service: none}":          "none",
		"hostname: a\n    hostname: b":      "line 5: services.web.hostname: the key stands twice",
		"environment: !reset null":          "services.web.environment: the tag !reset has no meaning",
		"<<: {ipc: host}":                   "services.web.ipc: Colony does not support this key",
		// Values.
		"ports: ['8080']":                                                 `services.web.ports: container port 8080: name the port of the node`,
		"ports: ['${NOPE}:80']":                                           `services.web.ports: container port 80: name the port of the node`,
		"ports: [{target: 80, published: '80-90'}]":                       `services.web.ports: port "80-90" of the node: want one number`,
		"ports: ['80:80/sctp']":                                           `services.web.ports: protocol "sctp": want tcp or udp`,
		"ports: ['80:80', '127.0.0.1:80:81']":                             "port 80 of the node is published twice",
		"ports: ['80:80']\n    network_mode: host":                        "services.web.ports: network_mode host has no ports to publish",
		"network_mode: 'service:b'":                                       `services.web.network_mode: "service:b": want bridge, host or none`,
		"networks: [other]":                                               "networks: the services b and web have no network in common: a deployment has one network",
		"volumes: [/data]":                                                "services.web.volumes: /data: the volume has no name",
		"volumes: ['/a:/b:rslave']":                                       `services.web.volumes[0]: the option "rslave" is not supported`,
		"volumes: ['/a:/b:nocopy']":                                       `services.web.volumes[0]: the option "nocopy" is not supported`,
		"volumes: ['nope:/b']":                                            "nope",
		"volumes: ['/a:/b', '/c:/b']":                                     "services.web.volumes: two of them have one target",
		"tmpfs: ['/t:mode=700']":                                          `services.web.tmpfs: "/t:mode=700": the option "mode=700" is not supported`,
		"configs: [missing]":                                              "missing",
		"configs: [outside]":                                              `services.web.configs: outside: "../x" leads out of the archive`,
		"configs: [absent]":                                               `services.web.configs: absent: the archive has no file "absent"`,
		"env_file: /etc/passwd":                                           `services.web.env_file: "/etc/passwd" leads out of the archive`,
		"env_file: {path: ../x, required: false}":                         "",
		"env_file: [{path: ../x, required: false}]":                       `services.web.env_file: "../x" leads out of the archive`,
		"env_file: nothing.env":                                           `services.web.env_file: the archive has no file "nothing.env"`,
		"devices: ['vendor.com/gpu=0']":                                   "services.web.devices",
		"cpus: 1\n    deploy: {resources: {limits: {cpus: '2'}}}":         "cpus",
		"deploy: {replicas: 2}":                                           "services.web.deploy.replicas: 2: one replica of a service runs on a node",
		"restart: sometimes":                                              `services.web.restart: "sometimes": want no, always`,
		"restart: always\n    deploy: {restart_policy: {condition: any}}": "services.web.restart: deploy.restart_policy is given too",
		"deploy: {restart_policy: {condition: any, max_attempts: 3}}":     "services.web.deploy.restart_policy.max_attempts: only with the condition on-failure",
		"healthcheck: {test: a, interval: -5s}":                           "services.web.healthcheck.interval: -5s: want a duration of 0 or more",
		"stop_grace_period: -1s":                                          "services.web.stop_grace_period: -1s",
		"healthcheck: {interval: 5s}":                                     "services.web.healthcheck.test: want a text",
		"x-colony-health: {http: /}":                                      "services.web.x-colony-health: port is required",
		"x-colony-health: {port: 80, tries: 1}":                           `services.web.x-colony-health: unknown key "tries"`,
		"x-colony-health: {port: 80}\n    healthcheck: {test: a}":         "services.web.x-colony-health: healthcheck is given too",
		"depends_on: {b: {condition: service_healthy}}":                   "services.web.depends_on.b: service_healthy, but b has neither",
		"depends_on: [web]":                                               "cycle",
		"depends_on: [nobody]":                                            "nobody",
		"extra_hosts: ['a:host-gateway']":                                 `services.web.extra_hosts: "a=host-gateway": want name=address`,
		"cap_drop: [NET_RAWW]":                                            `services.web.cap_drop: "NET_RAWW" is no capability of Linux`,
		"cap_add: [CAP_NET_RAWW]":                                         `services.web.cap_add: "CAP_NET_RAWW" is no capability of Linux`,
		"stop_signal: SIGSTOPP":                                           `services.web.stop_signal: "SIGSTOPP" is no signal of Linux`,
		"stop_signal: '65'":                                               `services.web.stop_signal: "65" is no signal of Linux`,
		"healthcheck: {test: a, interval: 0s}":                            "services.web.healthcheck.interval: 0: want more",
		"healthcheck: {test: a, retries: 0}":                              "services.web.healthcheck.retries: 0: want more",
		"x-colony-health: {port: 80, timeout: 0s}":                        "services.web.x-colony-health: timeout 0: want more",
		"depends_on: {off: {condition: service_healthy}}":                 "services.web.depends_on.off: service_healthy, but off has neither a healthcheck that is not disabled",
		"ports: ['[::1]:8080:80']":                                        `services.web.ports: host_ip "::1": ports are published on IPv4 addresses: use 127.0.0.1`,
		"ports: [{target: 80, published: '80', host_ip: '::'}]":           `services.web.ports: host_ip "::": ports are published on IPv4`,
		"entrypoint: []":                                                  "services.web.entrypoint: empty: clearing what the image says is not supported",
		"mem_limit: much":                                                 "mem_limit",
		"environment: {A: '${X:?is needed}'}":                             "is needed",
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			compose := "services:\n  web:\n    image: i\n    " + service + "\n  b: {image: i}\n  off: {image: i, healthcheck: {disable: true, test: a}}\n" +
				"networks: {other: {}}\nconfigs: {outside: {file: ../x}, absent: {file: absent}}\n"
			_, err := compileOne(t, compose, nil, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("error %v, want %q", err, want)
			}
			if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "component web: compose.yaml: ") && !strings.Contains(err.Error(), "component web: compose.yaml:\n") && !strings.Contains(err.Error(), "service web of component web") {
				t.Errorf("kind %s, error %v", protocol.KindOf(err), err)
			}
		})
	}
	for top, want := range map[string]string{
		"secrets: {a: {file: x}}":                "line 2: secrets: secrets are not part of Margo's Compose archives",
		"include: [other.yaml]":                  "include: an archive has one Compose file",
		"volumes: {v: {driver: nfs}}":            `line 2: volumes.v.driver: "nfs": want local`,
		"volumes: {v: {driver_opts: {o: bind}}}": "volumes.v.driver_opts: a volume of the deployment takes no options",
		"networks: {n: {internal: true}}":        "networks.n.internal: the network of a deployment leads out",
		"networks: {default: {driver: host}}":    `networks.default.driver: "host": want bridge`,
		"configs: {c: {environment: A}}":         "configs.c.environment: Colony does not support this key",
		"services: {}":                           "services: the key stands twice",
		"a: &a [*a]":                             "",
		"x-a: &a [*a]":                           "",
		"---\na: 1":                              "",
		"name: [":                                "compose.yaml",
		"models: {}":                             "models: Colony does not support this key; supported here: configs, name, networks, services, version, volumes",
	} {
		if _, err := compileOne(t, "services: {web: {image: i}}\n"+top, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", top, err, want)
		}
	}
}

func TestTranslateReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := compileOne(t, "services:\n  a: {image: i, build: ., ipc: host}\n  b: {image: i, secrets: [x]}\n", nil, nil)
	for _, want := range []string{"services.a.build", "services.a.ipc", "services.b.secrets"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
}

func TestStartOrder(t *testing.T) {
	t.Parallel()
	const compose = `services:
  a: {image: i, depends_on: [d]}
  b: {image: i}
  c: {image: i, depends_on: [a, b]}
  d: {image: i}
`
	got, err := compileOne(t, compose, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range got {
		names = append(names, c.Name)
	}
	if diff := cmp.Diff([]string{"b", "d", "a", "c"}, names); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err = compileOne(t, "services:\n  a: {image: i, depends_on: [b]}\n  b: {image: i, depends_on: [a]}\n", nil, nil); err == nil || !strings.Contains(err.Error(), "cycle") {
		t.Errorf("a cycle: %v", err)
	}
}

// The applications that ship with the repository compile.
func TestExamplesCompile(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/components/*/compose.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := compileOne(t, string(b), nil, map[string]string{"GREETING": "Hello", "ADDRESSEE": "World", "PORT": "8088"}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
