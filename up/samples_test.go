package up

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// against returns options whose CO is the handler.
func against(t *testing.T, h http.HandlerFunc) Options {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	o := DefaultOptions()
	o.HTTPAddr, o.Site, o.Node = strings.TrimPrefix(s.URL, "http://"), "plant", "gw1"
	return o
}

func answer(t *testing.T, w http.ResponseWriter, status int, body any) {
	t.Helper()
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		t.Error(err)
	}
}

func wantError(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %v, want one with %q", what, err, w)
		}
	}
}

// TestSamplesArePushed pushes the repository's samples to a registry, twice: what is
// there already is no fault.
func TestSamplesArePushed(t *testing.T) {
	t.Parallel()
	h, err := registry.NewHandler(t.TempDir(), registry.Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o := against(t, h.ServeHTTP)
	o.Samples, o.SampleBinaries = "../examples", t.TempDir()
	if err := os.WriteFile(filepath.Join(o.SampleBinaries, "hello"), []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := o.pushSamples(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"samples/hello/manifests/1.0.0", "samples/compose/hello/manifests/1.1.0", "samples/compose/hello/manifests/1.2.0-sick"} {
		if err := get(t.Context(), o.HTTPAddr, "/v2/"+path); err != nil {
			t.Errorf("the registry lacks %s: %v", path, err)
		}
	}
	o.SampleBinaries = filepath.Join(o.SampleBinaries, "none")
	wantError(t, "without the programs", o.pushSamples(t.Context()), `build them with "make build"`)
	o.Samples, o.SampleBinaries = t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(o.Samples, "components", "Hello"), 0o755); err != nil {
		t.Fatal(err)
	}
	wantError(t, "component without a version", o.pushSamples(t.Context()), "want a folder named <component>-<version>")
}

// TestSampleRegistryIsAGitRepository makes it twice in one directory.
func TestSampleRegistryIsAGitRepository(t *testing.T) {
	t.Parallel()
	o := Options{Samples: "../examples"}
	dir := filepath.Join(t.TempDir(), "apps")
	for range 2 {
		if got, err := o.sampleRegistry(t.Context(), dir); err != nil || got != dir {
			t.Fatalf("sampleRegistry: %q, %v; want %q", got, err, dir)
		}
		files, err := exec.CommandContext(t.Context(), "git", "-C", dir, "ls-tree", "-r", "--name-only", "main").Output()
		if err != nil || !strings.Contains(string(files), "hello-1.0.0/margo.yaml\n") {
			t.Errorf("files of the branch main:\n%s%v", files, err)
		}
	}
	o.Samples = t.TempDir()
	_, err := o.sampleRegistry(t.Context(), dir)
	wantError(t, "without a registry", err, "copy the sample registry")
}

func TestImportOfSamples(t *testing.T) {
	t.Parallel()
	results := []api.ImportResult{{Path: "good", Outcome: "unchanged"}}
	o := against(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if got, want := r.Method+" "+r.URL.Path+" "+string(body), `POST /api/v1/apps {"source":"file:///apps"}`; got != want {
			t.Errorf("request %s, want %s", got, want)
		}
		answer(t, w, http.StatusOK, api.ImportAnswer{Results: results})
	})
	if err := o.importSamples(t.Context(), "file:///apps"); err != nil {
		t.Error(err)
	}
	results = append(results, api.ImportResult{Path: "bad", Outcome: "refused", Problems: []api.Problem{{Path: "id", Message: "missing"}}})
	wantError(t, "with a package that is refused", o.importSamples(t.Context(), "file:///apps"), "bad: ")
}

// TestSampleIsDeployedOnce deploys where the site has no such deployment, or an
// archived one, and nowhere else.
func TestSampleIsDeployedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status  int
		body    fleet.Deployment
		deploys bool
		fault   string
	}{
		"no deployment": {http.StatusNotFound, fleet.Deployment{}, true, ""},
		"archived":      {http.StatusOK, fleet.Deployment{Archived: true}, true, ""},
		"deployed":      {http.StatusOK, fleet.Deployment{}, false, ""},
		"CO away":       {http.StatusServiceUnavailable, fleet.Deployment{}, false, "GET /api/v1/deployments/plant/hello: 503 Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var posted *api.NewDeployment
			o := against(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					answer(t, w, c.status, c.body)
					return
				}
				posted = &api.NewDeployment{}
				if err := json.NewDecoder(r.Body).Decode(posted); err != nil {
					t.Error(err)
				}
				answer(t, w, http.StatusCreated, fleet.Deployment{})
			})
			o.SampleParameters = map[string]any{"port": json.Number("9000")}
			switch err := o.deploySample(t.Context()); {
			case c.fault != "":
				wantError(t, "deploySample", err, c.fault)
			case err != nil:
				t.Errorf("deploySample: %v", err)
			}
			var want *api.NewDeployment
			if c.deploys {
				want = &api.NewDeployment{Site: "plant", App: "hello", Change: api.Change{Version: "1.0.0", Parameters: o.SampleParameters}}
			}
			if diff := cmp.Diff(want, posted); diff != "" {
				t.Errorf("posted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSampleIsInstalledOnANode(t *testing.T) {
	t.Parallel()
	d := fleet.Deployment{State: lifecycle.Installed}
	o := against(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, d) })
	wantError(t, "on no node", o.sampleInstalled(t.Context()), "the sample is INSTALLED")
	d.Nodes = []fleet.DeploymentNode{{Node: "gw1", Code: "PullFailed", Message: "no route"}}
	if err := o.sampleInstalled(t.Context()); err != nil {
		t.Errorf("on one node: %v", err)
	}
	d.State, d.Problem = lifecycle.Failed, "it cannot be placed"
	wantError(t, "failed", o.sampleInstalled(t.Context()), "the sample is FAILED it cannot be placed; gw1: PullFailed: no route")
	if o.samplePort() != defaultPort {
		t.Errorf("port %v, want %d", o.samplePort(), defaultPort)
	}
	if o.SampleParameters = map[string]any{"port": 9000}; o.samplePort() != 9000 {
		t.Errorf("port %v, want the parameter's 9000", o.samplePort())
	}
}

func TestNodeIsOnlineOnceItsInventoryIsKnown(t *testing.T) {
	t.Parallel()
	n := fleet.Node{Online: true}
	o := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/plant/gw1" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		answer(t, w, http.StatusOK, n)
	})
	wantError(t, "without an inventory", o.nodeOnline(t.Context()), "the node is offline")
	n.Inventory = &protocol.Inventory{}
	if err := o.nodeOnline(t.Context()); err != nil {
		t.Errorf("with an inventory: %v", err)
	}
}
