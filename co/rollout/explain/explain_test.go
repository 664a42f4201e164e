package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/explain"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
	"github.com/colonyfleet/colony/protocol/siteset"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// running is a rollout in its first wave, at whose second one plant-1 has its turn.
func running() *explain.Fleet {
	return &explain.Fleet{
		Commit: "c2",
		File: &fleetfile.File{Name: "meter", Spec: fleetfile.Spec{
			Application: fleetfile.Application{ID: "meter", Version: "1.1.0"}, Targets: fleetfile.Targets{Sites: []string{"plant-*", "home"}, Groups: []string{"north"}, Except: []string{"plant-9"}},
			Nodes: map[string]string{"hall": "7"}, Parameters: fleetfile.Values{"port": 502, "unit": "V"},
			Groups:   []fleetfile.GroupValues{{Group: "north", Parameters: fleetfile.Values{"port": 503}}},
			Strategy: fleetfile.Strategy{Waves: []fleetfile.Wave{{Percent: 10, Bake: "1h"}, {Percent: 100}}, SitesPerMinute: 5, Deadline: "30m"},
		}},
		Groups:  map[string]siteset.Set{"north": mustSet("plant-1")},
		Rollout: &rollout.Rollout{Fleet: "meter", Revision: 2, State: rollout.Running, Version: "1.1.0", Reason: "wave 1 of 2: 1 site on the way"},
		Member:  &rollout.Member{Site: "plant-1", Revision: 1, Wave: 1, State: rollout.SiteWaiting, Groups: []string{"north"}, Changed: now},
	}
}

func mustSet(names ...string) siteset.Set {
	s, err := siteset.Parse(names)
	if err != nil {
		panic(err)
	}
	return s
}

func deployment() *fleet.Deployment {
	since := now
	return &fleet.Deployment{
		Site: "plant-1", Name: "meter", App: "meter", AppVersion: "1.0.0", State: lifecycle.Installed,
		Observation: fleet.Observation{Since: &since, Generation: 4, ObservedGeneration: 4, SiteOnline: true},
	}
}

// whats are the next steps as texts, each with its time.
func whats(e explain.Explanation) string {
	var lines []string
	for _, s := range e.Next {
		line := s.What
		if s.At != nil {
			line += " @" + s.At.UTC().Format("15:04")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestNext has what comes next in each state that a site may be in.
func TestNext(t *testing.T) {
	t.Parallel()
	member := func(state rollout.SiteState, wave int, reason string) func(*explain.Input) {
		return func(in *explain.Input) {
			in.Fleet.Member.State, in.Fleet.Member.Wave, in.Fleet.Member.Reason = state, wave, reason
		}
	}
	for name, c := range map[string]struct {
		change func(*explain.Input)
		want   string
	}{
		"a later wave": {func(*explain.Input) {}, "the site gets revision 2 of meter with wave 2; wave 1 has its turn: wave 1 of 2: 1 site on the way"},
		"its turn":     {member(rollout.SiteWaiting, 0, ""), "the site gets revision 2 of meter in its turn (at most 5 sites a minute): wave 1 of 2: 1 site on the way"},
		"paused": {
			func(in *explain.Input) {
				in.Fleet.Rollout.State, in.Fleet.Rollout.Reason = rollout.Paused, "1 site failed"
			},
			"a person resumes the rollout (colony rollout resume meter), or aborts it: 1 site failed\nthe site gets revision 2 of meter with wave 2; wave 1 has its turn: 1 site failed",
		},
		"aborted": {func(in *explain.Input) { in.Fleet.Rollout.State = rollout.Aborted }, "revision 2 of meter was aborted before the site had it: a later change of the file begins a rollout anew"},
		"moving": {func(in *explain.Input) {
			member(rollout.SiteMoving, 0, "gw-1: the image is pulled")(in)
			in.Fleet.Member.Admitted = &now
		}, "gw-1: the image is pulled\nit counts as failed, at the earliest: time in which the change waits, or the site is offline, does not count @12:30"},
		"away":   {member(rollout.SiteAway, 0, ""), "the site comes back, and gets revision 2 of meter"},
		"failed": {member(rollout.SiteFailed, 0, "node gw-1 gave it up"), "it works, or the fleet deployment changes (colony fleet revert meter): node gw-1 gave it up"},
		"watched": {func(in *explain.Input) {
			member(rollout.SiteHealthy, 0, "")(in)
			in.Fleet.Rollout.Settled = &now
		}, "its wave is watched until then @13:00"},
		"healthy":      {member(rollout.SiteHealthy, 0, ""), "nothing: it stays as it is until a file of the deployments repo changes"},
		"refused":      {func(in *explain.Input) { in.Fleet.Rollout.State, in.Fleet.Rollout.Reason = rollout.Refused, "no port" }, "revision 2 of meter was refused, and the revision before stays: no port"},
		"a fault":      {func(in *explain.Input) { in.Fleet.File, in.Fleet.Fault = nil, "line 3: what is that" }, "fleet/meter/deployment.yaml has to be corrected; what runs stays until then: line 3: what is that"},
		"left out":     {func(in *explain.Input) { in.Site = "plant-9" }, "the site is left out of the targets (except: plant-9)"},
		"no target":    {func(in *explain.Input) { in.Site = "quay" }, "no entry of the targets of fleet/meter/deployment.yaml means the site: colony fleet show meter"},
		"its own":      {func(in *explain.Input) { in.Own = "c1" }, "the site's own deployment stays; to have that of the fleet, delete it: colony deployment delete plant-1/meter"},
		"not taken up": {func(in *explain.Input) { in.Fleet.Member = nil }, "the CO takes the file up: the site is not recorded as a target yet"},
		"held":         {func(in *explain.Input) { in.Fleet, in.Deployment.Held = nil, "0123abcd" }, "a person confirms or withdraws proposal 0123abcd: colony proposal show 0123abcd"},
		"withdrawn":    {func(in *explain.Input) { in.Fleet, in.Deployment.Held, in.Deployment.Withdrawn = nil, "0123abcd", true }, "its removal was refused: delete it by name, or deploy it anew"},
		"not adopted, offline": {
			func(in *explain.Input) { in.Fleet, in.SiteOnline, in.Deployment.Generation = nil, false, 5 },
			"the site comes back: until then what is shown of it is as of its last report\nthe site adopts generation 5; it has 4",
		},
		"waits and retries": {func(in *explain.Input) {
			in.Fleet = nil
			in.Nodes = []fleet.Node{{ID: "gw-1", Report: restriction.Report{Waits: []restriction.Wait{{Deployment: "other", Why: "x"}, {Deployment: "meter", Why: "a window", UntilMillis: now.UnixMilli()}}}}}
			in.Deployment.Nodes = []fleet.DeploymentNode{{Node: "gw-1", Waits: "a window", RetryAt: &now}, {Node: "gw-2", RetryAt: &now}}
		}, "node gw-1: a window @12:00\nthe site tries it once more on node gw-2 @12:00"},
	} {
		in := explain.Input{Site: "plant-1", Name: "meter", SiteOnline: true, Fleet: running(), Deployment: deployment()}
		c.change(&in)
		if diff := cmp.Diff(c.want, whats(explain.Of(in))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestNodes says of each node why it was chosen, or was not.
func TestNodes(t *testing.T) {
	t.Parallel()
	in := explain.Input{Site: "plant-1", Name: "meter", SiteOnline: true, Fleet: running(), Deployment: deployment()}
	in.Nodes = []fleet.Node{{ID: "gw-1", State: "online"}, {ID: "gw-2", State: "offline"}, {ID: "gw-4", State: "online"}}
	in.Deployment.Rejected = map[string]string{"gw-2": "the node is offline"}
	in.Deployment.Nodes = []fleet.DeploymentNode{
		{Node: "gw-1", State: lifecycle.Failed, AppVersion: "1.1.0", RunningVersion: "1.0.0", Since: now, Code: "CrashLoop", Message: "exited with 1", Waits: "held by anna"},
		{Node: "gw-3", State: lifecycle.Deleting, Since: now},
	}
	want := []explain.ExplainedNode{
		{Node: "gw-1", Chosen: true, Why: "the site has chosen it; nodes with hall=7 are wanted", Online: "online", State: lifecycle.Failed, Version: "1.1.0", Running: "1.0.0", Since: &now, Reason: "CrashLoop: exited with 1; held by anna"},
		{Node: "gw-2", Why: "the node is offline", Online: "offline"},
		{Node: "gw-3", Why: "it is not wanted there any more", Online: "unknown", State: lifecycle.Deleting, Since: &now},
		{Node: "gw-4", Why: "the site has reported no reason", Online: "online"},
	}
	if diff := cmp.Diff(want, explain.Of(in).Nodes); diff != "" {
		t.Error(diff)
	}
	in.Deployment.Generation = 9
	if n := explain.Of(in).Nodes[3]; n.Why != "the site has not adopted generation 9 yet, and says then" {
		t.Errorf("%+v", n)
	}
}

// TestWhatIsSaid names the files, the targets that match, and where each value comes from; a token for some sites is not shown what other sites do.
func TestWhatIsSaid(t *testing.T) {
	t.Parallel()
	in := explain.Input{Site: "plant-1", Name: "meter", SiteOnline: true, Fleet: running(), Deployment: deployment()}
	in.Fleet.Exception, in.Fleet.ExceptionCommit = &fleetfile.Exception{Site: "plant-1", Parameters: fleetfile.Values{"unit": "A"}}, "c3"
	e := explain.Of(in)
	files := []explain.ExplainedFile{{Path: "fleet/meter/deployment.yaml", Commit: "c2", Says: "a fleet deployment of meter 1.1.0"}, {Path: "fleet/meter/sites/plant-1.yaml", Commit: "c3", Says: "values of the site's own: unit"}}
	if diff := cmp.Diff(files, e.Said); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&explain.ExplainedTarget{Meant: true, By: []string{"sites: plant-*", "groups: north"}}, e.Target); diff != "" {
		t.Error(diff)
	}
	values := []fleetfile.EffectiveValue{{Name: "port", Value: 503, From: "group north"}, {Name: "unit", Value: "A", From: "exception"}}
	if diff := cmp.Diff(values, e.Values); diff != "" {
		t.Error(diff)
	}
	if e.Rollout.Waits == "" || e.Rollout.May != 1 || e.Summary != "plant-1/meter runs meter 1.0.0, as the fleet deployment says" {
		t.Errorf("%+v; %s", e.Rollout, e.Summary)
	}
	in.Partial = true
	if e = explain.Of(in); len(e.Values) != 0 || strings.Contains(whats(e), "on the way") || e.Rollout.Waits != "" {
		t.Errorf("a token for some sites sees %+v, %+v, %s", e.Values, e.Rollout, whats(e))
	}
	in = explain.Input{Site: "plant-1", Name: protocol.DeploymentName("meter"), Own: "c1"}
	if e = explain.Of(in); e.Said[0].Path != "deployments/plant-1/meter/deployment.yaml" || e.Summary != "the site does not have plant-1/meter yet" {
		t.Errorf("%+v", e)
	}
	in.Deployment, in.Own = deployment(), ""
	in.Deployment.State = lifecycle.Deleting
	if e = explain.Of(in); e.Summary != "plant-1/meter is DELETING, and no file asks for it" {
		t.Errorf("%s", e.Summary)
	}
}
