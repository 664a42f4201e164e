package compiler

import (
	"fmt"
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
      - "[::1]:8082:82"
      - {target: 82, published: "8082", host_ip: "FD00:0::1"}
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
				{Container: 82, Host: 8082, HostIP: "::1"},
				{Container: 82, Host: 8082, HostIP: "fd00::1"},
				{Container: 8080, Host: 8088},
				{Container: 81, Host: 8181, HostIP: "0.0.0.0"},
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
		"build: .":                     "line 4: services.web.build: images are not built on nodes",
		"imag: x":                      "line 4: services.web.imag: Colony does not support this key",
		"x-colony-heath: {port: 1}":    "services.web.x-colony-heath: Colony has no such extension",
		"extends: {file: /etc/passwd}": "services.web.extends: want the name of a service",
		"deploy: {resources: {limits: {gpus: 1}}}":                                     "services.web.deploy.resources.limits.gpus: Colony does not support this key; supported here: cpus, memory, pids",
		"volumes: [{type: bind, source: /a, target: /b, bind: {propagation: shared}}]": "services.web.volumes: /b: propagation \"shared\": want rslave",
		"scale: 0":                          "services.web.scale: 0: want 1 to 100",
		"{scale: 2, ports: ['80:80']}":      "services.web.ports: the service has 2 replicas, which cannot all have one port",
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
		"environment: !other null":          "services.web.environment: the tag !other has no meaning",
		// Values.
		"ports: ['8000-8010:80']":                   `services.web.ports: port "8000-8010" of the node: want one number`,
		"ports: [{target: 80, published: '80-90'}]": `services.web.ports: port "80-90" of the node: want one number`,
		"ports: ['80:80/sctp']":                     `services.web.ports: protocol "sctp": want tcp or udp`,
		"ports: ['80:80', '127.0.0.1:80:81']":       "line 4: services.web.ports[1]: port 80 of the node is published twice in this deployment: services.web.ports[0] has it",
		"ports: ['80:80']\n    network_mode: host":  "services.web.ports: network_mode host has no ports to publish",
		"{networks: [back], ports: ['80:80']}":      "services.web.ports: the service is on internal networks alone",
		"volumes: ['nfs:/a']":                       `services.web.volumes: /a: type "nfs": a node mounts file systems of the network itself: write "10.0.0.1:/x /mnt/share nfs _netdev 0 0" into its /etc/fstab, and driver_opts {type: none, o: bind, device: /mnt/share} here`,
		"volumes: ['shm:/a']":                       "services.web.volumes: /a: type tmpfs: name it under tmpfs of the service",
		"volumes: ['near:/a']":                      `services.web.volumes: /a: device "./x": want an absolute path`,
		"volumes_from: ['b:rx']":                    `services.web.volumes_from: "b:rx": want the name of a service`,
		"memswap_limit: 1g":                         "services.web.memswap_limit: want mem_limit beside it",
		"{mem_limit: 2g, memswap_limit: 1g}":        "services.web.memswap_limit: 1073741824 is less than the memory alone",
		"configs: [unset]":                          "services.web.configs: unset: no parameter sets the variable UNSET",
		"volumes: [{type: volume, source: bind_data, target: /a, volume: {subpath: a/../..}}]": `services.web.volumes: /a: volume.subpath "a/../..": want a path in the volume`,
		"volumes: [{type: volume, source: near, target: /a, volume: {subpath: a}}]":            "services.web.volumes: /a: volume.subpath of a volume that is a directory of the node",
		"volumes: [/data]":                                        "services.web.volumes: /data: the volume has no name",
		"volumes: ['v:/c']":                                       "services.web.volumes: v:/c: a name of one letter is taken for a drive of Windows",
		"volumes: ['v:/c:ro']":                                    "a name of one letter is taken for a drive of Windows",
		"volumes: ['/a:/b:shared']":                               `services.web.volumes[0]: the option "shared" is not supported`,
		"volumes: ['nope:/b']":                                    "nope",
		"volumes: ['/a:/b', '/c:/b']":                             "services.web.volumes: two of them have one target",
		"environment: ['=x']":                                     `services.web.environment: "" cannot be an environment variable: want a name that is not empty`,
		"tmpfs: ['/t:uid=me']":                                    `services.web.tmpfs: "/t:uid=me": uid "me": want a number from 0`,
		"tmpfs: ['/t:mode=9']":                                    `services.web.tmpfs: "/t:mode=9": mode "9": want an octal number`,
		"configs: [missing]":                                      "missing",
		"configs: [outside]":                                      `services.web.configs: outside: "../x" leads out of the archive`,
		"configs: [absent]":                                       `services.web.configs: absent: the archive has no file "absent"`,
		"env_file: /etc/passwd":                                   `services.web.env_file: "/etc/passwd" leads out of the archive`,
		"env_file: {path: ../x, required: false}":                 "",
		"env_file: [{path: ../x, required: false}]":               `services.web.env_file: "../x" leads out of the archive`,
		"env_file: nothing.env":                                   `services.web.env_file: the archive has no file "nothing.env"`,
		"cpus: 1\n    deploy: {resources: {limits: {cpus: '2'}}}": "cpus",
		"deploy: {replicas: 101}":                                 "services.web.deploy.replicas: 101: want 1 to 100",
		"restart: sometimes":                                      `services.web.restart: "sometimes": want no, always`,
		"restart: always\n    deploy: {restart_policy: {condition: any}}": "services.web.restart: deploy.restart_policy is given too",
		"deploy: {restart_policy: {condition: any, max_attempts: 3}}":     "services.web.deploy.restart_policy.max_attempts: only with the condition on-failure",
		"healthcheck: {test: a, interval: -5s}":                           "services.web.healthcheck.interval: -5s: want a duration of 0 or more",
		"stop_grace_period: -1s":                                          "services.web.stop_grace_period: -1s",
		"x-colony-health: {http: /}":                                      "services.web.x-colony-health: port is required",
		"x-colony-health: {port: 80, tries: 1}":                           `services.web.x-colony-health: unknown key "tries"`,
		"x-colony-health: {port: 80}\n    healthcheck: {test: a}":         "services.web.x-colony-health: healthcheck is given too",
		"depends_on: [web]":                                               "cycle",
		"depends_on: [nobody]":                                            `line 4: services.web.depends_on[0]: there is no service "nobody"`,
		"extra_hosts: ['a:gateway']":                                      `services.web.extra_hosts: "a=gateway": want name=address`,
		"pid: 'service:b'":                                                `services.web.pid: "service:b": want host`,
		"ipc: 'service:b'":                                                `services.web.ipc: "service:b": want host`,
		"userns_mode: keep-id":                                            `services.web.userns_mode: "keep-id": containers are in the user namespace of the node`,
		"platform: windows/amd64":                                         `services.web.platform: "windows/amd64": want linux/`,
		"ulimits: {files: 3}":                                             "services.web.ulimits.files: Linux has no such limit",
		"ulimits: {nofile: {soft: -1, hard: 4}}":                          "services.web.ulimits.nofile: the soft limit is above the hard one",
		"ulimits: {nofile: -2}":                                           "services.web.ulimits.nofile: want numbers, or -1",
		"security_opt: [seccomp:absent.json]":                             `services.web.security_opt: seccomp: the archive has no file "absent.json"`,
		"security_opt: [seccomp:../absent.json]":                          `services.web.security_opt: seccomp: "../absent.json" leads out`,
		"security_opt: [seccomp:compose.yaml]":                            "services.web.security_opt: seccomp: compose.yaml is no profile",
		"security_opt: ['systempaths=unconfined']":                        "services.web.security_opt: \"systempaths=unconfined\" is not supported",
		"security_opt: ['no-new-privileges:yes']":                         "services.web.security_opt: \"no-new-privileges:yes\": want",
		"security_opt: ['apparmor=']":                                     "services.web.security_opt: \"apparmor=\": want the name",
		"dns: ns.example":                                                 `services.web.dns: "ns.example": want an IP address`,
		"dns_search: 'a b'":                                               `services.web.dns_search: "a b": want one domain`,
		"network_mode: 'service:x'":                                       `line 4: services.web.network_mode: there is no service "x"; there are alone, any, b,`,
		"network_mode: 'service:alone'":                                   "services.web.network_mode: the service alone has no network of its own",
		"{network_mode: 'service:b', ports: ['1:1']}":                     "services.web.ports: the service shares the network of b",
		"{network_mode: 'service:b', depends_on: {b: {condition: service_completed_successfully}}}": "services.web.depends_on.b: the service shares the network of b, which must run",
		"{mem_limit: 1m, mem_reservation: 2m}":                                                      "services.web.mem_reservation: 2097152 bytes are reserved, and the limit is 1048576",
		"gpus: [{count: 1, device_ids: [a]}]":                                                       `line 4: services.web.gpus: services.web.gpus.[]: "count" and "device_ids" attributes are exclusive`,
		"deploy: {resources: {reservations: {devices: [{capabilities: [tpu], count: 1}]}}}":         `services.web.deploy.resources.reservations.devices[0].capabilities: ["tpu"]: want gpu among them`,
		"gpus: [{options: {a: b}}]":                                                                 "services.web.gpus[0].options: there are no options of a driver",
		"gpus: [{count: 0}]":                                                                        "services.web.gpus[0].count: 0: want all, or 1 to 64",
		"gpus: [{count: 1000}]":                                                                     "services.web.gpus[0].count: 1000: want all, or 1 to 64",
		"gpus: [{driver: intel}]":                                                                   `services.web.gpus[0].driver: "intel": want nvidia, amd, or cdi`,
		"gpus: [{driver: cdi, count: 1}]":                                                           "services.web.gpus[0]: the driver is cdi: want the names of CDI devices",
		"gpus: [{driver: cdi, device_ids: ['0']}]":                                                  `services.web.gpus[0].device_ids: "0" is no name of a CDI device`,
		"devices: ['vendor.com/gpu']":                                                               `services.web.devices: "vendor.com/gpu": want a path such as /dev/ttyUSB0, or the name of a CDI device`,
		"devices: ['vendor.com/gpu=0:1:rw']":                                                        `services.web.devices: "vendor.com/gpu=0:1": want a path`,
		"extends: {file: other.yaml, service: a}":                                                   `services.web.extends: the archive has no file "other.yaml"`,
		"extends: {file: /etc/passwd, service: a}":                                                  `services.web.extends: "/etc/passwd" leads out of the archive`,
		"extends: {file: ../other.yaml, service: a}":                                                `services.web.extends: "../other.yaml" leads out of the archive`,
		"extends: web":                                           "services.web.extends: the service web extends itself",
		"extends: nobody":                                        "services.web.extends: compose.yaml has no service nobody",
		"deploy: {mode: global-job}":                             `services.web.deploy.mode: "global-job": want replicated or global`,
		"volumes: ['/a:/b:rshared']":                             `services.web.volumes[0]: the option "rshared" is not supported`,
		"network_mode: 'container:b'":                            `services.web.network_mode: "container:b": want bridge, host, none or service:<name>`,
		"cgroup_parent: x":                                       "line 4: services.web.cgroup_parent: the agent chooses the control groups: leave it out",
		"{volumes: ['./data:/a', 'bind_data:/b']}":               `services.web.volumes: /a: "data" becomes a volume of the name bind_data, which another one has`,
		"secrets: [nowhere]":                                     `line 4: services.web.secrets[0]: the secret "nowhere" is undefined: list it under secrets; there are lost, unset`,
		"secrets: [unset]":                                       "services.web.secrets: unset: no parameter sets the variable UNSET",
		"secrets: [lost]":                                        `services.web.secrets: lost: the archive has no file "lost"`,
		"cap_drop: [NET_RAWW]":                                   `services.web.cap_drop: "NET_RAWW" is no capability of Linux`,
		"cap_add: [CAP_NET_RAWW]":                                `services.web.cap_add: "CAP_NET_RAWW" is no capability of Linux`,
		"stop_signal: SIGSTOPP":                                  `services.web.stop_signal: "SIGSTOPP" is no signal of Linux`,
		"stop_signal: '65'":                                      `services.web.stop_signal: "65" is no signal of Linux`,
		"healthcheck: {test: a, interval: 0s}":                   "services.web.healthcheck.interval: 0: want more",
		"healthcheck: {test: a, retries: 0}":                     "services.web.healthcheck.retries: 0: want more",
		"x-colony-health: {port: 80, timeout: 0s}":               "services.web.x-colony-health: timeout 0: want more",
		"depends_on: {off: {condition: service_healthy}}":        "services.web.depends_on.off: service_healthy, but the healthcheck of off is disabled",
		"ports: ['[::1]:8080:80', '[::]:8080:80']":               "services.web.ports[1]: port 8080 of the node is published twice",
		"entrypoint: []":                                         "services.web.entrypoint: empty: nothing is run, as what the image runs is left out; name the command",
		"sysctls: {vm.max_map_count: 262144}":                    "line 4: services.web.sysctls.vm.max_map_count: the container has no such parameter of its own",
		"sysctls: [kernel.pid_max=1]":                            "line 4: services.web.sysctls.kernel.pid_max: the container has no such parameter",
		"sysctls: {kernel.hostname: a}":                          "services.web.sysctls.kernel.hostname: the name of the container is not set by a sysctl: write it as hostname",
		"sysctls: {kernel/domainname: a}":                        "services.web.sysctls.kernel/domainname: the name of the container",
		"{network_mode: host, sysctls: {net.core.somaxconn: 9}}": "services.web.sysctls.net.core.somaxconn: network_mode is host",
		"{ipc: host, sysctls: {kernel.shmmax: 9}}":               "services.web.sysctls.kernel.shmmax: ipc is host",
		"working_dir: ./app":                                     `line 4: services.web.working_dir: "./app": want an absolute path, such as /app`,
		"mem_limit: 5m":                                          "line 4: services.web.mem_limit: 5242880 bytes: want 6m (6 MiB) or more",
		"deploy: {resources: {limits: {memory: 1m}}}":            "line 4: services.web.deploy.resources.limits.memory: 1048576 bytes: want 6m",
		"cpus: -1":      "line 4: services.web.cpus: -1: want a number of cores",
		"cpus: 0.00001": "line 4: services.web.cpus: 1e-05: want a number of cores such as 0.5, 0.01 at least",
		"deploy: {resources: {limits: {cpus: '0.009'}}}": "line 4: services.web.deploy.resources.limits.cpus: 0.009: want a number of cores",
		"pids_limit: -2":                       "line 4: services.web.pids_limit: -2: want a number",
		"shm_size: -1":                         "line 4: services.web.shm_size: -1: want bytes",
		"stop_grace_period: 169h":              "line 4: services.web.stop_grace_period: 169h0m0s: want at most 168h0m0s",
		"user: '-1'":                           `line 4: services.web.user: "-1": want a name, or a number from 0`,
		"user: '1000:-5'":                      `line 4: services.web.user: "1000:-5"`,
		"user: 'a b'":                          `line 4: services.web.user: "a b"`,
		"user: '1:2:3'":                        `line 4: services.web.user: "1:2:3"`,
		"group_add: ['-1']":                    `line 4: services.web.group_add: "-1": want a name, or a number from 0`,
		"group_add: ['']":                      `line 4: services.web.group_add: "": want a name`,
		"group_add: ['a b']":                   `line 4: services.web.group_add: "a b"`,
		"hostname: a b":                        `line 4: services.web.hostname: "a b": want labels`,
		"hostname: a..b":                       `line 4: services.web.hostname: "a..b": want labels`,
		"hostname: -a":                         `line 4: services.web.hostname: "-a": want labels`,
		"hostname: " + strings.Repeat("a", 64): "want labels of letters, digits and - inside, 1 to 63 each",
		"hostname: " + strings.Repeat("a.", 32) + "a":                        "has 65 bytes, Linux takes 64",
		"depends_on: {forever: {condition: service_completed_successfully}}": "line 4: services.web.depends_on.forever: service_completed_successfully, but forever is restarted whenever it ends",
		"depends_on: {any: {condition: service_completed_successfully}}":     "services.web.depends_on.any: service_completed_successfully, but any is restarted whenever it ends",
		"oom_score_adj: 1001":                        "line 4: services.web.oom_score_adj: 1001: want 1000 or less",
		"cpu_shares: 1":                              "line 4: services.web.cpu_shares: 1: want 2 to 262144",
		"cpuset: all":                                `line 4: services.web.cpuset: "all": want the numbers of processors, such as 0-3,5`,
		"cpuset: '0-3, 5-4'":                         `line 4: services.web.cpuset: "0-3, 5-4": want the numbers of processors, such as 0-3,5`,
		"ulimits: {nofile: -1}":                      "line 4: services.web.ulimits.nofile: Linux has no unlimited number of open files",
		"devices: ['/dev/null:rel']":                 `line 4: services.web.devices: target "rel" of /dev/null: want an absolute path`,
		"tmpfs: [rel]":                               `line 4: services.web.tmpfs: target "rel": want an absolute path`,
		"configs: [{source: some, target: rel/c}]":   `line 4: services.web.configs: target "rel/c": want an absolute path`,
		"entrypoint: ['']":                           "line 4: services.web.entrypoint: the program has no name",
		"{entrypoint: [''], command: [a]}":           "services.web.entrypoint: the program has no name",
		"{entrypoint: [], command: ['', a]}":         "services.web.command: the program has no name",
		"domainname: a b":                            `line 4: services.web.domainname: "a b": want labels`,
		"{domainname: a, network_mode: host}":        "services.web.domainname: the service has the name of the node",
		"{domainname: a, network_mode: 'service:b'}": "services.web.domainname: the service shares the network of b",
		"secrets: [{source: unset, uid: root}]":      `services.web.secrets: unset: uid "root": want a number from 0`,
		"configs: [{source: absent, gid: '-1'}]":     `services.web.configs: absent: gid "-1": want a number from 0`,
		"mem_limit: much":                            `line 4: services.web.mem_limit: "much": want bytes, or a form such as 64m`,
		"environment: {A: '${X:?is needed}'}":        "is needed",
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			if inner, ok := strings.CutPrefix(service, "{"); ok { // several keys
				service = "<<: {" + inner
			}
			compose := "services:\n  web:\n    image: i\n    " + service + "\n  b: {image: i}\n  alone: {image: i, network_mode: none}\n  off: {image: i, healthcheck: {disable: true, test: a}}\n  forever: {image: i, restart: unless-stopped}\n  any: {image: i, deploy: {restart_policy: {}}}\n" +
				"networks: {other: {}, back: {internal: true}}\nvolumes:\n  bind_data: {}\n  nfs: {driver_opts: {type: nfs, o: 'addr=10.0.0.1', device: ':/x'}}\n  shm: {driver_opts: {type: tmpfs, device: tmpfs}}\n  near: {driver_opts: {type: none, o: bind, device: ./x}}\n" +
				"secrets: {unset: {environment: UNSET}, lost: {file: lost}}\nconfigs: {some: {content: x}, outside: {file: ../x}, absent: {file: absent}, unset: {environment: UNSET}}\n"
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
		"secrets: {a: {external: true}}":      "line 2: secrets.a.external: the node has no store of secrets",
		"include: [other.yaml]":               `line 2: include: the archive has no file "other.yaml"`,
		"include: other.yaml":                 "line 2: include: want a list of files",
		"include: [../other.yaml]":            `line 2: include: "../other.yaml" leads out`,
		"include: [compose.yaml]":             "compose.yaml includes itself",
		"volumes: {v: {driver: nfs}}":         `line 2: volumes.v.driver: "nfs": want local`,
		"networks: {default: {driver: host}}": `networks.default.driver: "host": want bridge`,
		"services: {}":                        "services: the key stands twice",
		"a: &a [*a]":                          "",
		"x-a: &a [*a]":                        "",
		"---\na: 1":                           "",
		"name: [":                             "compose.yaml",
		"models: {}":                          "line 2: models: nodes have no runner of models: write a service",
	} {
		if _, err := compileOne(t, "services: {web: {image: i}}\n"+top, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", top, err, want)
		}
	}
}

func TestTranslateReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := compileOne(t, "services:\n  a: {image: i, build: ., cgroup: host}\n  b: {image: i, runtime: x}\n", nil, nil)
	for _, want := range []string{"services.a.build", "services.a.cgroup", "services.b.runtime"} {
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

// The values next to those that are refused.
func TestTranslateTakesWhatLinuxTakes(t *testing.T) {
	t.Parallel()
	for _, keys := range []string{
		"sysctls: {net.ipv4.ip_forward: 1, net/ipv4/conf/eth0.100/rp_filter: 1, kernel.shmmax: 1, kernel.msgmnb: 1, kernel/sem: 1 2 3 4, fs.mqueue.msg_max: 1}",
		"sysctls: {net.core.somaxconn: 1}, network_mode: 'service:db', ipc: host",
		"sysctls: {kernel.shmall: 1}, network_mode: host, ipc: private",
		"working_dir: /, stop_grace_period: 168h, shm_size: 1, mem_limit: 6m, cpus: 0.01, pids_limit: -1",
		"hostname: a, user: '0', group_add: [0, dialout, 2147483647]",
		"hostname: My_host-1.plant.example, user: 'me:users'",
		"hostname: " + strings.Repeat("a", 63) + ", user: '1000:1000'",
		"depends_on: {once: {condition: service_completed_successfully}, tries: {condition: service_completed_successfully}}",
	} {
		compose := "services:\n  web: {image: i, " + keys + "}\n  db: {image: i}\n  once: {image: i}\n  tries: {image: i, restart: 'on-failure:3'}\n"
		if _, err := compileOne(t, compose, nil, nil); err != nil {
			t.Errorf("%s: %v", keys, err)
		}
	}
}

// An empty entrypoint or command leaves out what the image says, and one that is null does not.
func TestEmptyArguments(t *testing.T) {
	t.Parallel()
	for lines, want := range map[string]string{
		"entrypoint: []\n    command: [a, b]":    "[a b] [] false",
		"entrypoint: ''\n    command: a b":       "[a b] [] false",
		"entrypoint: null\n    command: [a]":     "[] [a] false",
		"entrypoint: [e]\n    command: [a]":      "[e] [a] false",
		"entrypoint: [e]\n    command: []":       "[e] [] false",
		"command: []":                            "[] [] true",
		"command: ''":                            "[] [] true",
		"command: null":                          "[] [] false",
		"entrypoint:\n    command:":              "[] [] false",
		"entrypoint: \"${E}\"\n    command: [a]": "[a] [] false",
	} {
		got, err := compileOne(t, "services:\n  web:\n    image: i\n    "+lines+"\n", nil, map[string]string{"E": ""})
		if err != nil {
			t.Errorf("%s: %v", lines, err)
		} else if text := fmt.Sprint(got[0].Entrypoint, got[0].Command, got[0].NoCommand); text != want {
			t.Errorf("%s: %s, want %s", lines, text, want)
		}
	}
}
