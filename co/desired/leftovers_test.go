package desired

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/proposal"
)

const fleetOfF = "apiVersion: colony/v1\nkind: FleetDeployment\nmetadata: {name: f, id: 6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d}\n" +
	"spec:\n  application: {id: com.example.hello, version: 1.0.0}\n  targets: {sites: [\"*\"]}\n"

// TestFilesThatAreLeft moves and renames the one file of a deployment, with its content as it was and with another one: nothing is removed where what is
// left may be that file, and an event names it. What goes without leaving anything is removed at once.
func TestFilesThatAreLeft(t *testing.T) {
	t.Parallel()
	own, ofFleet := path("munich", "d"), "fleet/f/deployment.yaml"
	for name, left := range map[string]map[string]bool{
		own: {
			"sites/munich/d/deployment.yaml": true, "deploymnts/munich/d/deployment.yaml": true, "munich/d/deployment.yaml": true,
			"deployments/munich/d/deployment.yaml.txt": true, "deployments/munich/d/deployment.yamll": true, "deployments/munich/d/deployment.yaml ": true,
			"deployments/munich/d/deployment": true, "deployments/munich/d/deployment.YAML": true, "deployments/munich/d/Deployment.yaml": true,
			"deployments/munich/d/deploymnet.yaml": true, "deployments/munich/d/deploymnt": true, "deployments/munich/d/deployment.yml": true,
			"Deployments/munich/d/deployment.yaml": true, "Deployments/munich/d/deployment.txt": true, "deployments/munich/d.bak/deployment.yaml": true,
			"deployments/munich/d/d/deployment.yaml": true, "deployments/munich/d.yaml": true, "deployments/Munich/d/deployment.yaml": true,
			"deployments/lokal/d/deployment.yaml": true, "d.yaml": true, "archive/of-munich.txt": true, "sites/munich/site.yaml": true,
		},
		ofFleet: {
			"Fleet/f/deployment.yaml": true, "fleets/f/deployment.yaml": true, "sites/f/deployment.yaml": true, "fleet/f/deployment.yamll": true,
			"fleet/f/deployment": true, "fleet/f/deployment.YAML": true, "fleet/f/deployment.yaml.txt": true, "fleet/f/deployment.yaml ": true,
			"fleet/f/Deployment.yaml": true, "fleet/f/deploymnet.yaml": true, "fleet/f/deploymnt": true, "fleet/f/deployment.yml": true,
			"fleet/f2/deployment.yaml": true, "fleet/F/deployment.yaml": true, "fleet/f/f/deployment.yaml": true, "fleet/f.yaml": true,
			"Fleet/f/deployment.txt": true, "f.yaml": true, "archive/of-f.txt": false, // false: only with the same content
		},
	} {
		for p, always := range left {
			for how, change := range map[string]func(string) string{
				"moved": func(content string) string { return content },
				"moved and changed": func(content string) string {
					return strings.ReplaceAll(content, "1.0.0", "1.0.1")
				},
			} {
				if how != "moved" && !always {
					continue
				}
				t.Run(name+" "+how+" to "+p, func(t *testing.T) {
					t.Parallel()
					w, content, deployed := fiveDeployments(t, name)
					commit := w.commit(map[string]string{name: "", p: change(content)})
					w.held(because(proposal.Unreadable, deployed)...)
					if read := strings.HasPrefix(p, "deployments/lokal/") || strings.HasSuffix(p, "/d.bak/deployment.yaml") || strings.HasSuffix(p, "f2/deployment.yaml") ||
						strings.HasSuffix(p, "site.yaml"); read {
						return // its fault is said of the deployment, or the site
					}
					quoted := p
					if strings.HasSuffix(p, " ") {
						quoted = `"` + p + `"`
					}
					for _, n := range w.notices() {
						if strings.HasPrefix(n, "file_ignored: "+quoted+" at commit "+commit[:12]) {
							return
						}
					}
					t.Errorf("no event names %s: %q", p, w.notices())
				})
			}
		}
	}
}

// fiveDeployments has four deployments and f of a fleet deployment at munich. It returns the content of a file, and what it deploys.
func fiveDeployments(t *testing.T, of string) (w *world, content, deployed string) {
	t.Helper()
	w, _ = fourDeployments(t)
	w.set(func() { w.origins = map[string]string{path("munich", "f"): "fleet/f/deployment.yaml"} })
	w.commit(map[string]string{
		"fleet/f/deployment.yaml": fleetOfF, "README.md": "a", "archive/d.txt": deployment("munich", "d", "1.0.0"), "archive/f.txt": fleetOfF,
		"Fleet/f/deployment.txt": fleetOfF,
	})
	if m := w.next("munich"); names(m) != "d f" {
		t.Fatalf("munich is to run %q, want d and f", names(m))
	}
	if of == path("munich", "d") {
		return w, deployment("munich", "d", "1.0.0"), "munich/d"
	}
	return w, fleetOfF, "munich/f"
}

// TestHonestRemovals removes one deployment in ways that leave no doubt, among them beside files with its content that were there before.
func TestHonestRemovals(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"alone":                          {},
		"with a text changed":            {"README.md": "b"},
		"with a keeper of its folder":    {"deployments/munich/d/.gitkeep": "x"},
		"with another one changed":       {path("berlin", "a"): deployment("berlin", "a", "2.0.0")},
		"with another one of that name":  {path("berlin", "d"): deployment("berlin", "d", "1.0.0")},
		"with a fleet deployment made":   {"fleet/g/deployment.yaml": strings.Replace(fleetOfF, "name: f,", "name: g,", 1)},
		"with a file of a site":          {"sites/munich/site.yaml": "apiVersion: colony/v1\nkind: Site\nmetadata: {id: munich}\nspec: {}\n"},
		"with a copy elsewhere removed":  {"archive/d.txt": ""},
		"with an exception of the fleet": {"fleet/f/sites/munich.yaml": "apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: munich}\nspec: {parameters: {a: b}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, _ := fiveDeployments(t, path("munich", "d"))
			files[path("munich", "d")] = ""
			w.commit(files)
			w.until("d is removed", func() bool { return names(w.next("munich")) == "f" })
			w.held()
			w.commit(map[string]string{"fleet/f/deployment.yaml": ""})
			w.until("f is removed", func() bool { return names(w.next("munich")) == "" })
			w.held()
		})
	}
}
