package packaging_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/packaging"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

// A vendor's files keep their content in the package, also where one has a name that the package
// gives another one: it runs what the files run by the names that the vendor gave them.
func TestNamesThatThePackageTakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		names string
		want  string // one compose.yaml that says the same
	}{
		"extends of compose.base.yaml, and an override": {map[string]string{
			"compose.yaml":          "services: {web: {extends: {file: compose.base.yaml, service: app}}}\n",
			"compose.base.yaml":     "services: {app: {image: 'app:1'}}\n",
			"compose.override.yaml": "services: {web: {environment: {A: b}}}\n",
		}, "compose.yaml", "services: {web: {image: 'app:1', environment: {A: b}}}\n"},
		"bind of compose.base.yaml": {map[string]string{
			"compose.yaml":        "services: {web: {image: 'i:1', volumes: ['./compose.base.yaml:/x.yaml:ro']}}\n",
			"compose.base.yaml":   "mine\n",
			"compose.base-2.yaml": "mine too\n",
			"compose.extra.yaml":  "services: {web: {environment: {A: b}}}\n",
		}, "compose.yaml compose.extra.yaml", "services: {web: {image: 'i:1', volumes: ['./compose.base.yaml:/x.yaml:ro'], environment: {A: b}}}\n"},
		"extends and include of compose.yaml": {map[string]string{
			"compose.dev.yaml": "include:\n  - compose.yaml\nservices:\n  dev:\n    extends: {service: app, file: \"./compose.yaml\"}\n    environment: {A: b}\n",
			"compose.yaml":     "services: {app: {image: 'app:1'}}\n",
		}, "compose.dev.yaml", "services: {app: {image: 'app:1'}, dev: {image: 'app:1', environment: {A: b}}}\n"},
		"extends from another folder": {map[string]string{
			"stack.yml":    "include: [{path: [in/a.yml]}]\n",
			"in/a.yml":     "services:\n  dev:\n    extends:\n      file: ../compose.yaml\n      service: app\n",
			"compose.yaml": "services: {app: {image: 'app:1'}}\n",
		}, "stack.yml", "services: {dev: {image: 'app:1'}}\n"},
		"binds of compose.yaml": {map[string]string{
			"stack.yml": "services:\n  web:\n    image: i:1\n    volumes:\n      - ./compose.yaml:/compose.yaml:ro # é\n      - {type: bind, source: \"${PWD}/compose.yaml\", target: /b.yaml, read_only: true}\n" +
				"    configs: [c]\nconfigs: {c: {file: 'compose.yaml'}}\n",
			"compose.yaml": "mine\n",
		}, "stack.yml", "services:\n  web:\n    image: i:1\n    volumes:\n      - ./mine:/compose.yaml:ro\n      - ./mine:/b.yaml:ro\n    configs: [c]\nconfigs: {c: {file: mine}}\n"},
		"extends of a given compose.yaml": {map[string]string{
			"compose.yaml":      "services: {app: {image: 'app:1'}}\n",
			"compose.prod.yaml": "services:\n  worker: {extends: {file: compose.yaml, service: app}}\n  app: {environment: {A: b}}\n",
		}, "compose.yaml compose.prod.yaml", "services: {app: {image: 'app:1', environment: {A: b}}, worker: {image: 'app:1'}}\n"},
		"several files without compose.yaml": {map[string]string{
			"a.yml":        "services: {app: {image: 'app:1', volumes: ['./compose.yaml:/x:ro']}}\n",
			"b.yml":        "services:\n  app: {environment: {A: b}}\n  worker: {extends: {file: a.yml, service: app}}\n",
			"compose.yaml": "mine\n",
		}, "a.yml b.yml", "services: {app: {image: 'app:1', volumes: ['./mine:/x:ro'], environment: {A: b}}, worker: {image: 'app:1', volumes: ['./mine:/x:ro']}}\n"},
		"an env file that is not there": {map[string]string{
			"stack.yml": "services: {app: {image: 'app:1', env_file: [{path: compose.base.yaml, required: false}]}}\n",
		}, "stack.yml", "services: {app: {image: 'app:1'}}\n"},
	} {
		p, result := packed(t, c.files, strings.Fields(c.names)...)
		if result.Failed() {
			t.Errorf("%s: the package is refused: %v", name, result.Findings)
			continue
		}
		app, err := v1rc3.ParseApplication(p.Files["margo.yaml"].Content)
		if err != nil {
			t.Fatal(err)
		}
		d, err := v1rc3.Build(app, app.Profiles[0].ID, nil, v1rc3.Request{ID: "b5a1c8a0-6f3e-4c58-9a1e-0c9f5a3e7d11", Name: "web", DeviceID: "s/*"})
		if err != nil {
			t.Fatal(err)
		}
		inside, vendors := map[string]archive.File{}, map[string]archive.File{}
		for file, f := range p.Files {
			if rest, ok := strings.CutPrefix(file, "components/web/"); ok {
				inside[rest] = f
			}
		}
		for file, content := range maps.All(c.files) {
			vendors[file] = archive.File{Mode: 0o644, Content: []byte(content)}
		}
		vendors["mine"] = vendors["compose.yaml"]
		vendors["compose.yaml"] = archive.File{Mode: 0o644, Content: []byte(c.want)}
		want, err := containers(t, d, vendors)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := containers(t, d, inside)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-vendor +package):\n%s", name, diff)
		}
	}
}

// Where the vendor's compose.yaml cannot have another name, nothing is made.
func TestNamesThatCannotChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"by a variable": {map[string]string{
			"stack.yml": "services:\n  web:\n    image: i:1\n    volumes: ['${CONF:-./compose.yaml}:/x:ro']\n", "compose.yaml": "mine\n",
		}, `stack.yml, line 4: "${CONF:-./compose.yaml}:/x:ro" is the file compose.yaml, which is another one in a package: give the file another name`},
		"of what is a path in one place alone": {map[string]string{
			"stack.yml":    "services:\n  web:\n    image: i:1\n    volumes: &l\n      - ./compose.yaml:/x:ro\n    command: *l\n",
			"compose.yaml": "mine\n",
		}, `stack.yml, line 5: "./compose.yaml:/x:ro" is the file compose.yaml in one place`},
		"of what is read as of two folders": {map[string]string{
			"stack.yml":    "include: [{path: sub/a.yml, project_directory: .}]\nservices: {x: {extends: {file: sub/a.yml, service: a}}}\n",
			"sub/a.yml":    "services: {a: {image: 'i:1', volumes: ['./compose.yaml:/c:ro']}}\n",
			"compose.yaml": "mine\n", "sub/compose.yaml": "another\n",
		}, `sub/a.yml, line 1: "./compose.yaml:/c:ro" is the file compose.yaml in one place`},
		"of a file that is bound": {map[string]string{
			"stack.yml": "include: [in/a.yml]\nservices: {web: {image: 'i:1', volumes: ['./in:/in:ro']}}\n", "compose.yaml": "services: {app: {image: 'app:1'}}\n",
			"in/a.yml": "services: {a: {extends: {file: ../compose.yaml, service: app}}}\n",
		}, "in/a.yml would be two files of the package"},
		"of a file that is not there": {map[string]string{
			"stack.yml": "services:\n  web: {image: 'i:1', volumes: ['./compose.yaml:/x:ro', './compose.base.yaml:/y']}\n", "compose.yaml": "mine\n",
		}, "line 2: there is no file compose.base.yaml"},
	} {
		_, err := packaging.FromCompose(folder(c.files), []string{"stack.yml"}, packaging.Options{ID: "web"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
