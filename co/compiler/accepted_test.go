package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

// Keys that change nothing on a node are accepted, and those that come true in another
// way than in Docker are warned of at the import.
func TestAcceptedKeys(t *testing.T) {
	t.Parallel()
	const compose = `
services:
  base:
    image: base
    environment: {A: base, B: base}
    networks: [back]
  web:
    extends: base
    image: web
    environment: {B: web}
    expose: [80, "81/udp"]
    logging: {driver: json-file, options: {max-size: 1m}}
    links: [db, "db:database"]
    scale: 1
    attach: false
    pull_policy: if_not_present
    deploy: {mode: replicated}
    networks: {front: {ipv4_address: 10.9.1.9}, back: {}}
    depends_on:
      debug: {condition: service_started, required: false}
      db: {condition: service_started, restart: true}
    volumes:
      - {type: bind, source: /srv/a, target: /a, bind: {create_host_path: true, selinux: z}, consistency: cached}
      - /srv/b:/b:ro,Z
      - data:/data:z
  db:
    image: db
    networks: [back]
    logging: {driver: syslog}
  debug:
    image: debug
    profiles: [debug]
networks:
  front: {driver: bridge, name: front, attachable: true, labels: {a: b}, ipam: {config: [{subnet: 10.1.0.0/16}]}}
  back: {external: true}
volumes:
  data: {driver: local, name: data, external: false, labels: [a=b]}
  outside: {external: true}
`
	containers, warnings := imported(t, compose, nil)
	at := func(name string) protocol.Container {
		for _, c := range containers {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no container %s", name)
		return protocol.Container{}
	}
	if len(containers) != 3 {
		t.Errorf("%d containers, want base, db and web: the profile of debug is not chosen", len(containers))
	}
	web := protocol.Container{
		Name: "web", Image: "web", Env: []string{"A=base", "B=web"},
		Mounts: []protocol.Mount{
			{Kind: protocol.MountBind, Target: "/a", Source: "/srv/a"},
			{Kind: protocol.MountBind, Target: "/b", Source: "/srv/b", ReadOnly: true},
			{Kind: protocol.MountVolume, Target: "/data", Source: "web_data"},
		},
		DependsOn: []protocol.Dependency{{Container: "db", Condition: protocol.ServiceStarted}},
	}
	if diff := cmp.Diff(web, at("web")); diff != "" {
		t.Errorf("web (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"database"}, at("db").Aliases); diff != "" {
		t.Errorf("aliases of db (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"networks.front.ipam: the node chooses the subnet", "networks.back: it is external",
		"services.web.networks.front.ipv4_address: it is not in the subnet 10.1.0.0/16 of the network: the node chooses the address", "volumes.outside: it is external",
		`services.db.logging: the driver "syslog" is not used`, "services.web.logging.options: max-size is not used",
		"services.web.volumes: /a: the node must have the path /srv/a", "services.web.volumes: /b: the node must have the path /srv/b",
	} {
		if !strings.Contains(warnings, want) {
			t.Errorf("the warnings do not say %q:\n%s", want, warnings)
		}
	}
}

// imported returns what an import makes of an archive, and its warnings.
func imported(t *testing.T, compose string, files map[string]string, variables ...string) ([]protocol.Container, string) {
	t.Helper()
	c, warnings, err := CheckArchive("web", composeArchive(t, compose, files), open(variables...))
	if err != nil {
		t.Fatal(err)
	}
	return c.Containers, strings.Join(warnings, "\n")
}

// Only rslave is taken for the propagation of a bind, in both forms, and a read-only bind does
// not have it.
func TestPropagation(t *testing.T) {
	t.Parallel()
	for volume, want := range map[string]string{
		"'/srv:/a:ro,rslave'": "rslave is not used",
		"{type: bind, source: /srv, target: /a, read_only: true, bind: {propagation: rslave}}": "rslave is not used",
		"'/srv:/a:rslave'": "",
		"{type: bind, source: /srv, target: /a, bind: {propagation: rslave}}":  "",
		"{type: bind, source: /srv, target: /a, bind: {propagation: rshared}}": "want rslave",
	} {
		_, warnings, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i\n    volumes: ["+volume+"]\n", nil), nil)
		said := strings.Join(warnings, "\n")
		if want == "want rslave" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", volume, err)
			}
		} else if err != nil || strings.Contains(said, "rslave is not used") != (want != "") {
			t.Errorf("%s: %v, warnings %q", volume, err, said)
		}
	}
}

// COMPOSE_PROFILES chooses the services, as in Compose.
func TestProfilesAreChosenByAParameter(t *testing.T) {
	t.Parallel()
	const compose = "services:\n  a: {image: i}\n  b: {image: i, profiles: [x]}\n  c: {image: i, profiles: [y, z]}\n"
	for chosen, want := range map[string]string{"": "a", "x": "a b", "x, z": "a b c", "*": "a b c"} {
		containers, err := compileOne(t, compose, nil, map[string]string{"COMPOSE_PROFILES": chosen})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range containers {
			names = append(names, c.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("COMPOSE_PROFILES=%s runs %s, want %s", chosen, got, want)
		}
	}
}

// A relative bind is what it is in the vendor's folder: a file, a directory of files, or
// a place for data.
func TestRelativeBinds(t *testing.T) {
	t.Parallel()
	const compose = `services:
  web:
    image: i
    volumes:
      - ./conf/main.conf:/etc/main.conf:ro
      - ./conf:/etc/conf:ro
      - ./conf/other.conf:/etc/conf/main.conf
      - ./seed:/var/seed
      - ./data/db:/var/lib/db
      - "${WHERE:-./logs}:/logs"
  two: {image: i, volumes: ["./data/db:/db:ro"]}
`
	files := map[string]string{"conf/main.conf": "main", "conf/other.conf": "other", "conf/sub/x": "x", "seed/a": "a"}
	containers, warnings := imported(t, compose, files)
	file := func(target, content string) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountFile, Target: target, ReadOnly: true, Content: []byte(content)}
	}
	want := []protocol.Mount{
		{Kind: protocol.MountTmpfs, Target: "/etc/conf", ReadOnly: true},
		file("/etc/conf/main.conf", "other"), file("/etc/conf/other.conf", "other"), file("/etc/conf/sub/x", "x"), file("/etc/main.conf", "main"),
		{Kind: protocol.MountVolume, Target: "/logs", Source: "web_bind_logs"},
		{Kind: protocol.MountVolume, Target: "/var/lib/db", Source: "web_bind_data_db"},
		{Kind: protocol.MountVolume, Target: "/var/seed", Source: "web_bind_seed", Files: []protocol.File{{Path: "a", Content: []byte("a")}}},
	}
	if diff := cmp.Diff(want, containers[1].Mounts); diff != "" {
		t.Errorf("mounts of web (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]protocol.Mount{{Kind: protocol.MountVolume, Target: "/db", Source: "web_bind_data_db", ReadOnly: true}}, containers[0].Mounts); diff != "" {
		t.Errorf("mounts of two (-want +got):\n%s", diff)
	}
	for _, want := range []string{"/etc/conf/main.conf: the file", `/var/seed: "seed" is a volume of the deployment, which begins with the files`, `/logs: the archive has no "logs": it is a volume`} {
		if !strings.Contains(warnings, want) {
			t.Errorf("the warnings do not say %q:\n%s", want, warnings)
		}
	}
}

// A volume that stands for a relative path belongs to the user with a number that writes there, for
// each service that binds it.
func TestOwnerOfARelativeBind(t *testing.T) {
	t.Parallel()
	const compose = `services:
  a: {image: i, user: "0:5", volumes: ["./data:/data", "./mine:/mine"]}
  b: {image: i, user: "33", volumes: ["./data:/data:ro"]}
  c: {image: i, user: "1000:1001", volumes: ["./data/:/data", "./conf:/conf", "./conf/f:/f", "named:/named", "./web:/web:ro"]}
  d: {image: i, user: "2000", volumes: ["./data:/data", "./own:/own"]}
  e: {image: i, user: "node:3", volumes: ["./other:/other"]}
  f: {image: i, user: "7:staff", volumes: ["./seven:/seven"]}
  g: {image: i, user: "8", volumes: ["./none:/none"], volumes_from: [h, "i:ro"]}
  h: {image: i, volumes: ["./eight:/eight", "./mine:/none"]}
  i: {image: i, volumes: ["./nine:/nine"]}
volumes: {named: {}}
`
	containers, warnings := imported(t, compose, map[string]string{"conf/f": "x", "web/index.html": "x"})
	got := map[string]string{}
	for _, c := range containers {
		for _, m := range c.Mounts {
			got[c.Name+m.Target] = fmt.Sprintf("%s %d:%d", m.Kind, m.UID, m.GID)
		}
	}
	want := map[string]string{
		"a/data": "volume 1000:1001", "a/mine": "volume 0:0", "b/data": "volume 1000:1001", "c/data": "volume 1000:1001", "c/conf": "volume 1000:1001", "c/f": "file 0:0",
		"c/named": "volume 0:0", "c/web": "tmpfs 0:0", "c/web/index.html": "file 0:0", "d/data": "volume 1000:1001", "d/own": "volume 2000:0", "e/other": "volume 0:0", "f/seven": "volume 7:0",
		"g/none": "volume 8:0", "g/eight": "volume 8:0", "h/eight": "volume 8:0", "h/none": "volume 0:0", "g/nine": "volume 0:0", "i/nine": "volume 0:0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	for _, said := range []string{
		`services.d.volumes: /data: the archive has no "data": it is a volume of the deployment`,
		`services.d.volumes: /data: the volume belongs to user 1000 and group 1001, as whom service c runs; one that is there already keeps its owner`,
		`services.c.volumes: /conf: the volume belongs to user 1000 and group 1001, as whom service c runs; one that is there already keeps its owner`,
	} {
		if !strings.Contains(warnings, said) {
			t.Errorf("the warnings do not say %q:\n%s", said, warnings)
		}
	}
}

// A volume has one owner: the import says which services write to it as different users.
func TestUsersOfOneVolume(t *testing.T) {
	t.Parallel()
	const compose = `services:
  a: {image: i, user: "1000:1000", volumes: ["./share:/share", "named:/named", "mine:/mine", "./one.conf:/one.conf"]}
  b: {image: i, user: "472", volumes: ["./share/:/share", "named:/named:ro", "./one.conf:/one.conf"]}
  c: {image: i, user: "33", volumes: ["named:/srv"]}
  d: {image: i, user: "1000:5", volumes: ["named:/named", "./share:/share"]}
  e: {image: i, user: "0", volumes: ["named:/named", "./share:/share"]}
  f: {image: i, user: node, volumes: ["named:/named", "./share:/share"]}
  g: {image: i, user: "9", volumes_from: ["a"], volumes: ["other:/mine"]}
volumes: {named: {}, mine: {}, other: {}}
`
	_, warnings := imported(t, compose, map[string]string{"one.conf": "x"})
	var got []string
	for line := range strings.Lines(warnings) {
		if front, rest, ok := strings.Cut(line, " writes there as user "); ok {
			rest, _, _ = strings.Cut(rest, ":")
			got = append(got, strings.TrimSpace(front)+" "+rest)
		}
	}
	want := []string{
		"line 3: services.b.volumes: /share: service a 1000, and this one as user 472",
		"line 4: services.c.volumes: /srv: service a 1000, and this one as user 33",
		"line 8: services.g.volumes: /named: service a 1000, and this one as user 9",
		"line 8: services.g.volumes: /share: service a 1000, and this one as user 9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// Nothing can be made in a read-only volume for what is mounted in it: the container would not start.
func TestMountInAReadOnlyVolume(t *testing.T) {
	t.Parallel()
	const compose = `services:
  a:
    image: i
    volumes: ["named:/data:ro", "./one.conf:/data/one.conf", "other:/data/sub"]
    tmpfs: ["/data/sub/run"]
    secrets: [{source: key, target: /data/key}]
  b: {image: i, volumes: ["named:/data", "./one.conf:/data/one.conf", "./conf:/conf:ro", "other:/conf/sub", "/srv:/srv:ro", "other:/srv/sub", "named:/database:ro"]}
volumes: {named: {}, other: {}}
secrets: {key: {file: one.conf}}
`
	_, warnings := imported(t, compose, map[string]string{"one.conf": "x", "conf/f": "x"})
	var got []string
	for line := range strings.Lines(warnings) {
		if front, _, ok := strings.Cut(line, ", where nothing can be made for it"); ok {
			got = append(got, strings.TrimSpace(front))
		}
	}
	want := []string{
		"line 4: services.a.volumes: /data/key: it lies in the read-only volume at /data",
		"line 4: services.a.volumes: /data/one.conf: it lies in the read-only volume at /data",
		"line 4: services.a.volumes: /data/sub: it lies in the read-only volume at /data",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// What is missing in the archive is refused where the target is a file, and a volume elsewhere.
func TestMissingFileOfATarget(t *testing.T) {
	t.Parallel()
	for target, refused := range map[string]bool{
		"/etc/app/app.yaml": true, "/etc/caddy/Caddyfile": true, "/etc/nginx/.htpasswd": true, "/mosquitto/config/passwd": true,
		"/data": false, "/root/.config": false, "/home/node/.n8n": false, "/etc/nginx/conf.d": false, "/srv/example.com": false,
	} {
		_, _, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i\n    volumes: ['./data:"+target+"']\n", nil), nil)
		if got := err != nil && strings.Contains(err.Error(), "line 4: services.a.volumes: "+target+`: bind source "./data": the archive has no such file, and the target is one`); got != refused || !refused && err != nil {
			t.Errorf("%s: %v, want it refused: %t", target, err, refused)
		}
	}
}

// A file that can be executed in the archive can be in the container. Another one has no
// mode: specifications without such files stay as they were.
func TestExecuteBitIsKept(t *testing.T) {
	t.Parallel()
	const compose = `services:
  web:
    image: i
    volumes:
      - ./run.sh:/run.sh:ro
      - ./scripts:/scripts:ro
      - ./seed:/seed
    configs:
      - {source: start, target: /start.sh}
      - {source: start, target: /start.txt, mode: 0400}
configs:
  start: {file: ./run.sh}
`
	files := []entry{{name: "app/compose.yaml", body: compose}}
	for _, name := range []string{"run.sh", "scripts/a.sh", "seed/a.sh"} {
		files = append(files, entry{name: "app/" + name, body: "x", mode: 0o750})
	}
	for _, name := range []string{"scripts/b.conf", "seed/b.conf"} {
		files = append(files, entry{name: "app/" + name, body: "x", mode: 0o660})
	}
	component, _, err := CheckArchive("web", pack(t, files...), nil)
	if err != nil {
		t.Fatal(err)
	}
	file := func(target string, mode uint32) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountFile, Target: target, ReadOnly: true, Content: []byte("x"), Mode: mode}
	}
	want := []protocol.Mount{
		file("/run.sh", 0o555),
		{Kind: protocol.MountTmpfs, Target: "/scripts", ReadOnly: true},
		file("/scripts/a.sh", 0o555), file("/scripts/b.conf", 0),
		{Kind: protocol.MountVolume, Target: "/seed", Source: "web_bind_seed", Files: []protocol.File{
			{Path: "a.sh", Content: []byte("x"), Exec: true}, {Path: "b.conf", Content: []byte("x")},
		}},
		file("/start.sh", 0o555), file("/start.txt", 0o400),
	}
	if diff := cmp.Diff(want, component.Containers[0].Mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}
