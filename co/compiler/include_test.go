package compiler

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// included is a project whose included files have variables of their own.
var included = map[string]string{
	"compose.yaml": `
include:
  - one/one.yaml
  - path: two/two.yaml
    project_directory: shared
    env_file: [two/first.env, two/second.env]
  - {path: three/three.yaml, env_file: /dev/null}
services:
  main: {image: i, environment: {A: "${A:-unset}", B: "${B:-unset}", C: "${C:-unset}", TAG: "${TAG}"}}
`,
	".env":         "B=main\n",
	"one/.env":     "A=one\nB=one\nC=${A}-${B}\nDIR=./data\nPASS=a$$b\nTAG=one\n",
	"one/data/x":   "x of one",
	"one/one.yaml": "include: [{path: inner/inner.yaml}]\nservices:\n  one:\n    image: i\n    environment: [\"A=${A:-unset}\", \"B=${B:-unset}\", \"C=${C:?needed}\", \"TWICE=$A${A}$$A${NONE:-${A}}\", PASS, \"TAG=${TAG}\"]\n    volumes: ['${DIR}/x:/x:ro']\n    secrets: [c]\nsecrets: {c: {environment: A}}\n",
	// It sees what the file that includes it sees.
	"one/inner/.env":       "A=inner\nD=inner\n",
	"one/inner/inner.yaml": "services: {inner: {image: i, environment: {A: '${A}', D: '${D}', C: }}}\n",
	"two/.env":             "A=never\n",
	"two/first.env":        "A=first\nC=first\n",
	"two/second.env":       "A=second\n",
	"two/two.yaml":         "services: {two: {image: i, environment: {A: '${A}', C: '${C}'}, env_file: own.env, volumes: ['./y:/y:ro']}}\n",
	"shared/own.env":       "OWN=shared\n",
	"shared/y":             "y of shared",
	"three/.env":           "A=never\n",
	"three/three.yaml":     "services: {three: {image: i, environment: {A: '${A:-unset}'}}}\n",
}

// An included file has the variables of its own env file, below those of the file that
// includes it, as the reference implementation reads it.
func TestVariablesOfIncludedFiles(t *testing.T) {
	t.Parallel()
	files := maps.Clone(included)
	delete(files, "compose.yaml")
	containers, err := compileOne(t, included["compose.yaml"], files, map[string]string{"TAG": "parameter"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, c := range containers {
		got[c.Name] = c.Env
	}
	want := map[string][]string{
		"main":  {"A=unset", "B=main", "C=unset", "TAG=parameter"},
		"one":   {"A=one", "B=main", "C=one-main", "PASS=a$b", "TAG=parameter", "TWICE=oneone$Aone"},
		"inner": {"A=one", "D=inner"},
		"two":   {"A=second", "C=first", "OWN=shared"},
		"three": {"A=unset"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, readByReference(t, included, "TAG=parameter")); diff != "" {
		t.Errorf("environments as the reference implementation reads them (-want +got):\n%s", diff)
	}
	for _, c := range containers {
		for _, m := range c.Mounts {
			content := map[string]string{"/x": "x of one", "/run/secrets/c": "one", "/y": "y of shared"}[m.Target]
			if m.Kind != protocol.MountFile || string(m.Content) != content {
				t.Errorf("%s at %s: %s %q, want the file %q", c.Name, m.Target, m.Kind, m.Content, content)
			}
		}
	}
}

// readByReference returns the environments of a project as the loader of the Compose project
// reads them from a folder.
func readByReference(t *testing.T, files map[string]string, variables ...string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, s := range projectByReference(t, files, variables...).Services {
		for key, value := range s.Environment {
			if value != nil {
				all[name] = append(all[name], key+"="+*value)
			}
		}
		slices.Sort(all[name])
	}
	return all
}

// projectByReference returns a project as the loader of the Compose project reads it.
func projectByReference(t *testing.T, files map[string]string, variables ...string) *types.Project {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(path.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o, err := cli.NewProjectOptions([]string{filepath.Join(dir, "compose.yaml")}, cli.WithWorkingDirectory(dir), cli.WithEnv(variables), cli.WithEnvFiles(), cli.WithDotEnv, cli.WithName("x"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// merged is a project of three files, each of which changes those before it.
var merged = map[string]string{
	"compose.yaml": "include: [{path: [base/docker-compose.yml, base/docker-compose.override.yml, prod/prod.yml]}]\n",
	"base/.env":    "LEVEL=info\n",
	"base/docker-compose.yml": `
services:
  web:
    image: vendor/web:1
    command: [a, b]
    environment: {A: base, B: base, LEVEL: "${LEVEL}"}
    ports: ["8080:80", "8443:443"]
    volumes: ["data:/data", "./x:/x:ro"]
    labels: [k=base]
    healthcheck: {test: "true"}
  db: {image: vendor/db:1, environment: [P=base], ports: ["5432:5432"]}
volumes: {data: {}}
`,
	"base/docker-compose.override.yml": `
services:
  web:
    image: vendor/web:2
    command: [c]
    environment: ["B=override", "C=override"]
    ports: ["9090:90"]
    labels: {k: override}
    depends_on: [cache]
  db: {ports: !reset []}
  cache: {extends: {file: common.yml, service: cache}, env_file: cache.env}
`,
	"base/common.yml": "services: {cache: {image: vendor/cache:1, environment: {FROM: common}}}\n",
	"base/cache.env":  "SIZE=1\n",
	"base/x":          "x of base",
	"prod/prod.yml": `
services:
  web: {environment: {A: prod}, ports: !override ["80:80"], healthcheck: !reset null}
  db: {restart: always}
`,
}

// Files that an include names together are merged as the reference implementation does it: the
// paths in all of them begin in the directory of the first one.
func TestFilesThatChangeOthers(t *testing.T) {
	t.Parallel()
	files := maps.Clone(merged)
	delete(files, "compose.yaml")
	containers, err := compileOne(t, merged["compose.yaml"], files, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, ports := map[string][]string{}, map[string][]string{}
	for _, c := range containers {
		got[c.Name] = c.Env
		for _, p := range c.Ports {
			ports[c.Name] = append(ports[c.Name], fmt.Sprintf("%d:%d", p.Host, p.Container))
		}
		if c.Name == "web" && (c.Image != "vendor/web:2@sha256:"+imageDigest || !slices.Equal(c.Command, []string{"c"}) || c.Health != nil || len(c.Mounts) != 2) {
			t.Errorf("web is %+v", c)
		}
	}
	want := map[string][]string{
		"web":   {"A=prod", "B=override", "C=override", "LEVEL=info"},
		"db":    {"P=base"},
		"cache": {"FROM=common", "SIZE=1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environments (-want +got):\n%s", diff)
	}
	reference := projectByReference(t, merged)
	published := map[string][]string{}
	for name, s := range reference.Services {
		for _, p := range s.Ports {
			published[name] = append(published[name], fmt.Sprintf("%s:%d", p.Published, p.Target))
		}
	}
	if diff := cmp.Diff(published, ports); diff != "" {
		t.Errorf("ports (-reference +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, readByReference(t, merged)); diff != "" {
		t.Errorf("environments as the reference implementation reads them (-want +got):\n%s", diff)
	}
}

// A path that begins with PWD, as vendors write it, is one beside compose.yaml, also in a file of
// another folder; one that begins with HOME is a volume, as one that begins with ~.
func TestFoldersOfTheCaller(t *testing.T) {
	t.Parallel()
	const compose = `
include: [sub/a.yaml]
services:
  web:
    image: i
    env_file: $PWD/web.env
    environment: {WHERE: "${PWD}/x", HOME: }
    volumes:
      - ${PWD}/conf:/conf:ro
      - $PWD/a.conf:/a.conf:ro
      - ${PWD:-/nowhere}/data:/data
      - ${BASE}/b.conf:/b.conf:ro
      - {type: bind, source: "${PWD}/c.conf", target: /c.conf, read_only: true}
      - ${HOME}/.web:/home
    configs: [rules]
configs: {rules: {file: "${PWD}/a.conf"}}
`
	files := map[string]string{
		".env": "BASE=${PWD}/sub\n", "web.env": "A=1\nCONF=${PWD}/conf\nHOME\n# $HOME\n", "sub/sub.env": "CACHE='$HOME'\nREST=$HOME/x\n", "conf/x": "x", "a.conf": "a", "c.conf": "c", "sub/b.conf": "b",
		"sub/a.yaml": "services: {sub: {image: i, env_file: sub.env, volumes: ['${PWD}/a.conf:/a.conf:ro', './b.conf:/b.conf:ro']}}\n",
	}
	containers, err := compileOne(t, compose, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range containers {
		got = append(got, fmt.Sprint(c.Name, " ", c.Env))
		for _, m := range c.Mounts {
			got = append(got, fmt.Sprintf("%s %s %s%s", c.Name, m.Target, m.Source, m.Content))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{
		"sub /a.conf a", "sub /b.conf b", "sub [CACHE=$HOME REST=~/x]", "web /a.conf a", "web /b.conf b", "web /c.conf c", "web /conf ", "web /conf/x x", "web /data web_bind_data", "web /home web_bind_.web", "web /rules a",
		"web [A=1 CONF=./conf WHERE=./x]",
	}, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	_, warnings, err := CheckArchive("web", composeArchive(t, compose, files), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`line 7: services.web.environment.WHERE: PWD is ".": a node has no such folder`, "line 7: services.web.environment.HOME: HOME is left out",
		`line 6: services.web.env_file: ./web.env: PWD is ".": a node has no such folder`, `sub/a.yaml: line 1: services.sub.env_file: ./sub/sub.env: HOME is "~": a node has no such folder`,
	} {
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, want) }) {
			t.Errorf("warnings %q, want %q", warnings, want)
		}
	}
}

// What .env makes of PWD or HOME is warned of where it is no path, also as the default of a
// parameter; a value that a deployment must give is not.
func TestFoldersOfTheCallerByDotEnv(t *testing.T) {
	t.Parallel()
	const compose = `services:
  web:
    image: i
    env_file: web.env
    environment: {DATA: "${DATA_DIR}", ROOT: , OTHER: "${OTHER}"}
    labels: {root: "${ROOT}"}
    command: [run, "${BELOW}"]
    volumes: ["${DATA_DIR}/conf:/conf:ro", "${ROOT}/.web:/home"]
`
	files := map[string]string{
		".env":    "DATA_DIR=${PWD}/data\nROOT=$HOME\nBELOW=${DATA_DIR}/below\nPLAIN='$HOME'\nOTHER=${PWD}/other\n",
		"web.env": "STACK=${DATA_DIR}/stack\nPLAIN=${PLAIN}\n", "data/conf": "c",
	}
	value := "./data"
	_, warnings, err := CheckArchive("web", composeArchive(t, compose, files), []v1rc3.Variable{
		{Name: "DATA_DIR", Parameter: "DATA_DIR", Default: &value}, {Name: "OTHER", Parameter: "OTHER", Required: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	const rest = "a node has no such folder; write what the container is to get"
	if diff := cmp.Diff([]string{
		`line 4: services.web.env_file: web.env: DATA_DIR is "./data", which .env makes of PWD: ` + rest,
		`line 5: services.web.environment.DATA: DATA_DIR is "./data", which .env makes of PWD: ` + rest,
		`line 5: services.web.environment.ROOT: ROOT is "~", which .env makes of HOME: ` + rest,
		`line 6: services.web.labels.root: ROOT is "~", which .env makes of HOME: ` + rest,
		`line 7: services.web.command[1]: BELOW is "./data/below", which .env makes of PWD: ` + rest,
		`line 8: services.web.volumes: /home: the archive has no "~/.web": it is a volume of the deployment`,
	}, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// A service takes out what it does not want of the one that it extends, in one file and in
// another one, as the reference implementation does it. Where nothing is extended, the tags say
// what is in the file alone.
func TestTagsInOneFile(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"compose.yaml": `
services:
  base: {image: vendor/base:1, command: [a], environment: {A: a, B: b}, ports: ["8080:80"], labels: {k: base}}
  web: {extends: base, command: !reset null, environment: !override {C: c}, ports: !override ["81:80"]}
  last: {extends: web, ports: !reset [], environment: {A: last}, labels: {k: !reset null}}
  far: {extends: {file: sub/common.yml, service: near}, environment: {B: !reset null, D: d}, ports: !override ["84:80"]}
  alone: {image: vendor/alone:1, command: !override [x], environment: !reset {A: a}, user: !reset "1"}
`,
		"sub/common.yml": `
services:
  root: {image: vendor/root:1, environment: {A: root, B: root}, ports: ["82:80"], user: "7"}
  near: {extends: root, environment: {A: !override near}, ports: !override ["83:80"], user: !reset null}
`,
	}
	beside := maps.Clone(files)
	delete(beside, "compose.yaml")
	containers, err := compileOne(t, files["compose.yaml"], beside, nil)
	if err != nil {
		t.Fatal(err)
	}
	said := func(command, env, ports []string, labels map[string]string, user string) string {
		slices.Sort(env)
		return fmt.Sprint(command, env, ports, labels, user)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, c := range containers {
		var ports []string
		for _, p := range c.Ports {
			ports = append(ports, fmt.Sprintf("%d:%d", p.Host, p.Container))
		}
		got[c.Name] = said(c.Command, c.Env, ports, c.Labels, c.User)
	}
	for name, s := range projectByReference(t, files).Services {
		var env, ports []string
		for key, value := range s.Environment {
			env = append(env, key+"="+*value)
		}
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d", p.Published, p.Target))
		}
		want[name] = said(s.Command, env, ports, s.Labels, s.User)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-reference +got):\n%s", diff)
	}
}

// What is wrong in a file that changes another one has its place there.
func TestPlacesInFilesThatChangeOthers(t *testing.T) {
	t.Parallel()
	files := maps.Clone(merged)
	delete(files, "compose.yaml")
	files["prod/prod.yml"] = "services:\n  web:\n    build: .\n    user: '${NONE:?say who}'\n  db:\n    ports: !other [1]\n"
	_, err := compileOne(t, merged["compose.yaml"], files, nil)
	for _, want := range []string{
		"prod/prod.yml: line 3: services.web.build: images are not built on nodes",
		"prod/prod.yml: line 4: services.web.user: required variable NONE is missing a value: say who",
		"prod/prod.yml: line 6: services.db.ports: the tag !other has no meaning",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What an import says of an included file names its variables as they stand there.
func TestVariablesOfIncludedFilesAtImport(t *testing.T) {
	t.Parallel()
	files := map[string]string{"sub/.env": "EMPTY=\nIMG=i\n", "sub/a.yaml": "services:\n  a:\n    image: '${IMG}:${TAG}'\n    ports: ['${EMPTY:?is empty}']\n"}
	_, _, err := CheckArchive("web", composeArchive(t, "include: [sub/a.yaml]\n", files), open("TAG"))
	if err == nil || !strings.Contains(err.Error(), "sub/a.yaml: line 4: services.a.ports[0]: required variable EMPTY is missing a value: is empty") {
		t.Errorf("error %v, want one that names EMPTY", err)
	}
	for item, want := range map[string]string{
		"{path: sub/a.yaml, env_file: none.env}":         `line 1: include: env_file: the archive has no file "none.env"`,
		"{path: sub/a.yaml, env_file: ../x.env}":         `env_file: "../x.env" leads out of the archive`,
		"{path: sub/a.yaml, env_file: 3}":                "env_file: want a file of the archive, or a list of them",
		"{path: sub/a.yaml, project_directory: ../x}":    `project_directory: "../x" leads out of the archive`,
		"{path: sub/a.yaml, project_directory: [a]}":     "project_directory: want a directory of the archive",
		"{path: sub/a.yaml, env_file: [sub/broken.env]}": "sub/broken.env: ",
	} {
		files["sub/broken.env"] = "A='x\n"
		_, _, err := CheckArchive("web", composeArchive(t, "include: ["+item+"]\n", files), open("TAG"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", item, err, want)
		}
	}
}
