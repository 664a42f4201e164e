package composefile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/compiler/composefile"
)

// refusals are projects with keys that Colony refuses, some of which another file takes out.
var refusals = map[string]struct {
	files           map[string]string
	problems, notes []string // the beginnings
	image           any      // of the service web
}{
	"taken out by a file that is merged over": {
		files: map[string]string{
			"compose.yaml": "include: [{path: [a.yaml, b.yaml]}]\n",
			"a.yaml": `
services:
  web: {image: i, build: {context: .}, runtime: nvidia, networks: {lan: {mac_address: "02:00:00:00:00:02"}}, pre_stop: [{command: x}], deploy: {restart_policy: {delay: 1s}}}
  dev: {image: i, build: .}
  old: {image: i, build: .}
`,
			"b.yaml": `
services:
  web: {build: !reset null, runtime: !reset , networks: !override {lan: }, pre_stop: !reset [], deploy: !reset null}
  dev: !reset null
  old: !override {image: j}
`,
		},
		image: "i",
	},
	"by a service that extends": {
		files: map[string]string{
			"compose.yaml": "services:\n  web: {extends: {file: a.yaml, service: mid}, mac_address: !reset null}\n",
			"a.yaml": `
services:
  base: {image: i, build: ., mac_address: "02:00:00:00:00:01", cpu_quota: 5000}
  mid: {extends: base, build: !reset null, cpu_quota: !reset 1}
  other: {image: i, build: .}
`,
		},
		image: "i",
	},
	"by an alias": {
		files: map[string]string{
			"compose.yaml": "include: [{path: [a.yaml, b.yaml]}]\n",
			"a.yaml":       "services: {web: {image: i, build: ., runtime: nvidia}}\n",
			"b.yaml":       "services: {web: {build: &none !reset null, runtime: *none}}\n",
		},
		image: "i",
	},
	"beside a merge key": {
		files: map[string]string{
			"compose.yaml": "x-c: &c {image: i, build: .}\nservices: {web: {<<: *c, build: !reset null}}\n",
		},
		image: "i",
	},
	"what remains": {
		files: map[string]string{
			"compose.yaml": "include: [{path: [a.yaml, b.yaml, c.yaml]}]\n",
			"a.yaml":       "services:\n  web:\n    build: .\n    runtime: nvidia\n    mac_address: x\n    deploy: {restart_policy: {delay: 1s}}\n",
			"b.yaml":       "services:\n  web:\n    build: !reset null\n    runtime: runsc\n    mac_address: !reset null\n    image: j\n",
			"c.yaml":       "services:\n  web:\n    mac_address: !override y\n",
		},
		problems: []string{"b.yaml: line 4: services.web.runtime: ", "c.yaml: line 3: services.web.mac_address: "},
		notes:    []string{"a.yaml: line 6: services.web.deploy.restart_policy.delay: "},
		image:    "j",
	},
	"what remains of a service that is extended": {
		files: map[string]string{
			"compose.yaml": "services:\n  web: {extends: {file: a.yaml, service: base}, cpu_quota: !reset null}\n  too: {extends: {file: a.yaml, service: base}}\n  own: {extends: web, build: !reset null}\n",
			"a.yaml":       "services:\n  base:\n    image: i\n    build: .\n    cpu_quota: 5000\n    runtime: nvidia\n",
		},
		problems: []string{"a.yaml: line 4: services.base.build: ", "a.yaml: line 5: services.base.cpu_quota: ", "a.yaml: line 6: services.base.runtime: "},
		image:    "i",
	},
	"no image is left": {
		files: map[string]string{
			"compose.yaml": "include: [{path: [a.yaml, b.yaml]}]\n",
			"a.yaml":       "services: {web: {build: .}}\n",
			"b.yaml":       "services: {web: {build: !reset null}}\n",
		},
	},
	"a build alone": {
		files:    map[string]string{"compose.yaml": "services: {web: {build: .}}\n"},
		problems: []string{"line 1: services.web.build: "},
		image:    "built",
	},
	"a name with a dot": {
		files: map[string]string{
			"compose.yaml": "include: [{path: [a.yaml, b.yaml]}]\n",
			"a.yaml":       "services: {web: {image: i, build: .}, web.build: {image: i, runtime: x}}\n",
			"b.yaml":       "services: {web: {build: !reset null}}\n",
		},
		problems: []string{"a.yaml: line 1: services.web.build.runtime: "},
		image:    "i",
	},
	"what an error leaves": {
		files: map[string]string{
			"compose.yaml": "include: [none.yaml]\nservices: {web: {image: i, build: .}}\n",
		},
		problems: []string{"line 1: include: ", "line 2: services.web.build: "},
	},
}

// TestRefusedKeysOfTheMergedDocument reads projects in which a key that is refused does not, or
// does, reach the document.
func TestRefusedKeysOfTheMergedDocument(t *testing.T) {
	t.Parallel()
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string][]byte{}
			for file, text := range c.files {
				files[file] = []byte(text)
			}
			d, err := composefile.Read(files, "compose.yaml", nil)
			if err != nil {
				d = &composefile.Document{Problems: strings.Split(err.Error(), "\n")}
			}
			begins := func(all, want []string) (got []string) {
				slices.Sort(all)
				for _, text := range all {
					if i := slices.IndexFunc(want, func(w string) bool { return strings.HasPrefix(text, w) }); i >= 0 {
						text = want[i]
					}
					got = append(got, text)
				}
				return got
			}
			if diff := cmp.Diff(c.problems, begins(d.Problems, c.problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, begins(d.Notes, c.notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
			services, _ := d.Values["services"].(map[string]any)
			web, _ := services["web"].(map[string]any)
			if web["image"] != c.image {
				t.Errorf("the image is %v, want %v", web["image"], c.image)
			}
			for _, key := range slices.Sorted(maps.Keys(web)) {
				if slices.Contains([]string{"build", "runtime", "mac_address", "cpu_quota", "pre_stop"}, key) {
					t.Errorf("%s is in the document", key)
				}
			}
		})
	}
}
