package compiler

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/google/go-cmp/cmp"

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
	if diff := cmp.Diff(want, readByReference(t, "TAG=parameter")); diff != "" {
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

// readByReference returns the environments of included as the loader of the Compose project reads
// them from a folder.
func readByReference(t *testing.T, variables ...string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range included {
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
	all := map[string][]string{}
	for name, s := range project.Services {
		for key, value := range s.Environment {
			if value != nil {
				all[name] = append(all[name], key+"="+*value)
			}
		}
		slices.Sort(all[name])
	}
	return all
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
