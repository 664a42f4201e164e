package compiler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func TestNamesOfImagesAreCheckedAtImport(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"nginx":                       "",
		"ghcr.io/acme/web:1.2":        "",
		"localhost:5000/a/b":          "",
		"${REPO}/web:${TAG}":          "",
		"a@sha256:${DIGEST}":          "",
		"Acme/Web":                    `line 2: services.web.image: "Acme/Web" is no name of an image`,
		"web:":                        "is no name of an image",
		"https://ghcr.io/acme/web":    "is no name of an image",
		"web:1.2 ":                    "is no name of an image",
		"a@sha256:0123":               "is no name of an image",
		"web:${UNSET}":                "is no name of an image",
		"web@sha256:" + imageDigest:   "",
		"web:1@sha256:" + imageDigest: "",
	} {
		compose := fmt.Sprintf("services:\n  web: {image: %q}\n", image)
		_, _, err := CheckArchive("web", composeArchive(t, compose, nil), open("REPO", "TAG", "DIGEST"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", image, err, want)
		}
	}
}

// Two components of a profile that cannot run beside each other are found at import.
func TestClashesBetweenComponentsAreKnownAtImport(t *testing.T) {
	t.Parallel()
	part := func(name, service string) protocol.Component {
		c, _, err := CheckArchive(name, composeArchive(t, "services:\n  "+service, nil), open("PORT"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, c := range map[string]struct{ a, b, want string }{
		"name":      {"web: {image: i}", "web: {image: i}", "share the name web"},
		"alias":     {"web: {image: i}", "b: {image: i, container_name: web}", "share the name web"},
		"port":      {"a: {image: i, ports: ['80:80']}", "b: {image: i, ports: ['80:81']}", "port 80 of the node is published twice"},
		"parameter": {"a: {image: i, ports: ['${PORT}:80']}", "b: {image: i, ports: ['80:81']}", ""},
		"addresses": {"a: {image: i, ports: ['10.0.0.1:80:80']}", "b: {image: i, ports: ['10.0.0.2:80:81']}", ""},
		"nothing":   {"a: {image: i}", "b: {image: i}", ""},
	} {
		err := CheckShared([]protocol.Component{part("one", c.a), part("two", c.b)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// values are what a generated service may say, by key; right and wrong ones.
var values = map[string][]string{
	"image":             {"i", "reg.example/a:1", "I", "${IMG}", "a@sha256:${IMG}", "x:${TAG:-1}", "''"},
	"command":           {"[a, b]", "a 'b c'", "[]", "'${IMG}'", "a 'b"},
	"environment":       {"{A: 1}", "[A=1, B]", "{A: '${IMG}'}", "[A]", "{A: }"},
	"env_file":          {"a.env", "[b.env]", "[{path: b.env, required: false}]", "../x"},
	"ports":             {"['80:80']", "['80:80/udp', '81:81']", "['80']", "['8000-8001:8000-8001']", "['[::1]:1:1']", "[{target: 1, published: '2'}]", "['99999:1']", "[80]", "['127.0.0.1:80:80']", "['0:1']", "['a:b']"},
	"volumes":           {"['data:/d']", "['/a:/b:ro']", "['./a:/b']", "['data:/d:z']", "['data:d']", "['/d']", "[{type: tmpfs, target: /t}]", "['data:/d', 'data:/d']", "[{type: bind, source: /x, target: /y}]", "['nope:/x']"},
	"tmpfs":             {"/t", "['/t:size=1m']", "['/t:mode=1777']", "t"},
	"configs":           {"[c]", "[{source: c, target: /x, mode: 0440}]", "[d]", "[{source: c, mode: 99999}]"},
	"devices":           {"['/dev/a']", "['/dev/a:/dev/b:rw']", "['/dev/a:/dev/b:q']", "[vendor.com/gpu=all]"},
	"gpus":              {"all", "[{count: 1}]", "[{count: all, device_ids: [a]}]", "[{driver: cdi, device_ids: [a]}]", "[{driver: x}]", "[{count: -2}]"},
	"restart":           {"always", "'no'", "on-failure:3", "sometimes", "unless-stopped", "always:3"},
	"healthcheck":       {"{test: a}", "{test: [CMD, a], interval: 1s}", "{disable: true}", "{interval: 1s}", "{test: [NONE]}", "{test: a, retries: 0}", "{test: [a]}"},
	"x-colony-health":   {"{port: 1}", "{http: /x, port: 80}", "{port: 0}", "{port: 1, x: 2}"},
	"depends_on":        {"[b]", "{b: {condition: service_healthy}}", "{b: {condition: service_completed_successfully}}", "[nobody]", "[a]"},
	"network_mode":      {"host", "none", "bridge", "'service:b'"},
	"networks":          {"[default]", "{default: {aliases: [x]}}", "[other]", "[nobody]"},
	"cap_add":           {"[NET_ADMIN]", "[NONSENSE]"},
	"stop_signal":       {"SIGINT", "SIGNONE", "9"},
	"stop_grace_period": {"1s", "0s", "-1s", "x"},
	"deploy":            {"{replicas: 1}", "{replicas: 2}", "{resources: {limits: {cpus: '0.5', memory: 1g}}}", "{restart_policy: {condition: any}}", "{restart_policy: {condition: none, max_attempts: 3}}"},
	"mem_limit":         {"1g", "-1", "x", "64m"},
	"cpus":              {"0.5", "'-1'", "2"},
	"extra_hosts":       {"['a=10.0.0.1']", "['a:gateway']", "['a=b']"},
	"hostname":          {"h", "'${IMG}'"},
	"container_name":    {"a", "b", "c"},
	"user":              {"root", "'1:1'"},
	"labels":            {"{a: b}", "[a=b]"},
	"sysctls":           {"{a: 1}", "[a=1]"},
	"read_only":         {"true", "'${IMG}'"},
	"working_dir":       {"/w", "w"},
}

// generate writes a compose.yaml of one to three services with values of all kinds.
func generate(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, name := range []string{"a", "b", "c"}[:1+r.IntN(3)] {
		fmt.Fprintf(&b, "  %s:\n", name)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			choices := values[key]
			switch {
			case key == "image" && r.IntN(12) > 0:
				fmt.Fprintf(&b, "    image: %s\n", choices[r.IntN(2)])
			case key == "image" || r.IntN(16) == 0:
				fmt.Fprintf(&b, "    %s: %s\n", key, choices[r.IntN(len(choices))])
			}
		}
	}
	b.WriteString("volumes: {data: }\nnetworks: {other: }\nconfigs: {c: {content: x}, d: {file: ./missing}}\n")
	return b.String()
}

// What an import accepts a deployment compiles, where no reason not to comes from the
// values of parameters.
func TestWhatImportsCompiles(t *testing.T) {
	t.Parallel()
	documents := 600
	if testing.Short() {
		documents = 300
	}
	accepted := 0
	for seed := range uint64(documents) {
		r := rand.New(rand.NewPCG(seed, 16))
		compose := generate(r)
		tgz := composeArchive(t, compose, map[string]string{"a.env": "X=1\n"})
		if _, _, err := CheckArchive("web", tgz, open("IMG")); err != nil {
			if protocol.KindOf(err) != protocol.Invalid {
				t.Fatalf("seed %d: kind %s: %v", seed, protocol.KindOf(err), err)
			}
			continue
		}
		accepted++
		d := deployment("web")
		value := "true"
		if strings.Contains(compose, "sha256:${IMG}") {
			value = imageDigest
		}
		d.Spec.Parameters["img"] = v1rc3.Parameter{Value: value, Targets: []v1rc3.Target{{Pointer: "IMG", Components: []string{"web"}}}}
		if _, _, err := Compile(t.Context(), d, &shelf{archives: map[string][]byte{"oci://r/web": tgz}}); err != nil {
			if value == imageDigest && strings.Contains(err.Error(), "read_only") {
				continue // a digest is no truth value: the parameter's fault
			}
			t.Errorf("seed %d was imported and does not compile: %v\n%s", seed, err, compose)
		}
	}
	if accepted < documents/20 {
		t.Errorf("%d of %d documents were accepted: too few to show anything", accepted, documents)
	}
}

// A value that a deployment will say is no reason to refuse a package before.
func TestImportOfOpenValues(t *testing.T) {
	t.Parallel()
	for name, service := range map[string]string{
		"container_name":                    "container_name: '${V}'",
		"disable":                           "healthcheck: {disable: '${V}'}",
		"limits that a value settles":       "deploy: {resources: {limits: {cpus: 0.5, memory: '${V}'}}}\n    mem_limit: 64m",
		"reservation that a value settles":  "deploy: {resources: {reservations: {cpus: '0.5', memory: '${V}'}}}\n    mem_reservation: 64m",
		"limit of processes, and of cores":  "deploy: {resources: {limits: {memory: 64m, pids: '${V}', cpus: '${V}'}}}\n    pids_limit: 4\n    cpus: 1",
		"number of containers of a service": "deploy: {replicas: '${V}'}\n    scale: 2",
		"disabled rest":                     "healthcheck: {disable: '${V}', interval: 0s}",
	} {
		tgz := composeArchive(t, "services:\n  web:\n    image: i:1\n    "+service+"\n", nil)
		if _, _, err := CheckArchive("app", tgz, open("V")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
