package rollouts_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/explain"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestExplain shows each part of an explanation, by both ways to name a deployment.
func TestExplain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	answer := explain.Explanation{
		Site: "plant-1", Deployment: "meter", Summary: "plant-1/meter runs meter 1.0.0", State: lifecycle.Installed, Since: &now,
		Said: []explain.ExplainedFile{{Path: "fleet/meter/deployment.yaml", Commit: "c1c1c1c1c1c1c1", Says: "a fleet deployment"}}, Target: &explain.ExplainedTarget{Meant: true, By: []string{"sites: plant-*"}},
		Values:   []fleetfile.EffectiveValue{{Name: "port", Value: 503, From: "group north"}},
		Rollout:  &explain.ExplainedRollout{Revision: 2, Version: "1.1.0", State: rollout.Running, Waits: "wave 1 of 2", Site: rollout.SiteWaiting, Wave: 1, May: 1, Since: &now},
		Versions: &explain.ExplainedVersions{App: "meter", Desired: "1.0.0", Generation: 4, Adopted: 3, Running: map[string]int{"1.0.0": 1}},
		Nodes:    []explain.ExplainedNode{{Node: "gw-1", Chosen: true, Why: "the site has chosen it", Online: "online", State: lifecycle.Installed, Reason: "a window"}, {Node: "gw-2", Why: "the node is offline"}},
		Next:     []explain.NextStep{{What: "the site gets revision 2", At: &now}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/deployments/plant-1/meter/explain" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	run := func(format string, args ...string) (string, error) {
		var out bytes.Buffer
		cmd := rollouts.Explain(&command.Env{URL: s.URL, Format: format, Out: &out, Err: &out})
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, args := range [][]string{{"plant-1/meter"}, {"plant-1", "meter"}} {
		shown, err := run("table", args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"plant-1/meter runs meter 1.0.0\n", "sites: plant-*", "revision 2 (1.1.0) is running, in wave 1", "wave 1 of 2", "waiting, of wave 2; it may have revision 1", "generation 3, the last change is of 4",
			"fleet/meter/deployment.yaml", "c1c1c1c1c1c1 ", "port", "503", "group north", "the site has chosen it; a window", "the node is offline", "the site gets revision 2",
		} {
			if !strings.Contains(shown, want) {
				t.Errorf("%q does not show %q:\n%s", args, want, shown)
			}
		}
	}
	shown, err := run("json", "plant-1/meter")
	var e explain.Explanation
	if err != nil || json.Unmarshal([]byte(shown), &e) != nil || e.Rollout.Revision != 2 {
		t.Errorf("%s, %v", shown, err)
	}
	for _, args := range [][]string{{}, {"plant-1"}, {"plant-1/meter", "more"}} {
		if _, err := run("table", args...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
