package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// judged has the API ask the admission before it commits.
func judged(t *testing.T) *world {
	t.Helper()
	var w *world
	w = site(t, options(func(o *api.Options) {
		o.Check = func(ctx context.Context, at intent.Target, d *v1rc3.Deployment) (protocol.Digest, error) {
			return w.admission().Check(ctx, at, d)
		}
	}))
	return w
}

func (w *world) stage(version string, to fleet.Stage, reason string) fleet.AppVersion {
	w.t.Helper()
	var v fleet.AppVersion
	w.do(http.MethodPatch, "/api/v1/apps/hello/versions/"+version, map[string]any{"stage": to, "reason": reason}).into(http.StatusOK, &v)
	return v
}

// TestDeprecatedVersion deploys one: the answer says so, and no version that is active is left out for it.
func TestDeprecatedVersion(t *testing.T) {
	t.Parallel()
	w := judged(t)
	v := w.stage("1.1.0", fleet.Deprecated, "slow; use 1.0.0")
	if v.Stage != fleet.Deprecated || v.StageReason != "slow; use 1.0.0" || v.StageSince == nil {
		t.Errorf("%+v", v)
	}
	var app fleet.App
	w.get("/api/v1/apps/hello").into(http.StatusOK, &app)
	diff(t, "latest", "1.0.0", app.Latest)
	diff(t, "stages", map[string]fleet.Stage{"1.1.0": fleet.Deprecated}, app.Stages)
	var d fleet.Deployment
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "hello", "version": "1.1.0"}).into(http.StatusCreated, &d)
	diff(t, "notes", []string{"application hello 1.1.0 is deprecated (slow; use 1.0.0)"}, d.Notes)
	d = fleet.Deployment{}
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "hello", "name": "other"}).into(http.StatusCreated, &d)
	diff(t, "version by default", "1.0.0", d.AppVersion)
	diff(t, "notes of an active version", []string(nil), d.Notes)

	w.stage("1.1.0", fleet.Active, "")
	app = fleet.App{}
	w.get("/api/v1/apps/hello").into(http.StatusOK, &app)
	diff(t, "latest, once it is active", "1.1.0", app.Latest)
	diff(t, "stages, once all are active", map[string]fleet.Stage(nil), app.Stages)
}

// TestRetiredVersion runs on, changes and is returned to where it was deployed, and is deployed nowhere else, neither by the API nor
// by a commit, until it is active.
func TestRetiredVersion(t *testing.T) {
	t.Parallel()
	w := judged(t)
	const refusal = "application hello 1.0.0 is retired (a hole): deploy another version, or make it active with colony app activate hello@1.0.0"
	w.recorded(w.deploy(map[string]any{"site": "home", "app": "hello", "version": "1.0.0"}))
	w.stage("1.0.0", fleet.Retired, "a hole")

	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "hello", "version": "1.0.0", "name": "new"}).fails(http.StatusUnprocessableEntity, refusal)
	var d fleet.Deployment
	w.do(http.MethodPatch, "/api/v1/deployments/home/hello", map[string]any{"parameters": map[string]any{"greeting": "Moin"}}).into(http.StatusOK, &d)
	w.recorded(d)
	installed := func() {
		t.Helper()
		d, err := w.store.Deployment(t.Context(), "home", "hello")
		if err != nil {
			t.Fatal(err)
		}
		w.report(protocol.StatusEvent, "gw-1", protocol.DeploymentStatus{V: 1, Node: "gw-1", Deployment: "hello", State: lifecycle.Installed, Actor: lifecycle.EN, App: "hello", AppVersion: d.AppVersion, Digest: d.Digest})
	}
	w.transitions("hello", lifecycle.Pending, lifecycle.Installing)
	installed()
	d = fleet.Deployment{}
	w.do(http.MethodPatch, "/api/v1/deployments/home/hello", map[string]any{"version": "1.1.0"}).into(http.StatusOK, &d)
	w.recorded(d)
	d = fleet.Deployment{}
	w.do(http.MethodPost, "/api/v1/deployments/home/hello/rollback", nil).into(http.StatusOK, &d)
	if d = w.recorded(d); d.AppVersion != "1.0.0" || d.Problem != "" {
		t.Errorf("a return to it: version %s, problem %q", d.AppVersion, d.Problem)
	}

	// By a commit.
	doc, _ := w.file("home", "hello")
	doc.Metadata.Name, doc.ID = "pushed", "6fa459ea-ee8a-4ca4-894e-db77e160355e"
	content, err := doc.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	commit, err := repo{w.repo}.Put(t.Context(), intent.Path("home", "pushed"), content, "", "by hand")
	if err != nil {
		t.Fatal(err)
	}
	w.loop.Notify()
	var pushed fleet.Deployment
	w.eventually(func() bool {
		pushed, err = w.store.Deployment(t.Context(), "home", "pushed")
		return err == nil && pushed.Commit == commit && pushed.Problem != ""
	})
	if !strings.HasSuffix(pushed.Problem, refusal) || pushed.Digest != "" {
		t.Errorf("problem %q, digest %q", pushed.Problem, pushed.Digest)
	}

	// By a fleet deployment.
	w.connect()
	w.do(http.MethodPut, fleetPath, hello("1.0.0", nil)).fails(http.StatusUnprocessableEntity, refusal)
	w.do(http.MethodPost, fleetPath+"/plan", hello("1.0.0", nil)).fails(http.StatusUnprocessableEntity, refusal)

	w.stage("1.0.0", fleet.Active, "")
	w.eventually(func() bool {
		pushed, err = w.store.Deployment(t.Context(), "home", "pushed")
		return err == nil && pushed.Problem == "" && pushed.Digest != ""
	})
	var f rollouts.FleetDeployment
	w.stage("1.0.0", fleet.Deprecated, "old")
	w.do(http.MethodPut, fleetPath, hello("1.0.0", nil)).into(http.StatusOK, &f)
	if len(f.Notes) != 2 || !strings.HasPrefix(f.Notes[0], "at 2 of 2 sites that were looked at no node would run it") { // they have no room for it
		t.Errorf("notes of the fleet deployment: %q, want first that no node would run it", f.Notes)
	}
	diff(t, "last note of the fleet deployment", "application hello 1.0.0 is deprecated (old)", f.Notes[len(f.Notes)-1])
}

// TestBadStage asks for stages that there are not, of what there is not.
func TestBadStage(t *testing.T) {
	t.Parallel()
	w := site(t)
	const path = "/api/v1/apps/hello/versions/1.0.0"
	w.do(http.MethodPatch, path, map[string]any{"stage": "unknown"}).fails(http.StatusUnprocessableEntity, "")
	w.do(http.MethodPatch, path, map[string]any{"reason": "no stage"}).fails(http.StatusUnprocessableEntity, "")
	w.do(http.MethodPatch, path, map[string]any{"stage": "active", "reason": "why not"}).fails(http.StatusUnprocessableEntity, "an active version has no reason")
	w.do(http.MethodPatch, path, map[string]any{"stage": "retired", "reason": strings.Repeat("x", 301)}).fails(http.StatusUnprocessableEntity, "301 characters: at most 300 are kept")
	w.do(http.MethodPatch, "/api/v1/apps/hello/versions/9", map[string]any{"stage": "retired"}).fails(http.StatusNotFound, `application hello has no version "9"`)
	w.do(http.MethodPatch, "/api/v1/apps/none/versions/9", map[string]any{"stage": "retired"}).fails(http.StatusNotFound, `application none has no version "9"`)
}
