package compiler

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// findings are files, and all that is wrong with each.
var findings = []struct{ name, compose, want string }{
	{"a second document", "services: {a: {image: i}}\n---\nservices: {b: {image: i}}\n", `
line 2: a second document begins, and a Compose file has one: move what is in it into the first one, or into a file that include names`},
	{"a tab", "services:\n  a:\n\timage: i\n", "\nline 3: no YAML: found character that cannot start any token: indent with spaces and not with tabs, and quote a text that begins with @, % or `"},
	{"an open quote", "services:\n  a:\n    image: 'i\n    command: x\n", "\nline 3: no YAML: found unexpected end of stream: close the quote or bracket that begins here"},
	{"indentation", "services:\n  a:\n    image: i\n   ports: []\n", "\nline 4: no YAML: did not find expected key: indent the line as its neighbours, and close the quotes and brackets before it"},
	{"no anchor", "services:\n  a: *x\n", "\nline 2: no YAML: unknown anchor 'x' referenced: an alias stands behind its anchor"},
	{"nothing", "# only this\n", "\nline 1: the file is empty: want a mapping with services"},
	{"keys, variables and references", `services:
  a:
    build: .
    networks: [x]
    secrets: [s, known]
    configs: [c]
    volumes: [data:/v, {type: volume, source: gone, target: /w}]
    depends_on: [db, b]
    environment: {A: "${A:?is needed}", B: "${B"}
    cgroup: host
  b:
    image: i
    network_mode: service:other
    volumes_from: [a, zz]
    links: ["q:w"]
secrets: {known: {environment: COMPOSE_PROJECT_NAME}}
`, `
line 3: services.a.build: images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image
line 4: services.a.networks[0]: the network "x" is undefined: list it under networks
line 5: services.a.secrets[0]: the secret "s" is undefined: list it under secrets; there are known
line 6: services.a.configs[0]: the config "c" is undefined: list it under configs
line 7: services.a.volumes[0]: the volume "data" is undefined: list it under volumes
line 7: services.a.volumes[1]: the volume "gone" is undefined: list it under volumes
line 8: services.a.depends_on: the services a, b wait for each other in a cycle: take one of these dependencies out
line 8: services.a.depends_on[0]: there is no service "db"; there are a, b
line 9: services.a.environment.A: required variable A is missing a value: is needed: set it by a parameter of the application, or in .env
line 9: services.a.environment.B: Invalid template: "${B": want a form such as ${NAME}, ${NAME:-default} or ${NAME:?message}, and $$ for a $ that is none
line 10: services.a.cgroup: each container has its own control group, which is the root of what it sees: leave it out
line 13: services.b.network_mode: there is no service "other"; there are a, b
line 14: services.b.volumes_from[1]: there is no service "zz"; there are a, b
line 15: services.b.links[0]: there is no service "q"; there are a, b`},
	{"types", `services:
  a:
    image: i
    ports: ["x:y", "80"]
    privileged: maybe
    command: {x-a: 1}
    mem_limit: much
    scale: two
    restart: 3
    stop_grace_period: soon
    tmpfs: 3
    devices: [1]
    extra_hosts: [a]
    environment: [[a]]
    ulimits: {nofile: many}
    deploy: {resources: {limits: {cpus: lots}}}
    healthcheck: {test: [a], interval: often}
    depends_on: {b: {condition: sometimes}}
    cap_add: 1
  b: x
  c d: {image: i}
networks: {n: {ipam: {config: 3}}}
volumes:
  v: 3
  w: {external: true, driver: local}
secrets: {s: {}}
`, `
line 4: services.a.ports[0]: "x:y": want [address:][port of the node:]<port of the container>[/udp]: invalid containerPort: y
line 5: services.a.privileged: "maybe": want true or false
line 6: services.a.command: a mapping: want a list or a text or nothing
line 7: services.a.mem_limit: "much": want bytes, or a form such as 64m
line 8: services.a.scale: "two": want a whole number
line 9: services.a.restart: 3: want a text
line 10: services.a.stop_grace_period: "soon": want a duration such as 10s
line 11: services.a.tmpfs: 3: want a list or a text
line 12: services.a.devices[0]: 1: want a mapping or a text
line 13: services.a.extra_hosts: "a": want name=address
line 14: services.a.environment[0]: a list: want a text
line 15: services.a.ulimits.nofile: "many": want a whole number
line 16: services.a.deploy.resources.limits.cpus: "lots": want a number
line 17: services.a.healthcheck.interval: "often": want a duration such as 10s
line 17: services.a.healthcheck.test: "a": want CMD, CMD-SHELL or NONE as the first entry, or a text for a shell
line 18: services.a.depends_on.b.condition: "sometimes": want service_started or service_healthy or service_completed_successfully
line 19: services.a.cap_add: 1: want a list
line 20: services.b: "x": want a mapping
line 21: services.c d: want a name of letters, digits, dots, _ and -
line 22: networks.n.ipam.config: 3: want a list
line 24: volumes.v: 3: want a mapping or nothing
line 25: volumes.w: conflicting parameters "external" and "driver" specified
line 26: secrets.s: one of file|environment must be set`},
	{"no content", "---\n{}\n", "\nline 2: the file is empty: want a mapping with services"},
	{"no services", "volumes: {v: }\n", "\nline 1: services: no service runs: want one at least that has no profile, or whose profile is chosen by default"},
	{"services at the top", "a:\n  image: i\n  ports: ['80:80']\nb: {build: .}\nvolumen: {v: }\n", `
line 1: a: a service stands below services: write that key above it, and indent it
line 4: b: a service stands below services: write that key above it, and indent it
line 5: volumen: Colony does not support this key; supported here: configs, include, name, networks, secrets, services, version, volumes`},
	{"units", `services:
  a:
    image: i
    mem_limit: 1Gi
    healthcheck: {test: x, interval: 10, timeout: 1d}
    stop_grace_period: 10
    command: "a 'b"
    tmpfs: ["/a:uid=me", "/b:size=1Gi"]
    x-colony-health: {port: 80, timeout: 1d, interval: 10}
`, `
line 4: services.a.mem_limit: "gi" is no unit: want bytes, or a form such as 64m or 1g
line 5: services.a.healthcheck.interval: 10: want a duration such as 10s
line 6: services.a.stop_grace_period: 10: want a duration such as 10s
line 7: services.a.command: a quote is not closed, or nothing follows a backslash: want a text as for a shell, or a list
line 8: services.a.tmpfs: "/a:uid=me": uid "me": want a number from 0 to 2147483647: the names of users are in the image
line 8: services.a.tmpfs: "/b:size=1Gi": size "1Gi": want bytes, or a form such as 64m
line 9: services.a.x-colony-health: interval "10": want a duration such as 10s`},
	{"misspelt", `services:
  a:
    image: i
    depend_on: [b]
    healthcheck: {test: [CMD, x], intervall: 5s}
networks:
  default: {ipam: {confg: []}}
`, `
line 4: services.a.depend_on: Colony does not support this key; is depends_on meant?
line 5: services.a.healthcheck.intervall: Colony does not support this key; supported here: disable, interval, retries, start_interval, start_period, test, timeout
line 7: networks.default.ipam.confg: Colony does not support this key; supported here: config, driver, options`},
	{"profiles", `services:
  a:
    image: i
    depends_on: [b, none]
    links: [b]
  c:
    image: i
    network_mode: service:b
    volumes_from: [b]
    depends_on:
      b: {condition: service_started}
      d: {condition: service_healthy, required: false}
  b: {image: i, profiles: [x, y]}
`, `
line 4: services.a.depends_on[0]: the service "b" runs under the profile x or y alone, and COMPOSE_PROFILES does not name it: choose it there, or write required: false here
line 4: services.a.depends_on[1]: there is no service "none"; there are a, b, c
line 5: services.a.links[0]: the service "b" runs under the profile x or y alone, and COMPOSE_PROFILES does not name it: choose it there, or take this out
line 8: services.c.network_mode: the service "b" runs under the profile x or y alone, and COMPOSE_PROFILES does not name it: choose it there, or take this out
line 9: services.c.volumes_from[0]: the service "b" runs under the profile x or y alone, and COMPOSE_PROFILES does not name it: choose it there, or take this out
line 11: services.c.depends_on.b: the service "b" runs under the profile x or y alone, and COMPOSE_PROFILES does not name it: choose it there, or write required: false here`},
	{"reservations", `services:
  a:
    image: i
    mem_limit: 10m
    mem_reservation: 20m
  b:
    image: i
    deploy:
      resources:
        limits: {memory: 10m}
        reservations: {memory: 20m}
`, `
line 5: services.a.mem_reservation: 20971520 bytes are reserved, and the limit is 10485760: reserve less, or raise the limit
line 11: services.b.deploy.resources.reservations.memory: 20971520 bytes are reserved, and the limit is 10485760: reserve less, or raise the limit`},
	{"zero bytes", `services:
  a:
    image: i
    command: ["a\0b", "c"]
    environment: {A: "x\0y"}
    working_dir: "/a\0"
    volumes: ["/a\0:/b"]
configs: {c: {content: "a\0b"}}
`, `
line 4: services.a.command[0]: the text holds a zero byte, at which Linux ends a text: take it out
line 5: services.a.environment.A: the text holds a zero byte, at which Linux ends a text: take it out
line 6: services.a.working_dir: the text holds a zero byte, at which Linux ends a text: take it out
line 7: services.a.volumes[0]: the text holds a zero byte, at which Linux ends a text: take it out`},
	{"a variable in an include", "include: ['${P}/a.yaml']\nservices: {a: {image: i}}\n", `
line 1: include: "${P}/a.yaml": no variable is filled in in the names of files that are included or extended: write the name out`},
	{"an empty boolean", "services:\n  a: {image: i, privileged: ''}\n", `
line 2: services.a.privileged: "": want true or false`},
	{"an unknown tag", "services:\n  a:\n    image: i\n    ports: !overide ['80:80']\n", `
line 4: services.a.ports: the tag !overide has no meaning in Compose: leave it out; it has !reset and !override`},
	{"addresses", `services:
  a: {image: i, networks: {default: {ipv4_address: 172.20.0.300}}}
  b: {image: i, networks: {default: {ipv4_address: 172.20.0.9}}}
  c: {image: i, networks: {default: {ipv4_address: 172.20.0.9}}}
networks:
  default: {ipam: {config: [{subnet: 172.20.0.0/16}]}}
  other: {ipam: {config: [{subnet: 172.21.0.0/33}]}}
`, `
line 2: services.a.networks.default.ipv4_address: "172.20.0.300": want an IPv4 address such as 172.20.0.10
line 4: services.c.networks.default.ipv4_address: 172.20.0.9: services.b has it, too: choose another one
line 7: networks.other.ipam.config[0].subnet: "172.21.0.0/33": want a network such as 172.20.0.0/24`},
	{"names", `services:
  a:
    image: i
    container_name: foo bar
    networks: {default: {aliases: ["x\n1.2.3.4 evil", ok_1.x]}}
    links: ["b:y z", "b:y"]
    extra_hosts: {"e f": 10.0.0.1, g: "fe80::1%x\n1.2.3.4 evil", fine.example: 10.0.0.1}
    dns: ["fe80::1%x\nsearch evil"]
  b: {image: i}
`, `
line 4: services.a.container_name: "foo bar": want a name of letters, digits, dots, _ and -, 253 bytes at most
line 5: services.a.networks.default.aliases: "x\n1.2.3.4 evil": want a name of letters, digits, dots, _ and -, 253 bytes at most
line 6: services.a.links: "y z": want a name of letters, digits, dots, _ and -, 253 bytes at most
line 7: services.a.extra_hosts: "e f": want a name of letters, digits, dots, _ and -, 253 bytes at most
line 7: services.a.extra_hosts: "g=fe80::1%x\n1.2.3.4 evil": want name=address with an IP address, without a zone, or host-gateway
line 8: services.a.dns: "fe80::1%x\nsearch evil": want an IP address, without a zone`},
	{"targets", `services:
  a:
    image: i
    volumes:
      - /srv/r:/
      - /srv/p:/proc
      - /srv/q:/proc/q
      - /srv/c:/proc/cpuinfo
      - /srv/g:/sys/class/gpio
      - /sys/class/leds:/sys/class/leds
      - /sys:/sys:ro
      - /proc:/host/proc:ro
    tmpfs: [/sys/firmware]
    devices: ["/dev/null:/proc/null"]
    configs: [{source: c, target: /sys/c}]
    secrets: [{source: s, target: /proc/meminf}]
volumes: {v: }
configs: {c: {content: x}}
secrets: {s: {environment: COMPOSE_PROJECT_NAME}}
`, `
line 4: services.a.volumes: target /proc: it shows the processes of the container: mount elsewhere, such as /host/proc, and tell the program so
line 5: services.a.volumes: target /: it is the root of the container, which the image fills: mount at a directory below it
line 7: services.a.volumes: target /proc/q: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/proc/q, and set parameters of the kernel with sysctls
line 9: services.a.volumes: target /sys/class/gpio: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/sys/class/gpio, and set parameters of the kernel with sysctls
line 13: services.a.tmpfs: target /sys/firmware: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/sys/firmware, and set parameters of the kernel with sysctls
line 14: services.a.devices: target /proc/null: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/proc/null, and set parameters of the kernel with sysctls
line 15: services.a.configs: target /sys/c: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/sys/c, and set parameters of the kernel with sysctls
line 16: services.a.secrets: target /proc/meminf: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host/proc/meminf, and set parameters of the kernel with sysctls`},
	{"what does not go together", `services:
  a:
    command: x
    ports: ["80:80"]
  b:
    image: i
    network_mode: host
    networks: [default]
    mem_limit: 1g
    cpus: 1
    deploy: {resources: {limits: {memory: 2g, cpus: "2"}}}
    working_dir: x
  c: {image: i, depends_on: [d], ports: ["127.0.0.1:80:81"], hostname: "a b"}
  d: {image: i, depends_on: [c], container_name: one, scale: 2}
  e: {image: i, ports: ["8080:80", "8000-8001:90-91", "8001:1"]}
`, `
line 2: services.a: it has no image: name one in image
line 7: services.b.network_mode: networks is given too: give one of them
line 9: services.b.mem_limit: it differs from deploy.resources.limits.memory: give one of them
line 10: services.b.cpus: it differs from deploy.resources.limits.cpus: give one of them
line 12: services.b.working_dir: "x": want an absolute path, such as /x
line 13: services.c.depends_on: the services c, d wait for each other in a cycle: take one of these dependencies out
line 13: services.c.hostname: "a b": want labels of letters, digits and - inside, 1 to 63 each, with dots between them (RFC 1123)
line 13: services.c.ports[0]: port 80 of the node is published twice in this deployment: services.a.ports[0] has it; publish another one
line 14: services.d.container_name: the service has several replicas, which cannot all have one name: leave it out
line 15: services.e.ports: port 8001 of the node is published twice in this deployment: services.e.ports has it; publish another one`},
}

// All that is wrong with a file is reported together: each with its line and key, and what to write
// instead.
func TestFindings(t *testing.T) {
	t.Parallel()
	for _, c := range findings {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := CheckArchive("web", composeArchive(t, c.compose, nil), nil)
			if err == nil {
				t.Fatal("accepted")
			}
			got := strings.TrimPrefix(err.Error(), "component web: compose.yaml:")
			if diff := cmp.Diff(strings.Split(c.want, "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// A refusal has its line, whatever the file says.
func TestEveryRefusalHasItsLine(t *testing.T) {
	t.Parallel()
	refused := 0
	for seed := range uint64(300) {
		compose := generate(rand.New(rand.NewPCG(seed, 17)))
		_, _, err := CheckArchive("web", composeArchive(t, compose, map[string]string{"a.env": "X=1\n"}), open("IMG"))
		if err == nil {
			continue
		}
		list, ok := strings.CutPrefix(err.Error(), "component web: compose.yaml:\n")
		if !ok {
			continue // of several services: their names, and not a file
		}
		refused++
		for line := range strings.SplitSeq(list, "\n") {
			if !placed.MatchString(line) {
				t.Errorf("seed %d: no line: %s\n%s", seed, line, compose)
			}
		}
	}
	if refused < 100 {
		t.Errorf("%d files were refused: too few to show anything", refused)
	}
}
