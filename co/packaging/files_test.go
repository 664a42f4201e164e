package packaging_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/lint"
	"github.com/colonyfleet/colony/co/packaging"
)

// project is one as an integrator has it: an override file, files for a place, and files that
// are included and extended.
var project = map[string]string{
	"docker-compose.yml": `
include:
  - monitoring/compose.yml
  - {path: [logs/compose.yml, logs/extra.yml], project_directory: ., env_file: logs/vars.env}
services:
  web:
    extends: {file: common/services.yml, service: base}
    image: vendor/web:${TAG:-1}
    volumes: ["${CONF}/web.conf:/etc/web.conf:ro", "${DATA:-./seed}:/seed"]
    security_opt: ["seccomp=profiles/web.json"]
`,
	".env":                        "CONF=./conf\n",
	"docker-compose.override.yml": "services:\n  web:\n    environment: {LEVEL: \"${LEVEL:-info}\"}\n    env_file: override.env\n    volumes: ['./html:/html:ro']\n",
	"override.env":                "FROM=${ORIGIN:-override}\n",
	"conf/web.conf":               "conf",
	"seed/a":                      "seed",
	"html/index.html":             "hello",
	"profiles/web.json":           `{"defaultAction": "SCMP_ACT_ALLOW"}`,
	"common/services.yml": `
services:
  base: {extends: root, env_file: base.env, restart: "${RESTART:-always}"}
  root: {environment: {ZONE: "${ZONE:-UTC}"}}
  other: {image: none, env_file: other.env, environment: {NEVER: "${NEVER}"}}
`,
	"common/base.env":             "BASE=1\n",
	"common/other.env":            "OTHER=1\n",
	"monitoring/compose.yml":      "services:\n  metrics:\n    image: vendor/metrics:${METRICS_TAG}\n    configs: [rules]\n    volumes: ['./targets:/targets:ro']\nconfigs: {rules: {file: rules.yml}}\n",
	"monitoring/.env":             "METRICS_TAG=2\n",
	"monitoring/rules.yml":        "rules",
	"monitoring/targets/one.json": "[]",
	"logs/compose.yml":            "services: {logs: {image: 'vendor/logs:1', environment: ['DEPTH=${DEPTH:-1}', KEEP], volumes: ['./logs/conf:/conf:ro']}}\n",
	"logs/extra.yml":              "services: {logs: {restart: always, ports: ['${LOG_PORT:-5140}:514']}}\n",
	"logs/vars.env":               "DEPTH=7\nKEEP=30\n",
	"logs/conf/a":                 "a",
	"README.md":                   "not named",
}

func packed(t *testing.T, files map[string]string, names ...string) (*packaging.Package, lint.Result) {
	t.Helper()
	p, err := packaging.FromCompose(folder(files), names, packaging.Options{ID: "web", Organization: "o"})
	if err != nil {
		t.Fatal(err)
	}
	root := fstest.MapFS{}
	for name, f := range p.Files {
		root[name] = &fstest.MapFile{Data: f.Content, Mode: f.Mode}
	}
	result, err := lint.Folder(root)
	if err != nil {
		t.Fatal(err)
	}
	return p, result
}

// What a Compose file includes and extends comes along with what that names in its turn, and so
// do the files that change it; the package compiles.
func TestFilesOfAProject(t *testing.T) {
	t.Parallel()
	p, result := packed(t, project, "docker-compose.yml")
	var files, parameters []string
	for name := range p.Files {
		if inside, ok := strings.CutPrefix(name, "components/web/"); ok {
			files = append(files, inside)
		}
	}
	want := append(slices.Sorted(maps.Keys(project)), "compose.yaml")
	want = slices.DeleteFunc(want, func(name string) bool { return name == "README.md" || name == "common/other.env" })
	slices.Sort(want)
	slices.Sort(files)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, q := range p.Parameters {
		parameters = append(parameters, q.Name+"="+*q.Default)
	}
	if diff := cmp.Diff([]string{
		"CONF=./conf", "DATA=./seed", "DEPTH=7", "LEVEL=info", "LOG_PORT=5140", "METRICS_TAG=2", "ORIGIN=override", "RESTART=always", "TAG=1", "ZONE=UTC",
	}, parameters); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	if len(p.Notes) > 0 {
		t.Errorf("notes: %+v", p.Notes)
	}
	if result.Failed() {
		t.Errorf("the package is refused: %v", result.Findings)
	}
}

// Several files are given as Compose takes them, in any folders below that of the first one.
func TestSeveralFiles(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"compose.yaml":       "services: {web: {image: 'i:1', ports: ['80:80'], env_file: web.env}}\n",
		"prod/compose.yaml":  "services:\n  web: {ports: !override ['${PORT:-8080}:80'], env_file: prod/prod.env, read_only: '${RO:?yes or no}'}\n",
		"web.env":            "A=1\n",
		"prod/prod.env":      "B=1\n",
		"compose.extra.yaml": "services: {web: {image: ['no']}}\n",
	}
	p, result := packed(t, files, "compose.yaml", "prod/compose.yaml")
	if got := string(p.Files["components/web/compose.base.yaml"].Content); got != files["compose.yaml"] {
		t.Errorf("the first file is %q", got)
	}
	if result.Failed() {
		t.Errorf("the package is refused: %v", result.Findings)
	}
	var parameters []string
	for _, q := range p.Parameters {
		parameters = append(parameters, fmt.Sprintf("%s required:%t", q.Name, q.Required))
	}
	if diff := cmp.Diff([]string{"PORT required:false", "RO required:true"}, parameters); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	for _, name := range []string{"web.env", "prod/prod.env", "compose.yaml", "prod/compose.yaml"} {
		if _, ok := p.Files["components/web/"+name]; !ok {
			t.Errorf("%s is not in the package", name)
		}
	}
	_, result = packed(t, files, "compose.yaml", "compose.extra.yaml")
	if !slices.ContainsFunc(result.Findings, func(f lint.Finding) bool {
		return f.File == "components/web/compose.extra.yaml" && f.Line == 1 && strings.HasPrefix(f.Message, "services.web.image: ")
	}) {
		t.Errorf("what is wrong in a file that changes another is not shown there: %v", result.Findings)
	}
	if _, err := packaging.FromCompose(folder(files), []string{"compose.yaml", "compose.yaml"}, packaging.Options{ID: "web"}); err == nil || !strings.Contains(err.Error(), "given twice") {
		t.Errorf("a file that is given twice: %v", err)
	}
}

// A key that Colony refuses is none of the project where another file takes it out; what remains is
// shown in the file where it stands.
func TestKeysThatAnotherFileTakesOut(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"compose.yaml":          "services:\n  web: {image: 'i:1', build: ., runtime: nvidia, volumes: ['./a:/a:ro']}\n  dev: {image: 'i:1', build: .}\n",
		"compose.override.yaml": "services:\n  web: {build: !reset null, runtime: !reset null}\n  dev: !reset null\n  far: {extends: {file: far.yaml, service: far}, mac_address: !reset null}\n",
		"far.yaml":              "services:\n  far: {image: 'i:1', mac_address: '02:00:00:00:00:01'}\n",
		"a":                     "a",
	}
	if _, result := packed(t, files, "compose.yaml"); result.Failed() {
		t.Errorf("the package is refused: %v", result.Findings)
	}
	files["compose.override.yaml"] = "services:\n  web:\n    build: !reset null\n    runtime: runsc\n  dev: !reset null\n"
	_, result := packed(t, files, "compose.yaml")
	var got []string
	for _, f := range result.Findings {
		if !f.Warning {
			message, _, _ := strings.Cut(f.Message, ": ")
			got = append(got, fmt.Sprintf("%s:%d: %s", f.File, f.Line, message))
		}
	}
	if diff := cmp.Diff([]string{"components/web/compose.override.yaml:4: services.web.runtime"}, got); diff != "" {
		t.Errorf("what is refused (-want +got):\n%s", diff)
	}
}

// What cannot come along is listed with its place, by the notes or by the lint.
func TestWhatIsNotTakenOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"include outside":  {map[string]string{"docker-compose.yml": "include: [../a.yml]\nservices: {a: {image: 'i:1'}}\n"}, `components/web/compose.yaml:1: include: "../a.yml" leads out of the archive`},
		"remote include":   {map[string]string{"docker-compose.yml": "include: ['https://r.example/a.git']\nservices: {a: {image: 'i:1'}}\n"}, "components/web/compose.yaml:1: include: "},
		"include away":     {map[string]string{"docker-compose.yml": "include: [a.yml]\nservices: {a: {image: 'i:1'}}\n"}, `components/web/compose.yaml:1: include: the archive has no file "a.yml"`},
		"no YAML":          {map[string]string{"docker-compose.yml": "include: [a.yml]\nservices: {a: {image: 'i:1'}}\n", "a.yml": "a: b: c"}, "components/web/a.yml:1: "},
		"extends outside":  {map[string]string{"docker-compose.yml": "services:\n  a: {extends: {file: ../a.yml, service: b}}\n"}, `components/web/compose.yaml:2: services.a.extends: "../a.yml" leads out of the archive`},
		"env_file outside": {map[string]string{"docker-compose.yml": "include: [in/a.yml]\nservices: {a: {image: 'i:1'}}\n", "in/a.yml": "services:\n  b:\n    image: i:1\n    env_file: ../../x.env\n"}, "components/web/in/a.yml:4: services.b.env_file: "},
		"COMPOSE_FILE":     {map[string]string{"docker-compose.yml": "services: {a: {image: 'i:1'}}\n", ".env": "COMPOSE_FILE=docker-compose.yml:x.yml\n"}, `:0: .env names the Compose files "docker-compose.yml:x.yml"`},
	} {
		p, result := packed(t, c.files, "docker-compose.yml")
		var all []string
		for _, f := range result.Findings {
			all = append(all, f.String())
		}
		for _, n := range p.Notes {
			all = append(all, fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Message))
		}
		if !slices.ContainsFunc(all, func(text string) bool { return strings.HasPrefix(text, c.want) }) {
			t.Errorf("%s: %q, want %q", name, all, c.want)
		}
	}
}

// What an env file gives a variable holds until a deployment gives it a value.
func TestVariablesOfEnvFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"seen by others": {map[string]string{
			"docker-compose.yml": "include: [in/a.yml]\nservices: {a: {image: 'i:1', hostname: 'a${T}'}}\n", "in/a.yml": "services: {b: {image: 'i:1', hostname: 'b${T}'}}\n", "in/.env": "T=1\n",
		}, "T unset"},
		"two values": {map[string]string{
			"docker-compose.yml": "include: [in/a.yml, in2/a.yml]\nservices: {a: {image: 'i:1'}}\n", "in/a.yml": "services: {b: {image: 'i:1', hostname: 'b${T}'}}\n", "in/.env": "T=1\n",
			"in2/a.yml": "services: {c: {image: 'i:1', hostname: 'c${T}'}}\n", "in2/.env": "T=2\n",
		}, "T unset"},
		"of another one": {map[string]string{
			"docker-compose.yml": "include: [in/a.yml]\nservices: {a: {image: 'i:1'}}\n", "in/a.yml": "services: {b: {image: 'i:1', hostname: 'b${T}'}}\n", "in/.env": "U=1\nT=${U}2\n",
		}, "T unset U=1"},
		"in the file itself": {map[string]string{
			"docker-compose.yml": "services: {a: {image: 'i:1', env_file: a.env}}\n", "a.env": "X=y\nURL=http://$X # $NEVER\nRAW='$RAW'\nLEVEL=${LEVEL:-info}\nZ=${Z:-$X}\n",
		}, "LEVEL=info X unset Z unset"},
		"by .env": {map[string]string{
			"docker-compose.yml": "services: {a: {image: 'i:1', env_file: a.env}}\n", "a.env": "X=y\nURL=http://$X\n", ".env": "X=z",
		}, "X=z"},
	} {
		p, _ := packed(t, c.files, "docker-compose.yml")
		var got []string
		for _, q := range p.Parameters {
			if q.Default == nil {
				got = append(got, q.Name+" unset")
			} else {
				got = append(got, q.Name+"="+*q.Default)
			}
		}
		if text := strings.Join(got, " "); text != c.want || len(p.Notes) > 0 {
			t.Errorf("%s: %q, want %q; notes %v", name, text, c.want, p.Notes)
		}
		if diff, err := compared(t, c.files); diff != "" || err != nil {
			t.Errorf("%s: %v (-vendor +package):\n%s", name, err, diff)
		}
	}
}
