package lint_test

import (
	"fmt"
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
		"files that the CO ignores": {
			map[string]string{
				"deployments/plant/hello/deployment.yml": "a: b\n", "deployments/plant/hello2.yaml": "a: b\n", "sites/plant/site.yml": "a: b\n",
				"sites/Plant/site.yaml": "a: b\n", "loose.yaml": "a: b\n", ".pre-commit-config.yaml": "a: b\n", "apps/other/margo.yml": "a: b\n", "fleet/hello.yaml": "a: b\n",
				"deployments/plant/hello/deployment.yamll": "a: b\n", "fleet/hello/deployment": "a: b\n",
			},
			[]string{
				"apps/other/margo.yml: warning: it is not read: an application is described in margo.yaml",
				"deployments/plant/hello/deployment.yamll: warning: the CO ignores it: a deployment is read from deployments/<site>/<name>/deployment.yaml only",
				"deployments/plant/hello/deployment.yml: the CO ignores it: a deployment is read from deployments/<site>/<name>/deployment.yaml only",
				"deployments/plant/hello2.yaml: the CO ignores it: a deployment is read from deployments/<site>/<name>/deployment.yaml only",
				"fleet/hello.yaml: the CO ignores it: a fleet deployment is read from fleet/<name>/deployment.yaml and fleet/<name>/sites/<site>.yaml only",
				"fleet/hello/deployment: warning: the CO ignores it: a fleet deployment is read from fleet/<name>/deployment.yaml and fleet/<name>/sites/<site>.yaml only",
				"loose.yaml: warning: the CO ignores it: the CO reads deployments/<site>/<name>/deployment.yaml, fleet/<name>/deployment.yaml and sites/<site>/site.yaml only",
				"sites/Plant/site.yaml: the CO ignores it: site name \"Plant\": want 1 to 63 of a-z, 0-9 and -, not beginning or ending with -",
				"sites/plant/site.yml: the CO ignores it: a site's file is read from sites/<site>/site.yaml only",
			},
		},
		"the files of a site and of a fleet deployment": {
			map[string]string{
				"sites/plant/site.yaml":       "apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec:\n  data:\n    rules:\n      - {name: a, direction: upp, topics: ['a/#']}\n",
				"fleet/hello/deployment.yaml": "apiVersion: colony/v1\nkind: FleetDeploymnt\n",
			},
			[]string{
				"fleet/hello/deployment.yaml:1: metadata: required, and missing",
				"fleet/hello/deployment.yaml:1: spec: required, and missing",
				"fleet/hello/deployment.yaml:2: kind: \"FleetDeploymnt\": want one of FleetDeployment",
				"sites/plant/site.yaml:7: spec.data.rules[0].direction: \"upp\": want one of up, down",
			},
		},
		"the folder of a site that cannot be": {
			map[string]string{"deployments/Plant/hello/deployment.yaml": deployment},
			[]string{"deployments/Plant/hello/deployment.yaml: it is in the folder of a site that cannot be: site name \"Plant\": want 1 to 63 of a-z, 0-9 and -, not beginning or ending with -"},
		},
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
		"env file that no parameter changes": {
			map[string]string{
				"apps/hello/components/web/compose.yaml": "services:\n  web:\n    image: r.example/web:1\n    ports: ['${PORT}:80']\n    env_file: .env\n",
				"apps/hello/components/web/.env":         "# web\nPORT=8080\n",
			},
			[]string{"apps/hello/components/web/.env:2: warning: services.web.env_file: .env sets PORT for service web, whatever value a deployment gives its parameter: write PORT=${PORT} there, which is filled in from the parameter, or PORT=${PORT:-value} with what holds without one"},
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
		"compiled": {
			map[string]string{
				"apps/hello/components/web/compose.yaml":  "services:\n  web:\n    image: r.example/web:1\n    ports: ['${PORT}:80', '9000:81']\n",
				"deployments/plant/hello/deployment.yaml": strings.Replace(deployment, "8081", "9000", 1),
			},
			[]string{"apps/hello/components/web/compose.yaml:4: services.web.ports[1]: port 9000 of the node is published twice in this deployment: services.web.ports[0] has it; publish another one; so it is with the values of deployments/plant/hello/deployment.yaml"},
		},
		"default": {
			map[string]string{"apps/hello/components/web/compose.yaml": "services:\n  web:\n    image: r.example/web:1\n    ports: ['${PORT}:80', '8080:81']\n"},
			[]string{"apps/hello/components/web/compose.yaml:4: services.web.ports[1]: port 8080 of the node is published twice in this deployment: services.web.ports[0] has it; publish another one; so it is with the default \"8080\" of PORT: change it, or leave the value out, so that a deployment must give it"},
		},
		"files and pointers": {
			map[string]string{
				"apps/hello/margo.yaml":                   strings.NewReplacer("{descriptionFile: ./resources/description.md}", "\n      descriptionFile: ./resources/description.md\n      icon: ./none.png", "pointer: PORT", "pointer: ENV.PORT").Replace(application),
				"apps/hello/resources/description.md":     "\x89PNG\x00",
				"deployments/plant/hello/deployment.yaml": strings.Replace(deployment, "applicationId: hello", "applicationId: other", 1),
				"apps/hello/components/web/compose.yaml":  "services:\n  web:\n    image: r.example/web:1\n",
			},
			[]string{
				`apps/hello/margo.yaml:8: metadata.catalog.application.descriptionFile: the content of "./resources/description.md" is not of its kind: want text (Markdown)`,
				`apps/hello/margo.yaml:9: metadata.catalog.application.icon: the package has no file "./none.png": file does not exist`,
				`apps/hello/margo.yaml:20: parameters.port.targets[0].pointer: "ENV.PORT": for compose it is the name of an environment variable: letters, digits and _, not beginning with a digit`,
				"deployments/plant/hello/deployment.yaml: warning: the values were not judged: the folder has no application other 1.0.0",
			},
		},
		"two profiles": {
			map[string]string{
				"apps/hello/margo.yaml": strings.Replace(application, "parameters:\n", `  - type: compose
    id: both
    components:
      - name: web
        properties: {repository: oci://registry.colony/hello, revision: 1.0.0}
      - name: more
        properties: {repository: oci://registry.colony/more, revision: 1.0.0}
parameters:
`, 1),
				"apps/hello/components/more/compose.yaml": "services:\n  web:\n    image: r.example/web:1\n",
			},
			[]string{`apps/hello/margo.yaml:15: deploymentProfiles[1]: service web of component web and service web of component more share the name web on the network of the deployment: rename one`},
		},
		"place": {
			map[string]string{"deployments/plant/other/deployment.yaml": deployment},
			[]string{`deployments/plant/other/deployment.yaml:2: metadata.name: the name is "hello", and the file is in the folder of "other"`},
		},
		"alone": {
			map[string]string{"component/compose.yaml": "services: {web: {image: i, volumes: ['./data:/data']}}\n"},
			[]string{`component/compose.yaml:1: warning: services.web.volumes: /data: the archive has no "data": it is a volume of the deployment`},
		},
	} {
		result, err := lint.Folder(folder(c.change), "r.example", "docker.io")
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
		`margo.yaml:7: metadata.catalog.application.descriptionFile: the package has no file "./resources/description.md": path escapes from parent`,
		"margo.yaml:13: warning: deploymentProfiles[0].components[0]: component web was not judged: there is no components/web/compose.yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// An image of a registry that a CO reads only where its configuration says so is a warning, unless
// an option of the lint names the registry.
func TestImagesOfOtherRegistries(t *testing.T) {
	t.Parallel()
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	root := fstest.MapFS{"web/more/other.yaml": {Data: []byte("services:\n  included: {image: redis:7}\n")}, "web/compose.yaml": {Data: []byte(`x-all: &all
  restart: always
services:
  own: {image: registry.colony/web:1}
  hub:
    <<: *all
    image: nginx:1
  github: {image: ghcr.io/a/b:2}
  pinned: {image: nginx@` + digest + `}
  variable: {image: "${REGISTRY:-quay.io}/c:3"}
  tagged: {image: "ghcr.io/a/c:${TAG}"}
include: [more/other.yaml]
`)}, "web/.env": {Data: []byte("TAG=4\n")}}
	for _, c := range []struct {
		registries []string
		want       []string
	}{
		{nil, []string{"7: services.hub.image: nginx:1 comes from docker.io", "8: services.github.image: ghcr.io/a/b:2 comes from ghcr.io", "10: services.variable.image: quay.io/c:3 comes from quay.io", "11: services.tagged.image: ghcr.io/a/c:4 comes from ghcr.io", "2: services.included.image: redis:7 comes from docker.io"}},
		{[]string{"docker.io", "quay.io"}, []string{"8: services.github.image: ghcr.io/a/b:2 comes from ghcr.io", "11: services.tagged.image: ghcr.io/a/c:4 comes from ghcr.io"}},
	} {
		result, err := lint.Folder(root, c.registries...)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range result.Findings {
			text, rest, _ := strings.Cut(f.Message, ": a CO imports it only where import.registries of its configuration names ")
			if !f.Warning || rest == "" {
				t.Errorf("finding %v", f)
			}
			got = append(got, fmt.Sprintf("%d: %s", f.Line, text))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("with %q (-want +got):\n%s", c.registries, diff)
		}
	}
}
