package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/explain"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func hello(version string, more map[string]any) map[string]any {
	c := map[string]any{"application": map[string]any{"id": "hello", "version": version}, "targets": map[string]any{"sites": []string{"*"}}}
	for k, v := range more {
		c[k] = v
	}
	return c
}

const fleetPath = "/api/v1/fleet-deployments/greeting"

// TestAFleetDeploymentByTheAPI makes one, changes it, looks at it, and removes it.
func TestAFleetDeploymentByTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	var plan rollout.Outline
	w.do(http.MethodPost, fleetPath+"/plan", hello("1.0.0", nil)).into(http.StatusOK, &plan)
	if plan.Effects[rollout.Place] == 0 || len(plan.Sites) != plan.Effects[rollout.Place] {
		t.Fatalf("plan %+v", plan)
	}
	w.get(fleetPath).fails(http.StatusNotFound, "greeting")
	w.get(fleetPath+"/rollout").fails(http.StatusNotFound, "colony fleet list")
	var f rollouts.FleetDeployment
	a := w.do(http.MethodPut, fleetPath, hello("1.0.0", map[string]any{"exceptions": map[string]any{"home": map[string]any{"greeting": "Moin"}}}))
	a.into(http.StatusOK, &f)
	if f.Name != "greeting" || f.ID == "" || f.Content.Exceptions["home"]["greeting"] != "Moin" {
		t.Fatalf("%+v", f)
	}
	var d fleet.Deployment
	w.eventually(func() bool {
		a := w.get("/api/v1/deployments/home/greeting")
		if a.status != http.StatusOK {
			return false
		}
		a.into(http.StatusOK, &d)
		return d.Digest != ""
	})
	if d.AppVersion != "1.0.0" || d.ID != (&fleetfile.File{ID: f.ID}).IDAt("home") {
		t.Errorf("%+v", d)
	}
	content, _, err := w.repo.File(t.Context(), "fleet/greeting/sites/home.yaml")
	if err != nil || !strings.Contains(string(content), "greeting: Moin") {
		t.Errorf("%s, %v", content, err)
	}
	// What is not named of the exceptions stays.
	w.do(http.MethodPut, fleetPath, hello("1.0.0", map[string]any{"parameters": map[string]any{"greeting": "Hi"}}), "If-Match", `"`+f.Commit+`"`).into(http.StatusOK, &f)
	if f.Content.Exceptions["home"]["greeting"] != "Moin" || f.Content.Parameters["greeting"] != "Hi" {
		t.Errorf("%+v", f.Content)
	}
	w.do(http.MethodPut, fleetPath, hello("1.0.0", nil), "If-Match", `"0123"`).fails(http.StatusPreconditionFailed, "was changed since you read it")

	var list rollouts.FleetSummaries
	w.get("/api/v1/fleet-deployments").into(http.StatusOK, &list)
	if len(list.Items) != 1 || list.Items[0].App != "hello" || list.Items[0].Rollout == nil {
		t.Errorf("%+v", list)
	}
	w.eventually(func() bool {
		var all form.List[rollout.Rollout]
		w.get("/api/v1/rollouts?fleet=greeting").into(http.StatusOK, &all)
		return len(all.Items) == 2 && all.Items[0].Revision == 2
	})
	var sites form.List[rollout.Member]
	w.get(fleetPath+"/rollout/sites?limit=1").into(http.StatusOK, &sites)
	if len(sites.Items) != 1 {
		t.Errorf("%+v", sites)
	}
	w.do(http.MethodDelete, fleetPath, nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, fleetPath, nil).fails(http.StatusNotFound, "greeting")
	w.eventually(func() bool {
		a := w.get("/api/v1/deployments/home/greeting")
		if a.status == http.StatusNotFound {
			return true
		}
		a.into(http.StatusOK, &d)
		return d.State == lifecycle.Deleting || d.Archived
	})
}

// TestAFailedRolloutByTheAPI has the first site fail, and returns to the revision before.
func TestAFailedRolloutByTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	only := map[string]any{"targets": map[string]any{"sites": []string{"home"}}, "replicas": 1}
	w.do(http.MethodPut, fleetPath, hello("1.0.0", only)).into(http.StatusOK, nil)
	digest := w.digestOf("greeting", "1.0.0")
	w.reports(digest, "1.0.0", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	w.rolloutIs(rollout.Done)
	w.do(http.MethodPost, fleetPath+"/revert", nil).fails(http.StatusConflict, "no other revision of greeting was ever complete")
	w.do(http.MethodPost, fleetPath+"/rollout/pause", nil).fails(http.StatusConflict, "there is nothing to pause")

	w.do(http.MethodPut, fleetPath, hello("1.1.0", only)).into(http.StatusOK, nil)
	next := w.digestOf("greeting", "1.1.0")
	w.reports(next, "1.1.0", lifecycle.Updating, lifecycle.Failed)
	r := w.rolloutIs(rollout.Paused)
	if !strings.Contains(r.Reason, "1 site failed") {
		t.Errorf("reason %q", r.Reason)
	}
	w.do(http.MethodPost, fleetPath+"/rollout/promote", map[string]any{"by": "me"}).fails(http.StatusConflict, "resume it first")
	w.do(http.MethodPost, fleetPath+"/rollout/resume", map[string]any{"rollback": true}).fails(http.StatusUnprocessableEntity, "only an abort")
	w.do(http.MethodPost, fleetPath+"/rollout/abort", map[string]any{"rollback": true, "by": "me"}).into(http.StatusOK, &r)
	if r.State != rollout.Aborted || r.By != "me" {
		t.Errorf("%+v", r)
	}
	// The return goes on, and a second request for it does not end it.
	w.digestOf("greeting", "1.0.0")
	for _, again := range []string{"/rollout/abort", "/revert"} {
		var body any
		if again == "/rollout/abort" {
			body = map[string]any{"rollback": true}
		}
		w.do(http.MethodPost, fleetPath+again, body).fails(http.StatusConflict, "returns to what revision 1 ran already")
	}
	if back := w.digestOf("greeting", "1.0.0"); back != digest {
		t.Errorf("the digest after the return is %s, before it was %s", back, digest)
	}
	w.reports(digest, "1.0.0", lifecycle.Updating, lifecycle.Installed)
	if r = w.rolloutIs(rollout.Done); r.Revision != 3 {
		t.Errorf("revision %d", r.Revision)
	}
}

// TestANameOfTheFleet is not that of a deployment which a site makes for itself; and a return leaves targets and strategy as they are.
func TestANameOfTheFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	w.do(http.MethodPut, fleetPath, hello("1.0.0", map[string]any{"targets": map[string]any{"sites": []string{"home"}}})).into(http.StatusOK, nil)
	w.digestOf("greeting", "1.0.0")
	own := map[string]any{"site": "home", "name": "greeting", "app": "hello"}
	w.do(http.MethodPost, "/api/v1/deployments", own).fails(http.StatusConflict, "of the fleet deployment of that name")
	for _, method := range []string{http.MethodPatch, http.MethodDelete} {
		w.do(method, "/api/v1/deployments/home/greeting", map[string]any{}).fails(http.StatusConflict, "of the fleet deployment of that name: change that")
	}
	own["name"] = "other"
	w.do(http.MethodPost, "/api/v1/deployments", own).into(http.StatusCreated, nil)

	var f rollouts.FleetDeployment
	strategy := map[string]any{"targets": map[string]any{"sites": []string{"*"}, "except": []string{"nobody"}}, "strategy": map[string]any{"sitesPerMinute": 7}}
	w.do(http.MethodPut, fleetPath, hello("1.1.0", strategy)).into(http.StatusOK, &f)
	if !strings.Contains(strings.Join(f.Notes, "\n"), "spec.targets.except: no site is nobody") {
		t.Errorf("notes %q", f.Notes)
	}
	w.do(http.MethodPost, fleetPath+"/revert", map[string]any{"to": 1}).into(http.StatusOK, &f)
	if c := f.Content; c.Application.Version != "1.0.0" || len(c.Targets.Except) != 1 || c.Strategy.SitesPerMinute != 7 {
		t.Errorf("the return says %+v", c)
	}
}

// TestAPlanByTheAPI is carried out while it holds, and refused afterwards.
func TestAPlanByTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	only := func(version string, nodes map[string]string) map[string]any {
		return hello(version, map[string]any{"targets": map[string]any{"sites": []string{"home"}}, "nodes": nodes})
	}
	var plan rollout.Outline
	w.do(http.MethodPost, fleetPath+"/plan", only("1.0.0", nil)).into(http.StatusOK, &plan)
	if len(plan.Sites) != 1 || plan.Sites[0].To != "1.0.0" || plan.LookedAt != 1 || plan.Nodes[rollout.Reject] != 2 {
		t.Fatalf("%+v", plan)
	}
	w.do(http.MethodPut, fleetPath+"?plan=x", only("1.0.0", nil)).fails(http.StatusUnprocessableEntity, "query.plan", "no id of a plan")
	w.do(http.MethodPut, fleetPath+"?plan="+plan.ID, only("1.1.0", nil)).fails(http.StatusConflict, "does not hold any more")
	var f rollouts.FleetDeployment
	w.do(http.MethodPut, fleetPath+"?plan="+plan.ID, only("1.0.0", nil)).into(http.StatusOK, &f)
	w.do(http.MethodPut, fleetPath+"?plan="+plan.ID, only("1.0.0", nil)).fails(http.StatusConflict, "whose head is "+f.Commit[:12])
	// The id of a new fleet deployment decides which site is in which wave: it is that of the plan.
	if want := fleetfile.NewID(plan.Commit, "greeting"); f.ID != want {
		t.Errorf("id %s, the plan was of %s", f.ID, want)
	}
	w.do(http.MethodPost, fleetPath+"/plan", only("1.0.0", map[string]string{"hall": "9"})).into(http.StatusOK, &plan)
	if len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0], "at 1 of 1 sites that were looked at no node would run it") || !strings.Contains(plan.Notes[0], `its label hall is "7"; wanted "9"`) {
		t.Errorf("notes %q", plan.Notes)
	}
}

// TestAFleetDeploymentThatWouldChangeNothing is refused: each site that it means has a deployment of the name.
func TestAFleetDeploymentThatWouldChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "name": "greeting", "app": "hello"}).into(http.StatusCreated, nil)
	only := hello("1.0.0", map[string]any{"targets": map[string]any{"sites": []string{"home"}}})
	w.do(http.MethodPost, fleetPath+"/plan", only).fails(http.StatusUnprocessableEntity, "body.targets", "nothing would change", "home")
	w.do(http.MethodPut, fleetPath, only).fails(http.StatusUnprocessableEntity, "body.targets", "nothing would change")
	if _, _, err := w.repo.File(t.Context(), "fleet/greeting/deployment.yaml"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("something was committed: %v", err)
	}
	w.do(http.MethodPut, fleetPath, hello("1.0.0", nil)).into(http.StatusOK, nil) // at the other sites
}

// TestExplainByTheAPI says why a site has a deployment, and why another has none; a name that is misspelt is answered with the one that was meant.
func TestExplainByTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	only := hello("1.0.0", map[string]any{"targets": map[string]any{"sites": []string{"ho*"}}, "parameters": map[string]any{"greeting": "Hi"}})
	var f rollouts.FleetDeployment
	w.do(http.MethodPut, fleetPath, only).into(http.StatusOK, &f)
	digest := w.digestOf("greeting", "1.0.0")
	w.reports(digest, "1.0.0", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	w.rolloutIs(rollout.Done)
	var e explain.Explanation
	w.get("/api/v1/deployments/home/greeting/explain").into(http.StatusOK, &e)
	if len(e.Said) != 1 || e.Said[0].Path != "fleet/greeting/deployment.yaml" || e.Said[0].Commit != f.Commit || e.Target == nil || len(e.Target.By) != 1 || e.Target.By[0] != "sites: ho*" {
		t.Errorf("%+v", e)
	}
	if e.Rollout == nil || e.Rollout.Site != rollout.SiteHealthy || e.Rollout.May != 1 || e.Versions == nil || e.Versions.Digest != digest || len(e.Values) != 1 || e.Values[0].From != "fleet" {
		t.Errorf("%+v, %+v, %+v", e.Rollout, e.Versions, e.Values)
	}
	if len(e.Nodes) != 2 || !e.Nodes[0].Chosen || e.Nodes[0].State != lifecycle.Installed || e.Nodes[1].Chosen {
		t.Errorf("nodes %+v", e.Nodes)
	}
	var none explain.Explanation
	w.get("/api/v1/deployments/away/greeting/explain").into(http.StatusOK, &none)
	if none.Target == nil || none.Target.Meant || none.Versions != nil || !strings.Contains(none.Next[0].What, "no entry of the targets") {
		t.Errorf("%+v", none)
	}
	w.get("/api/v1/deployments/home/greting/explain").fails(http.StatusNotFound, "did you mean greeting?")
	w.get("/api/v1/deployments/home/quite-another/explain").fails(http.StatusNotFound, "there is greeting")
	w.get("/api/v1/deployments/hone/greeting/explain").fails(http.StatusNotFound, "did you mean home?")
	w.get("/api/v1/deployments/nowhere/greeting/explain").fails(http.StatusNotFound, "there is away, home")
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "name": "other", "app": "hello"}).into(http.StatusCreated, nil)
	var own explain.Explanation
	w.get("/api/v1/deployments/home/other/explain").into(http.StatusOK, &own)
	if len(own.Said) != 1 || own.Said[0].Path != "deployments/home/other/deployment.yaml" || own.Rollout != nil || own.Target != nil {
		t.Errorf("%+v", own)
	}
}

// digestOf waits until a version is desired at home, and returns its digest.
func (w *world) digestOf(name protocol.DeploymentName, version string) (digest protocol.Digest) {
	w.t.Helper()
	w.eventually(func() bool {
		d, err := w.store.Deployment(w.t.Context(), "home", name)
		digest = d.Digest
		return err == nil && d.AppVersion == version && d.Digest != ""
	})
	w.adopt()
	return digest
}

func (w *world) reports(digest protocol.Digest, version string, states ...lifecycle.State) {
	w.t.Helper()
	for _, s := range states {
		actor, body := lifecycle.LO, protocol.DeploymentStatus{V: 1, Node: "gw-1", Deployment: "greeting", State: s, App: "hello", AppVersion: version, Digest: digest}
		if s == lifecycle.Installed || s == lifecycle.Failed {
			actor = lifecycle.EN
		}
		if body.Actor = actor; s == lifecycle.Failed {
			body.Code, body.Refused = "CrashLoop", digest
		}
		w.report(protocol.StatusEvent, "gw-1", body)
	}
}

func (w *world) rolloutIs(state rollout.State) (r rollout.Rollout) {
	w.t.Helper()
	w.eventually(func() bool {
		w.get(fleetPath+"/rollout").into(http.StatusOK, &r)
		return r.State == state
	})
	return r
}

// TestBadFleetDeployments are refused before anything is committed, and say where the fault is.
func TestBadFleetDeployments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	for name, c := range map[string]struct {
		body  map[string]any
		texts []string
	}{
		"no such version":   {hello("9.9.9", nil), []string{"body.application", "9.9.9"}},
		"no site":           {hello("1.0.0", map[string]any{"targets": map[string]any{"sites": []string{"nowhere"}}}), []string{"body.targets", "no site"}},
		"no targets":        {hello("1.0.0", map[string]any{"targets": map[string]any{}}), []string{"body.targets", "want sites or groups"}},
		"no group":          {hello("1.0.0", map[string]any{"targets": map[string]any{"groups": []string{"north"}}}), []string{`no group of sites "north"`}},
		"parameter":         {hello("1.0.0", map[string]any{"parameters": map[string]any{"greting": "x"}}), []string{"body.parameters.greting", "at site"}},
		"waves":             {hello("1.0.0", map[string]any{"strategy": map[string]any{"waves": []map[string]any{{"percent": 50}, {"percent": 20}}}}), []string{"body.strategy.waves[1]", "more than the 50"}},
		"an exception":      {hello("1.0.0", map[string]any{"exceptions": map[string]any{"home": map[string]any{"nothing": 1}}}), []string{"at site home", "nothing"}},
		"a site's name":     {hello("1.0.0", map[string]any{"exceptions": map[string]any{"../x": map[string]any{"greeting": "a"}}}), []string{"exceptions"}},
		"an unknown member": {hello("1.0.0", map[string]any{"replica": 1}), []string{"replica"}},
	} {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			path := fleetPath
			if method == http.MethodPost {
				path += "/plan"
			}
			t.Run(fmt.Sprintf("%s %s", name, method), func(t *testing.T) { w.do(method, path, c.body).fails(http.StatusUnprocessableEntity, c.texts...) })
		}
	}
	if _, _, err := w.repo.File(t.Context(), "fleet/greeting/deployment.yaml"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("something was committed: %v", err)
	}
	w.get("/api/v1/fleet-deployments/No_Name").fails(http.StatusUnprocessableEntity, "path.fleet")
}
