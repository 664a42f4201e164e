package rollouts_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/rollouts"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
)

// fleet runs "colony fleet" with arguments at an API that has a plan, and returns what it shows, and what was asked for.
func fleet(t *testing.T, format string, args ...string) (shown string, asked []string, err error) {
	t.Helper()
	outline := rollout.Outline{
		ID: "c1c1-e1e1", Commit: "c1c1c1c1c1c1c1", Fleet: "meter", LookedAt: 3, More: 2,
		Effects: map[rollout.Effect]int{rollout.Update: 2, rollout.Remove: 1, rollout.Conflict: 1},
		Nodes:   map[rollout.Effect]int{rollout.Update: 2, rollout.Reject: 1},
		Steps:   []rollout.OutlineStep{{Effect: rollout.Remove, From: "1.0.0", Sites: 1}, {Effect: rollout.Update, From: "1.0.0", To: "1.1.0", Sites: 2}},
		Held:    []rollout.OutlineHold{{Cause: "is one of many", Sites: 1}}, Notes: []string{"look here"},
		Waves: []rollout.OutlineWave{{Percent: 10, Sites: 1, Bake: "1h", Approval: true}, {Group: "north", Sites: 2}},
		Sites: []rollout.OutlineSite{
			{Site: "plant-1", Wave: -1, Effect: rollout.Remove, From: "1.0.0", Held: "is one of many"},
			{Site: "plant-2", Effect: rollout.Update, From: "1.0.0", To: "1.1.0", Values: true, Nodes: []rollout.OutlineNode{
				{Node: "gw-1", Effect: rollout.Update, From: "1.0.0", To: "1.1.0"}, {Node: "gw-2", Effect: rollout.Reject, Why: "the node is offline"},
			}},
			{Site: "plant-3", Wave: 1, Effect: rollout.Conflict},
		},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/api/v1"))
		var answer any = api.FleetDeployment{Name: "meter", Commit: "c2"}
		if strings.HasSuffix(r.URL.Path, "/plan") {
			answer = outline
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	var out bytes.Buffer
	cmd := rollouts.Fleet(&command.Env{URL: s.URL, Format: format, Out: &out, Err: &out})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return out.String(), asked, err
}

func fleetFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "meter.yaml")
	text := "apiVersion: colony/v1\nkind: FleetDeployment\nspec: {application: {id: meter, version: 1.1.0}, targets: {sites: [\"*\"]}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPlan shows what would be done; --dry-run of a change shows the same, and neither commits anything.
func TestPlan(t *testing.T) {
	t.Parallel()
	file := fleetFile(t)
	words := []string{
		"plan c1c1-e1e1, for commit c1c1c1c1c1c1\n", "sites: update 2, remove 1, conflict 1\n", "nodes: update 2, reject 1 (of 3 sites)\n",
		"version: 1.0.0 is removed at 1 sites\n", "version: 1.0.0 to 1.1.0 at 2 sites\n", "waits until a person confirms it, at 1 sites: the deployment is one of many\n",
		"note: look here\n", "north", "waits until a person confirms it", "its own deployment stays", "values of its own", "update 1, reject 1", "and 2 more sites",
	}
	for name, args := range map[string][]string{
		"plan": {"plan", "meter", "-f", file, "--nodes"}, "set": {"set", "meter", "-f", file, "--dry-run"}, "except": {"except", "meter", "plant-2", "-p", "a=b", "--dry-run"},
	} {
		shown, asked, err := fleet(t, "table", args...)
		if err != nil || asked[len(asked)-1] != "POST /fleet-deployments/meter/plan" {
			t.Errorf("%s: %v; asked for %q", name, err, asked)
		}
		want := words
		if name == "plan" {
			want = append(words[:len(words):len(words)], "the node is offline", "colony fleet set meter -f "+file+" --plan c1c1-e1e1")
		}
		for _, w := range want {
			if !strings.Contains(shown, w) {
				t.Errorf("%s does not show %q:\n%s", name, w, shown)
			}
		}
	}
	shown, _, err := fleet(t, "json", "set", "meter", "-f", file, "--dry-run")
	var out rollout.Outline
	if err != nil || json.Unmarshal([]byte(shown), &out) != nil || out.ID != "c1c1-e1e1" {
		t.Errorf("%s, %v", shown, err)
	}
}

// TestSetWithAPlan names the plan that has to hold.
func TestSetWithAPlan(t *testing.T) {
	t.Parallel()
	file := fleetFile(t)
	shown, asked, err := fleet(t, "table", "set", "meter", "-f", file, "--plan", "c1c1-e1e1")
	if err != nil || asked[0] != "PUT /fleet-deployments/meter?plan=c1c1-e1e1" || !strings.Contains(shown, "at commit c2") {
		t.Errorf("%v; asked for %q: %s", err, asked, shown)
	}
	if _, asked, err := fleet(t, "table", "set", "meter", "-f", file, "--plan", "c1c1-e1e1", "--dry-run"); err == nil || len(asked) > 0 {
		t.Errorf("%v; asked for %q", err, asked)
	}
}
