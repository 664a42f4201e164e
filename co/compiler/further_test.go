package compiler

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/colonyfleet/colony/protocol"
)

// further is a file with the keys of mounts, swap, ports and replicas.
const further = `services:
  web:
    image: i
    scale: 3
    ports: ['80', {target: 81, protocol: udp}]
    mem_limit: 64m
    memswap_limit: -1
    volumes: ['data:/data:nocopy', 'node:/node', {type: volume, source: data, target: /part, volume: {subpath: ./a/b/}}, {type: tmpfs, target: /long, tmpfs: {mode: 0o700}}]
    tmpfs: ['/short:mode=1750,noexec,size=16m']
    configs: [motd]
    networks: [front, back]
  worker:
    image: i
    depends_on: [web]
    volumes_from: ['web:ro']
    volumes: ['own:/data']
    networks: [back]
  db:
    image: i
    networks: {alone: {aliases: [store]}}
  cache:
    image: i
    networks: {alone: {aliases: [store]}}
volumes:
  data:
  own:
  node: {driver_opts: {type: none, o: 'bind,ro', device: /srv/}}
networks:
  front:
  back: {internal: true}
  alone:
configs:
  motd: {environment: MOTD}
`

func TestFurtherKeys(t *testing.T) {
	t.Parallel()
	got, err := compileOne(t, further, nil, map[string]string{"MOTD": "hello"})
	if err != nil {
		t.Fatal(err)
	}
	web := protocol.Container{
		Name: "web", Ports: []protocol.Port{{Container: 80}, {Container: 81, Protocol: "udp"}},
		Limits: protocol.Limits{MemoryBytes: 64 << 20, MemorySwapBytes: protocol.UnlimitedSwap},
		Mounts: []protocol.Mount{
			{Kind: protocol.MountVolume, Source: "web_data", Target: "/data", NoCopy: true},
			{Kind: protocol.MountTmpfs, Target: "/long", Mode: 0o700},
			{Kind: protocol.MountFile, Target: "/motd", ReadOnly: true, Content: []byte("hello")},
			{Kind: protocol.MountBind, Source: "/srv", Target: "/node", ReadOnly: true},
			{Kind: protocol.MountVolume, Source: "web_data", Target: "/part", Subpath: "a/b"},
			{Kind: protocol.MountTmpfs, Target: "/short", Mode: 0o1750, NoExec: true, Size: 16 << 20},
		},
		Networks: []protocol.Attachment{{Network: "back", Internal: true}, {Network: "front"}},
	}
	second, third := web, web
	second.Name, second.Aliases = "web-2", []string{"web"}
	third.Name, third.Aliases = "web-3", []string{"web"}
	alone := []protocol.Attachment{{Network: "alone"}}
	want := []protocol.Container{
		{Name: "cache", Aliases: []string{"store"}, Networks: alone},
		{Name: "db", Aliases: []string{"store"}, Networks: alone},
		web, second, third,
		{
			Name: "worker", DependsOn: []protocol.Dependency{{Container: "web"}, {Container: "web-2"}, {Container: "web-3"}},
			Mounts: []protocol.Mount{
				{Kind: protocol.MountVolume, Source: "web_own", Target: "/data"},
				{Kind: protocol.MountTmpfs, Target: "/long", Mode: 0o700, ReadOnly: true},
				{Kind: protocol.MountBind, Source: "/srv", Target: "/node", ReadOnly: true},
				{Kind: protocol.MountVolume, Source: "web_data", Target: "/part", ReadOnly: true, Subpath: "a/b"},
			},
			Networks: web.Networks[:1],
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(protocol.Container{}, "Image"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	_, warnings, err := CheckArchive("web", composeArchive(t, further, nil), open("MOTD"))
	if err != nil || !slices.ContainsFunc(warnings, func(w string) bool {
		return strings.Contains(w, "services.worker.volumes_from: a volume that the image of web declares")
	}) {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	const taken = "services: {web: {image: i, scale: 2}, web-2: {image: i}}"
	if _, err := compileOne(t, taken, nil, nil); err == nil || !strings.Contains(err.Error(), "its replica 2 has the name of the service web-2") {
		t.Errorf("a name that is taken: %v", err)
	}
}

// The check that an image declares is read where the file has none of its own and needs it.
func TestCheckOfTheImage(t *testing.T) {
	t.Parallel()
	const file = `services:
  web: {image: i, depends_on: {db: {condition: service_healthy}}}
  db: {image: i}
  other: {image: i}
  times: {image: i, healthcheck: {interval: 5s, retries: 2}}
  own: {image: i, healthcheck: {test: x}}
`
	got, err := compileOne(t, file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	health := map[string]*protocol.Health{}
	for _, c := range got {
		health[c.Name] = c.Health
	}
	want := map[string]*protocol.Health{
		"web": nil, "other": nil, "db": {Command: []string{"true"}, Retries: 7}, "own": {Command: []string{"/bin/sh", "-c", "x"}},
		"times": {Command: []string{"true"}, IntervalMillis: 5000, Retries: 2},
	}
	if diff := cmp.Diff(want, health); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
	_, err = compileOne(t, strings.ReplaceAll(file, "db: {image: i}", "db: {image: 'unchecked:1'}"), nil, nil)
	if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "services.db.healthcheck: its image") {
		t.Errorf("an image without a check: %v", err)
	}
}

// Compose has an alias on its network only, a node on all networks of the service.
func TestAliasesOfSeveralNetworks(t *testing.T) {
	t.Parallel()
	const tail = "\nnetworks: {front: {}, back: {}, far: {}}\n"
	on := func(networks string) string { return "{image: i, networks: " + networks + "}\n" }
	for name, c := range map[string]struct{ services, refused, warned string }{
		"two services, and one that finds both": {
			"  a: " + on("{front: {}, back: {aliases: [db]}}") + "  b: " + on("{front: {aliases: [db]}}") + "  web: " + on("[front]"),
			`line 2: services.a.networks.back.aliases: "db" is an alias of b as well, on another network; a service answers to its aliases on all of its networks, so that b would find both: give them different`, "",
		},
		"on one bridge": {
			"  a: " + on("{default: {}, back: {aliases: [db]}}") + "  b: " + on("{default: {aliases: [db]}}"), "services.a.networks.back.aliases: \"db\" is an alias of b", "",
		},
		"kept apart":          {"  a: " + on("{back: {aliases: [db]}}") + "  b: " + on("{front: {aliases: [db]}}") + "  web: " + on("[front]"), "", ""},
		"on both of a client": {"  a: " + on("{back: {aliases: [db]}}") + "  b: " + on("{front: {aliases: [db]}}") + "  web: " + on("[front, back]"), "", ""},
		"on one network":      {"  a: " + on("{back: {aliases: [db]}}") + "  b: " + on("{back: {aliases: [db]}}") + "  web: " + on("[back]"), "", ""},
		"one service": {
			"  a: " + on("{front: {}, back: {aliases: [db]}}") + "  b: " + on("[back]") + "  web: " + on("[front]"),
			"", `line 2: services.a.networks.back.aliases: a service answers to its aliases on all of its networks: web finds it as "db", too`,
		},
		"networks of a parameter": {"  a: " + on("{default: {}, back: {aliases: [db]}}") + "  b: " + on("{default: {aliases: [db]}}") + "  web: " + on("['${V}']"), "", ""},
	} {
		_, warnings, err := CheckArchive("web", composeArchive(t, "services:\n"+c.services+tail, nil), open("V"))
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: error %v, want %q", name, err, c.refused)
		}
		if got := strings.Join(warnings, "\n"); err == nil && got != c.warned {
			t.Errorf("%s: warnings %q, want %q", name, got, c.warned)
		}
	}
}
