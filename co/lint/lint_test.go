package lint_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/lint"
)

const application = `apiVersion: v1
id: hello
metadata:
  name: Hello
  version: "1.0.0"
  catalog:
    application: {descriptionFile: ./resources/description.md}
    organization: [{name: Colony}]
deploymentProfiles:
  - type: compose
    id: main
    components:
      - name: web
        properties: {repository: oci://registry.colony/hello, revision: 1.0.0}
parameters:
  port:
    value: 8080
    targets: [{pointer: PORT, components: [web]}]
configuration:
  sections:
    - {name: General, settings: [{parameter: port, name: Port, schema: port}]}
  schema:
    - {name: port, dataType: integer, minValue: 1024}
`

const deployment = `id: 9f3c2d1e-0000-4000-8000-000000000001
metadata: {name: hello, namespace: colony, deviceId: plant/*}
spec:
  applicationId: hello
  deploymentProfile:
    type: compose
    components: [{name: web, properties: {repository: oci://registry.colony/hello, revision: 1.0.0}}]
  parameters:
    port:
      value: "8081"
      targets: [{pointer: PORT, components: [web]}]
  x-colony-extensions: {applicationVersion: 1.0.0, profile: main}
`

func folder(change map[string]string) fs.FS {
	files := map[string]string{
		"apps/hello/margo.yaml":                      application,
		"apps/hello/resources/description.md":        "# Hello",
		"apps/hello/components/web/compose.yaml":     "services:\n  web:\n    image: r.example/web:1\n    ports: ['${PORT}:80']\n",
		"deployments/plant/hello/deployment.yaml":    deployment,
		"deployments/plant/hello/notes/anything.txt": "x",
	}
	for name, content := range change {
		files[name] = content
	}
	root := fstest.MapFS{}
	for name, content := range files {
		root[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o644}
	}
	return root
}

func TestFolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change map[string]string
		want   []string
	}{
		"good": {nil, nil},
		"component": {
			map[string]string{"apps/hello/components/web/compose.yaml": "services:\n  web:\n    image: i\n    build: .\n"},
			[]string{"apps/hello/components/web/compose.yaml:4: services.web.build: images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image"},
		},
		"several": {
			map[string]string{
				"apps/hello/components/web/compose.yaml": "include: [db/db.yaml]\nservices:\n  web:\n    image: i\n    networks: [x]\n    privileged: maybe\n---\na: b\n",
				"apps/hello/components/web/db/db.yaml":   "services:\n  db:\n    image: i\n    build: .\n    mem_limit: much\n",
			},
			[]string{
				"apps/hello/components/web/compose.yaml:5: services.web.networks[0]: the network \"x\" is undefined: list it under networks",
				"apps/hello/components/web/compose.yaml:6: services.web.privileged: \"maybe\": want true or false",
				"apps/hello/components/web/compose.yaml:7: a second document begins, and a Compose file has one: move what is in it into the first one, or into a file that include names",
				"apps/hello/components/web/db/db.yaml:4: services.db.build: images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image",
				"apps/hello/components/web/db/db.yaml:5: services.db.mem_limit: \"much\": want bytes, or a form such as 64m",
			},
		},
		"unset variable": {
			map[string]string{"apps/hello/components/web/compose.yaml": "services:\n  web:\n    image: 'i:${TAG}'\n"},
			[]string{
				"apps/hello/components/web/compose.yaml:3: services.web.image: \"i:\" is no name of an image: invalid reference format",
				"apps/hello/components/web/compose.yaml:3: warning: services.web.image: TAG is empty: no parameter of the application sets it, nor does .env; give a default as in ${TAG:-value}",
			},
		},
		"application": {
			map[string]string{"apps/hello/margo.yaml": strings.Replace(application, "id: hello", "id: Hello", 1)},
			[]string{
				"apps/hello/margo.yaml:2: id: \"Hello\": want 1 to 200 of a-z, 0-9 and -",
				"deployments/plant/hello/deployment.yaml: warning: the values were not judged: the folder has no application hello 1.0.0",
			},
		},
		"value": {
			map[string]string{"deployments/plant/hello/deployment.yaml": strings.Replace(deployment, "8081", "80", 1)},
			[]string{"deployments/plant/hello/deployment.yaml:10: spec.parameters.port.value: 80 is below minValue 1024"},
		},
		"place": {
			map[string]string{"deployments/plant/other/deployment.yaml": deployment},
			[]string{`deployments/plant/other/deployment.yaml: metadata.name: the name is "hello", and the file is in the folder of "other"`},
		},
		"alone": {
			map[string]string{"component/compose.yaml": "services: {web: {image: i, volumes: ['./data:/data']}}\n"},
			[]string{`component/compose.yaml:1: warning: services.web.volumes: /data: the archive has no "data": it is a volume of the deployment`},
		},
	} {
		result, err := lint.Folder(folder(c.change))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		failed := false
		for _, f := range result.Findings {
			got = append(got, f.String())
			failed = failed || !f.Warning
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: findings (-want +got):\n%s", name, diff)
		}
		if result.Failed() != failed || result.Files < 2 {
			t.Errorf("%s: failed %t of %d files", name, result.Failed(), result.Files)
		}
	}
}

// No link leads out of the folder: neither a file nor a component is read through one.
func TestLinksOutOfTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"inside/margo.yaml":         application,
		"outside/web/compose.yaml":  "services:\n  web:\n    build: secret\n",
		"outside/description.md":    "# Hello",
		"inside/resources/notes.md": "x",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"inside/components": "../outside", "inside/resources/description.md": "../../outside/description.md",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	result, err := lint.Dir(filepath.Join(dir, "inside"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range result.Findings {
		got = append(got, f.String())
	}
	want := []string{
		`margo.yaml: metadata.catalog.application.descriptionFile: the package has no file "./resources/description.md"`,
		"margo.yaml: warning: deploymentProfiles[0]: component web was not judged: there is no components/web/compose.yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
