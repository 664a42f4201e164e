package lint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/lint"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// shelf has one archive and any image.
type shelf []byte

func (s shelf) Archive(context.Context, string, string) ([]byte, protocol.Digest, error) {
	return s, protocol.DigestOf(s), nil
}

func (shelf) Image(_ context.Context, ref string) (string, error) {
	name, _, _ := strings.Cut(ref, "@")
	return name + "@" + string(protocol.DigestOf([]byte(ref))), nil
}

// A vendor draws a Compose file in two forms: with variables in the place of some values,
// and with the values themselves.
type vendor struct {
	*rapid.T
	values map[string]any // of the variables
}

// leaf draws one of several values, in both forms.
func (v vendor) leaf(label string, from ...any) (open, closed any) {
	value := rapid.SampledFrom(from).Draw(v.T, label)
	if rapid.IntRange(0, 2).Draw(v.T, label+" is a variable") > 0 {
		return value, value
	}
	name := fmt.Sprintf("V%d", len(v.values))
	v.values[name] = fmt.Sprint(value)
	return "${" + name + "}", value
}

// enough is from how many packages on each sort must be among them. With fewer (-rapid.checks) it is
// chance.
const enough = 500

// pool has values for each key of a service, good ones and bad ones.
var pool = map[string][]any{
	"image": {"r.example/a:1", "r.example/b@sha256:" + strings.Repeat("a", 64), "A:1", "a b"}, "hostname": {"h", "", "a b"}, "user": {"1000", "me", "-1"},
	"working_dir": {"/w", "w"}, "restart": {"always", "no", "on-failure:3", "sometimes"}, "network_mode": {"host", "none", "bridge", "bridg"},
	"privileged": {true, false}, "read_only": {true}, "mem_limit": {"64m", "0", "-1", "much", "1m"}, "cpus": {0.5, 0, -1}, "pids_limit": {10, -5},
	"stop_signal": {"SIGTERM", "SIGNONE"}, "stop_grace_period": {"5s", "0s", "-1s", "5", "200h"}, "container_name": {"web", "a b"}, "build": {"."}, "scale": {1, 2},
	"pull_policy": {"always", "never"}, "ipc": {"host"}, "domainname": {"d"},
}

// lists has items for each list of a service.
var lists = map[string][]any{
	"ports":       {"8080:80", "127.0.0.1:8081:81/udp", "80", "8082-8083:82-83", "x:1", "70000:1", "[::1]:8084:84", "8080:81"},
	"volumes":     {"data:/data", "/etc:/host:ro", "./conf:/conf:ro", "./none:/none", "../up:/up", "x:/x", "/a:relative", "none:/x", "./prometheus.yml:/p.yml"},
	"environment": {"A=1", "B"}, "cap_add": {"NET_ADMIN", "NET_ADMINN"}, "devices": {"/dev/null:/dev/null", "/dev/null:x", "null"},
	"tmpfs": {"/tmp", "/run:size=1m", "run", "/x:nope"}, "env_file": {"app.env", "none.env", "../x.env"}, "extra_hosts": {"a:10.0.0.1", "a:host-gateway", "a"},
	"dns": {"10.0.0.1", "x"}, "expose": {"80", "x"}, "group_add": {"audio", "-1"}, "depends_on": {"s0", "s1", "none"}, "command": {"run", ""}, "profiles": {"debug"},
}

func (v vendor) service() (open, closed map[string]any) {
	open, closed = map[string]any{}, map[string]any{}
	open["image"], closed["image"] = "r.example/web:1", "r.example/web:1"
	for range rapid.IntRange(0, 3).Draw(v.T, "keys") {
		key := rapid.SampledFrom([]string{
			"image", "hostname", "user", "working_dir", "restart", "network_mode", "privileged", "read_only", "mem_limit", "cpus", "pids_limit",
			"stop_signal", "stop_grace_period", "container_name", "build", "scale", "pull_policy", "ipc", "domainname",
		}).Draw(v.T, "key")
		open[key], closed[key] = v.leaf(key, pool[key]...)
	}
	if rapid.IntRange(0, 3).Draw(v.T, "checked") == 0 {
		open["healthcheck"], closed["healthcheck"] = v.mapping(map[string][]any{
			"test": {"curl -f localhost", "NONE"}, "interval": {"5s", "0s", "soon"}, "retries": {3, 0, -1}, "start_period": {"1m"}, "disable": {true, false},
		})
	}
	if rapid.IntRange(0, 3).Draw(v.T, "limited") == 0 {
		a, b := v.mapping(map[string][]any{"cpus": {"0.5", "0", "x"}, "memory": {"64M", "none"}, "pids": {5, -3}})
		open["deploy"] = map[string]any{"resources": map[string]any{"limits": a}}
		closed["deploy"] = map[string]any{"resources": map[string]any{"limits": b}}
	}
	for range rapid.IntRange(0, 2).Draw(v.T, "lists") {
		key := rapid.SampledFrom([]string{
			"ports", "volumes", "environment", "cap_add", "devices", "tmpfs", "env_file", "extra_hosts", "dns", "expose", "group_add", "depends_on", "command", "profiles",
		}).Draw(v.T, "list")
		var a, b []any
		for range rapid.IntRange(1, 2).Draw(v.T, "items") {
			x, y := any(nil), any(nil)
			if x, y = v.leaf(key, lists[key]...); key == "profiles" {
				x = y // a variable here decides at the deployment whether the service is judged
			}
			a, b = append(a, x), append(b, y)
		}
		open[key], closed[key] = a, b
	}
	return open, closed
}

// mapping draws some keys of a mapping.
func (v vendor) mapping(from map[string][]any) (open, closed map[string]any) {
	open, closed = map[string]any{}, map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if rapid.Bool().Draw(v.T, key+" is there") {
			open[key], closed[key] = v.leaf(key, from[key]...)
		}
	}
	return open, closed
}

func (v vendor) file() (open, closed string) {
	a, b := map[string]any{}, map[string]any{}
	for i := range rapid.IntRange(1, 2).Draw(v.T, "services") {
		name := fmt.Sprintf("s%d", i)
		a[name], b[name] = v.service()
	}
	volumes := map[string]any{"data": map[string]any{}}
	text := func(services map[string]any) string {
		out, err := json.MarshalIndent(map[string]any{"services": services, "volumes": volumes}, "", " ")
		if err != nil {
			v.Fatal(err)
		}
		return string(out)
	}
	return text(a), text(b)
}

// packed is a package with one component and a parameter for each variable, with its value
// as the default or without one.
func packed(compose string, values map[string]any, defaults bool) fstest.MapFS {
	doc := strings.Replace(application, "    application: {descriptionFile: ./resources/description.md}\n", "", 1)
	doc = doc[:strings.Index(doc, "parameters:")]
	if len(values) > 0 {
		doc += "parameters:\n"
	}
	for i := range len(values) {
		value := ""
		if defaults {
			value = fmt.Sprintf("value: %q, ", fmt.Sprint(values[fmt.Sprintf("V%d", i)]))
		}
		doc += fmt.Sprintf("  V%d: {%stargets: [{pointer: V%d, components: [web]}]}\n", i, value, i)
	}
	root := fstest.MapFS{}
	for name, content := range map[string]string{
		"margo.yaml": doc, "components/web/compose.yaml": compose, "components/web/app.env": "X=1\n", "components/web/conf/a": "a",
	} {
		root[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o644}
	}
	return root
}

// judge returns what the lint refuses, which is what an import refuses, and what it warns of.
func judge(t *rapid.T, pkg fstest.MapFS) (refused, warned []string) {
	result, err := lint.Folder(pkg, "docker.io", "r.example") // which the images are of
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range result.Findings {
		if f.Warning {
			warned = append(warned, f.String())
		} else {
			refused = append(refused, f.String())
		}
	}
	return refused, warned
}

// compiled compiles the component of a package with values of its parameters.
func compiled(t *rapid.T, pkg fstest.MapFS, values map[string]any) error {
	app, err := v1rc3.ParseApplication(pkg["margo.yaml"].Data)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := pkg.Sub("components/web")
	if err != nil {
		t.Fatal(err)
	}
	tgz, err := archive.Build("web", sub)
	if err != nil {
		t.Fatal(err)
	}
	target := intent.Target{ID: "9f3c2d1e-0000-4000-8000-000000000001", Site: "plant", Name: "hello"}
	d, err := intent.Create(app, target, intent.Request{Parameters: values})
	if err != nil {
		t.Fatalf("%v\n%s", err, pkg["margo.yaml"].Data)
	}
	_, _, err = compiler.Compile(t.Context(), d, shelf(tgz))
	if err != nil && protocol.KindOf(err) != protocol.Invalid {
		t.Fatalf("the compiler's error is not of kind invalid: %v", err)
	}
	return err
}

// What the import accepts compiles, unless a value that it could not know stands against
// it; and what it refuses would not compile with any value. Each package is judged with
// variables, compiled with the values of a deployment, and judged once more with these
// values in its Compose file.
func TestWhatIsAcceptedCompiles(t *testing.T) {
	t.Parallel()
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		v := vendor{t, map[string]any{}}
		open, closed := v.file()
		pkg := packed(open, v.values, false)
		atImport, _ := judge(t, pkg)
		literal, _ := judge(t, packed(closed, nil, false))
		err := compiled(t, pkg, v.values)
		say := func(what string) {
			t.Fatalf("%s\nimport: %v\nwith these values: %v\ncompiler: %v\nvalues: %v\n%s", what, atImport, literal, err, v.values, open)
		}
		switch {
		case err != nil && len(literal) == 0:
			say("the import accepts with these values what does not compile with them")
		case err == nil && len(literal) > 0:
			say("the import refuses with these values what compiles with them")
		case err == nil && len(atImport) > 0:
			say("the import refuses what compiles")
		case err != nil && len(atImport) == 0 && len(v.values) == 0:
			say("the import accepts what does not compile")
		case err == nil:
			accepted++
		default:
			refused++
		}
	})
	if accepted+refused >= enough && (accepted == 0 || refused == 0) {
		t.Errorf("%d packages compile, %d do not: the test draws one kind only", accepted, refused)
	}
}

// What the import accepts compiles with the defaults of its parameters, unless it warned that
// a deployment must give a value; and what it refuses does not.
func TestWhatIsAcceptedCompilesWithItsDefaults(t *testing.T) {
	t.Parallel()
	accepted, refused, warned := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		v := vendor{t, map[string]any{}}
		open, _ := v.file()
		for _, name := range slices.Sorted(maps.Keys(v.values)) {
			if rapid.IntRange(0, 2).Draw(t, name+" is empty") == 0 {
				v.values[name] = ""
			}
		}
		pkg := packed(open, v.values, true)
		problems, warnings := judge(t, pkg)
		must := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "; so it is where a deployment gives no value") })
		err := compiled(t, pkg, nil)
		say := func(what string) {
			t.Fatalf("%s\nimport: %v\nwarnings: %v\ncompiler: %v\ndefaults: %v\n%s", what, problems, warnings, err, v.values, open)
		}
		switch {
		case err != nil && len(problems) == 0 && !must:
			say("the import accepts what does not compile with the defaults")
		case err == nil && len(problems) > 0:
			say("the import refuses what compiles with the defaults")
		case err == nil && must:
			say("the import warns that a value is needed, and none is")
		case err == nil:
			accepted++
		case len(problems) > 0:
			refused++
		default:
			warned++
		}
	})
	if accepted+refused+warned >= enough && (accepted == 0 || refused == 0 || warned == 0) {
		t.Errorf("%d packages compile, %d are refused, %d need a value: the test draws too few sorts", accepted, refused, warned)
	}
}

// Health says that every image has a check.
func (shelf) Health(context.Context, string) (*protocol.Health, error) {
	return &protocol.Health{Command: []string{"true"}, Retries: 7}, nil
}
