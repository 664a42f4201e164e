package semantics

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settleTime bounds the wait of a file without a key for something to happen: most have
// settled long before. What comes later does not count as the work of the key's absence.
const settleTime = 20 * time.Second

// A trial is a file to deploy, and what to find out about it.
type trial struct {
	name     string
	scenario scenario
	judge    func(t *testing.T, d *deployed)
}

// run deploys the trials, so many at a time, and judges each.
func run(t *testing.T, n *node, list []trial, batch int) {
	t.Helper()
	number := 0
	for trials := range slices.Chunk(list, batch) {
		running := make([]*deployed, len(trials))
		errs := make([]error, len(trials))
		for i, trial := range trials {
			number++
			running[i], errs[i] = n.deploy(protocol.DeploymentName(fmt.Sprintf("s%d", number)), trial.scenario.compose, trial.scenario.files)
		}
		for i, trial := range trials {
			t.Run(trial.name, func(t *testing.T) {
				if errs[i] != nil {
					t.Fatal(errs[i])
				}
				trial.judge(t, running[i])
			})
		}
		for _, d := range running {
			if d == nil {
				continue
			}
			if err := d.remove(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Each supported key does on real containers what the list of keys says.
func TestKeys(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.95.0.0/16")
	var list []trial
	for _, s := range scenarios(t) {
		list = append(list, trial{s.name, s, func(t *testing.T, d *deployed) {
			await(t, func() error { return s.check(d) })
		}})
	}
	run(t, n, list, 24)
}

// mutants is the environment variable that has every key left out in turn: 1. Without it
// this is done for every tenth key.
const mutants = "COLONY_SEMANTICS_MUTANTS"

// Without a key the check of its scenario fails, so that it shows what the key does.
func TestWithoutAKeyItsScenarioFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.96.0.0/16")
	var list []trial
	number := 0
	for _, s := range scenarios(t) {
		for _, key := range s.keys {
			if number++; os.Getenv(mutants) == "" && number%10 != 0 {
				continue
			}
			mutant := s
			mutant.compose = without(t, s.compose, key)
			if _, err := n.compile("mutant", mutant.compose, s.files); err != nil {
				continue // it is not even a deployment
			}
			list = append(list, trial{s.name + " without " + key, mutant, func(t *testing.T, d *deployed) {
				if err := poll(t, settleTime, d.settled, func() error { return s.check(d) }); err == nil {
					t.Errorf("the check passes without the key:\n%s", mutant.compose)
				}
			}})
		}
	}
	run(t, n, list, 1) // so that each has settleTime, and no more
}

var index = regexp.MustCompile(`\[(\d+)\]`)

// without returns a document without the value at a path such as a.b[0].c.
func without(t *testing.T, compose, path string) string {
	t.Helper()
	var document any
	if err := yaml.Unmarshal([]byte(compose), &document); err != nil {
		t.Fatal(err)
	}
	at := document
	parts := strings.Split(index.ReplaceAllString(path, ".$1"), ".")
	for i, part := range parts {
		last := i == len(parts)-1
		switch v := at.(type) {
		case map[string]any:
			if _, ok := v[part]; !ok {
				t.Fatalf("%s is not in\n%s", path, compose)
			}
			if last {
				delete(v, part)
			}
			at = v[part]
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n >= len(v) || last {
				t.Fatalf("%s is not in\n%s", path, compose)
			}
			at = v[n]
		}
	}
	b, err := yaml.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// named are the keys below which the author chooses names.
var named = []string{"services", "depends_on", "networks", "volumes", "configs", "secrets", "ulimits"}

// pattern returns a path in a document as it stands in the list of keys.
func pattern(path string) string {
	parts := strings.Split(index.ReplaceAllString(path, "[]"), ".")
	for i := 1; i < len(parts); i++ {
		if slices.Contains(named, parts[i-1]) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// idle is a file with the keys that change nothing on a node.
const idle = `name: x
version: "3"
services:
  a:
    image: tools
    expose: [80]
    attach: false
    pull_policy: always
    logging: {driver: json-file, options: {max-size: 1m}}
    deploy: {mode: replicated, labels: {x: y}, restart_policy: {condition: none, delay: 1s, window: 1s}}
    develop: {watch: []}
    pull_refresh_after: 1h
    userns_mode: host
    gpus: [{capabilities: [gpu]}]
    volumes:
      - {type: bind, source: /srv, target: /srv, consistency: cached, bind: {create_host_path: true, selinux: z, propagation: rslave}}
      - {type: volume, source: v, target: /v, volume: {labels: {x: y}}}
    networks: {default: {ipv6_address: "fd00::1"}, n: {priority: 1, gw_priority: 1}}
    ports: [{target: 1, published: "1", mode: host, name: p, app_protocol: http}]
volumes: {v: {driver: local, name: w, external: false, labels: {x: y}}}
networks:
  n: {driver: bridge, name: m, external: false, attachable: true, enable_ipv6: true, ipam: {driver: default, options: {x: y}, config: [{gateway: 10.0.0.1, ip_range: 10.0.0.0/24, aux_addresses: {h: 10.0.0.2}}]}, labels: {x: y}, enable_ipv4: true, driver_opts: {x: y}}
configs: {c: {content: x, name: y, labels: {x: y}}}
secrets: {s: {file: x, name: y, labels: {x: y}}}
`

// idleKeys are those of idle.
var idleKeys = []string{
	"name", "version", "services.a.expose", "services.a.attach", "services.a.pull_policy", "services.a.logging", "services.a.logging.driver",
	"services.a.logging.options", "services.a.deploy.mode", "services.a.userns_mode", "services.a.gpus[0].capabilities",
	"services.a.volumes[0].consistency", "services.a.volumes[0].bind", "services.a.volumes[0].bind.create_host_path", "services.a.volumes[0].bind.selinux", "services.a.volumes[0].bind.propagation",
	"services.a.networks", "services.a.networks.n", "services.a.networks.default.ipv6_address", "services.a.ports[0].mode",
	"services.a.deploy.labels", "services.a.deploy.restart_policy.delay", "services.a.deploy.restart_policy.window", "services.a.develop", "services.a.pull_refresh_after",
	"services.a.volumes[1].volume.labels", "services.a.networks.n.priority", "services.a.networks.n.gw_priority", "services.a.ports[0].name", "services.a.ports[0].app_protocol",
	"networks.n.enable_ipv4", "networks.n.driver_opts", "configs.c.name", "configs.c.labels", "secrets.s.name", "secrets.s.labels",
	"volumes.v.driver", "volumes.v.name", "volumes.v.external", "volumes.v.labels",
	"networks.n.driver", "networks.n.name", "networks.n.external", "networks.n.attachable", "networks.n.enable_ipv6", "networks.n.ipam", "networks.n.labels", "networks.n.ipam.driver", "networks.n.ipam.options",
	"networks.n.ipam.config[0].gateway", "networks.n.ipam.config[0].ip_range", "networks.n.ipam.config[0].aux_addresses",
}

// updated are the keys that TestDependenciesThatRestart shows.
var updated = []string{"services.*.depends_on.*.restart"}

// The keys that the list says change nothing change nothing: with and without them the
// deployment is the same.
func TestIdleKeys(t *testing.T) {
	t.Parallel()
	n := &node{images: map[string]string{"tools": "r/tools@sha256:" + strings.Repeat("ab", 32)}}
	compiled := func(compose string) string {
		spec, err := n.compile("x", compose, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(protocol.DigestOf(protocol.Marshal(spec)))
	}
	want := compiled(idle)
	for _, key := range idleKeys {
		if compiled(without(t, idle, key)) != want {
			t.Errorf("%s changes the deployment", key)
		}
	}
}

// coverage returns the scenario that shows each supported key.
func coverage(t *testing.T) map[string]string {
	t.Helper()
	shown := map[string]string{}
	add := func(key, name string) {
		if shown[key] == "" {
			shown[key] = name
		}
	}
	for _, s := range scenarios(t) {
		for _, key := range s.keys {
			add(pattern(key), s.name)
		}
	}
	for _, key := range updated {
		add(key, "dependencies that restart")
	}
	for _, key := range idleKeys {
		add(pattern(key), "changes nothing")
	}
	// A key is shown by those below it.
	for _, key := range slices.Sorted(maps.Keys(shown)) {
		for at := strings.LastIndexAny(key, ".["); at > 0; at = strings.LastIndexAny(key[:at], ".[") {
			add(key[:at], shown[key])
		}
	}
	return shown
}

// Every supported key has a scenario, and the table in the documentation names it.
func TestEveryKeyHasAScenario(t *testing.T) {
	t.Parallel()
	shown := coverage(t)
	var rows strings.Builder
	for _, key := range slices.Sorted(maps.Keys(composefile.Keys)) {
		if shown[key] == "" {
			t.Errorf("the key %s has no scenario: add one to scenarios", key)
		}
		fmt.Fprintf(&rows, "| `%s` | %s |\n", key, shown[key])
		delete(shown, key)
	}
	for key, name := range shown {
		if !strings.HasSuffix(key, "[]") {
			t.Errorf("the scenario %q shows %s, which is no supported key", name, key)
		}
	}
	doctable.Table{
		Doc: "../../docs/compose.md", Name: "scenarios", Content: "| key | scenario |\n|---|---|\n" + rows.String(), Command: "UPDATE=1 go test ./e2e/semantics -run TestEveryKey",
	}.Check(t, os.Getenv("UPDATE") != "")
}
