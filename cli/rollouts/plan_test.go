package rollouts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/colonyfleet/colony/protocol"
)

// planned is a plan with something of all kinds.
func planned() rollout.Outline {
	return rollout.Outline{
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
}

// fleet runs "colony fleet" with arguments at an API that has a plan, and returns what it shows, and what was asked for.
func fleet(t *testing.T, format string, args ...string) (shown string, asked []string, err error) {
	t.Helper()
	return fleetWith(t, planned(), format, args...)
}

func fleetWith(t *testing.T, outline rollout.Outline, format string, args ...string) (shown string, asked []string, err error) {
	t.Helper()
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

// TestPlanInMarkdown writes a comment: what needs a look comes first, and nothing of a text ends a cell.
func TestPlanInMarkdown(t *testing.T) {
	t.Parallel()
	o := planned()
	o.Notes = []string{"a|b <c> @d"}
	o.Sites = append(o.Sites, rollout.OutlineSite{Site: "plant-4", Wave: 1, Effect: rollout.Same})
	for i := range 60 {
		o.Sites = append(o.Sites, rollout.OutlineSite{Site: protocol.SiteID(fmt.Sprint("site-", i)), Wave: 1, Effect: rollout.Update, From: "1.0.0", To: "1.1.0"})
	}
	shown, _, err := fleetWith(t, o, "table", "plan", "meter", "-f", fleetFile(t), "--markdown")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"### Plan of `meter`\n\nFor commit `c1c1c1c1c1c1`, sites: update 2, remove 1, conflict 1.\nNodes of 3 sites: update 2, reject 1.\n",
		"\n- 1.0.0 is removed at 1 sites\n- 1.0.0 to 1.1.0 at 2 sites\n", "- **waits until a person confirms it**, at 1 sites: the deployment is one of many\n",
		"- **note**: a\\|b &lt;c> @&#8203;d\n", "\n| wave | of | sites | bake | approval |\n|---|---|---|---|---|\n| 1 | 10% | 1 | 1h | wanted |\n",
		"\n| site | wave | effect | from | to | nodes | remark |\n|---|---|---|---|---|---|---|\n| plant-1 |  | remove | 1.0.0 |  |  | waits until a person confirms it |\n| plant-3 | 2 | conflict |  |  |  | its own deployment stays |\n| plant-2 | 1 | update | 1.0.0 | 1.1.0 | update 1, reject 1 | values of its own |\n",
		"| site-46 |", "\nand 15 more sites\n", // of 63 that change and are named, 50, and 2 that are not named
	}
	for _, w := range want {
		if !strings.Contains(shown, w) {
			t.Errorf("Markdown lacks %q:\n%s", w, shown)
		}
	}
	if strings.Contains(shown, "plant-4") || strings.Contains(shown, "site-47") {
		t.Errorf("Markdown has sites at which nothing changes, or more than 50:\n%s", shown)
	}
}

// TestPlanChecked fails where a person has to look, in each format, and after the plan is shown.
func TestPlanChecked(t *testing.T) {
	t.Parallel()
	file := fleetFile(t)
	quiet := planned()
	quiet.Held, quiet.Notes, quiet.Effects = nil, nil, map[rollout.Effect]int{rollout.Update: 2, rollout.Remove: 1}
	held, noted, conflict := quiet, quiet, quiet
	held.Held = planned().Held
	noted.Notes = []string{"the target plant-8 is no site"}
	conflict.Effects = map[rollout.Effect]int{rollout.Conflict: 3}
	for name, tt := range map[string]struct {
		of   rollout.Outline
		says string
	}{
		"nothing": {quiet, ""}, "held": {held, "would wait until a person confirms it, at 1 sites"}, "note": {noted, "the target plant-8 is no site"},
		"conflict": {conflict, "3 sites have a deployment of their own"},
	} {
		for _, format := range [][]string{{"table"}, {"table", "--markdown"}, {"json"}} {
			shown, _, err := fleetWith(t, tt.of, format[0], append([]string{"plan", "meter", "-f", file, "--check"}, format[1:]...)...)
			_, failed := errors.AsType[command.Failure](err)
			if failed != (tt.says != "") || failed && !strings.Contains(err.Error(), tt.says) || !failed && err != nil || !strings.Contains(shown, "plant-2") {
				t.Errorf("%s as %v: %v; %s", name, format, err, shown)
			}
		}
	}
}
