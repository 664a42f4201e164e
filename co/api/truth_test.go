package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// connect makes the site home online, and disconnect offline.
func (w *world) connect()    { w.t.Helper(); w.presence(true) }
func (w *world) disconnect() { w.t.Helper(); w.presence(false) }

func (w *world) presence(online bool) {
	w.t.Helper()
	if err := w.store.SetSitePresence(w.t.Context(), "home", protocol.Presence{V: 1, Online: online, Session: "1"}); err != nil {
		w.t.Fatal(err)
	}
}

// adopt reports that the site home adopted its latest desired state.
func (w *world) adopt() {
	w.t.Helper()
	s, err := w.store.Site(w.t.Context(), "home")
	if err != nil {
		w.t.Fatal(err)
	}
	w.report(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: s.Generation}})
}

// shows checks the state of home/hello in the list and alone, and returns it.
func (w *world) shows(state lifecycle.State, reasons ...string) fleet.Deployment {
	w.t.Helper()
	var d fleet.Deployment
	w.get("/api/v1/deployments/home/hello").into(http.StatusOK, &d)
	var list form.List[fleet.Deployment]
	w.get("/api/v1/deployments?site=home&state="+string(state)).into(http.StatusOK, &list)
	if d.State != state || len(list.Items) != 1 {
		w.t.Errorf("the state is %s, and %d are listed as %s; want %[3]s: %s", d.State, len(list.Items), state, d.Reason)
	}
	if len(reasons) == 0 && d.Reason != "" {
		w.t.Errorf("reason of %s: %s; want none", d.State, d.Reason)
	}
	for _, r := range reasons {
		if !strings.Contains(d.Reason, r) {
			w.t.Errorf("reason of %s: %q; want %q in it", d.State, d.Reason, r)
		}
	}
	if d.ReportedAt == nil || d.Since == nil {
		w.t.Errorf("since %v, as of %v", d.Since, d.ReportedAt)
	}
	return d
}

// status reports one status of home/hello on gw-1.
func (w *world) status(s lifecycle.State, version string, digest, refused protocol.Digest) {
	w.t.Helper()
	actor := lifecycle.LO
	if s == lifecycle.Installed || s == lifecycle.Failed {
		actor = lifecycle.EN
	}
	w.report(protocol.StatusEvent, "gw-1", protocol.DeploymentStatus{
		V: 1, Node: "gw-1", Deployment: "hello", State: s, Actor: actor, App: "hello", AppVersion: version, Digest: digest, Refused: refused,
		Code: map[bool]protocol.Code{true: "CrashLoop"}[refused != ""],
	})
}

// TestStateShownIsStateKnown follows a deployment through an update that its site has not
// adopted, a rollback, too few nodes, and an offline site: it is INSTALLED only while
// what runs is what is desired.
func TestStateShownIsStateKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.connect()
	const path = "/api/v1/deployments/home/hello"
	d := w.deploy(map[string]any{"site": "home", "app": "hello", "version": "1.0.0", "replicas": 1})
	first := w.recorded(d).Digest
	w.shows(lifecycle.Pending, "has adopted generation 0, and the last change is of 1", "1.0.0 runs on 0 of 1 nodes")
	w.status(lifecycle.Pending, "1.0.0", first, "")
	w.adopt()
	w.shows(lifecycle.Pending, "0 of 1")
	w.status(lifecycle.Installing, "1.0.0", first, "")
	w.status(lifecycle.Installed, "1.0.0", first, "")
	d = w.shows(lifecycle.Installed)
	diff(t, "running", map[string]int{"1.0.0": 1}, d.Running)

	var asked fleet.Deployment
	w.do(http.MethodPatch, path, map[string]any{"version": "1.1.0"}).into(http.StatusOK, &asked)
	if asked.State != lifecycle.Pending || asked.Installed != 0 || asked.AppVersion != "1.1.0" || asked.Running["1.0.0"] != 1 {
		t.Errorf("answer to the update: %s of %s, running %v, installed %d", asked.State, asked.AppVersion, asked.Running, asked.Installed)
	}
	second := w.recorded(asked).Digest
	d = w.shows(lifecycle.Pending, "has adopted generation 1, and the last change is of 2", "1.1.0 runs on 0 of 1 nodes")
	if d.AppVersion != "1.1.0" || d.Running["1.0.0"] != 1 || d.Generation != 2 || d.ObservedGeneration != 1 {
		t.Errorf("desired %s, running %v, generation %d, observed %d", d.AppVersion, d.Running, d.Generation, d.ObservedGeneration)
	}

	w.adopt()
	w.status(lifecycle.Updating, "1.1.0", second, "")
	w.status(lifecycle.Failed, "1.1.0", second, second)
	w.status(lifecycle.RollingBack, "1.0.0", first, second)
	w.status(lifecycle.Installed, "1.0.0", first, second)
	d = w.shows(lifecycle.Failed, "node gw-1: CrashLoop", "1.1.0 runs on 0 of 1 nodes")
	diff(t, "running after a rollback", map[string]int{"1.0.0": 1}, d.Running)

	w.do(http.MethodPatch, path, map[string]any{"version": "1.0.0", "replicas": 5}).into(http.StatusOK, &asked)
	w.recorded(asked)
	w.adopt()
	w.status(lifecycle.Installed, "1.0.0", first, "")
	d = w.shows(lifecycle.Pending, "1.0.0 runs on 1 of 5 nodes")
	if d.Installed != 1 || d.DesiredNodes != 5 {
		t.Errorf("installed on %d of %d", d.Installed, d.DesiredNodes)
	}

	w.do(http.MethodPatch, path, map[string]any{"replicas": 1}).into(http.StatusOK, &asked)
	w.recorded(asked)
	w.disconnect()
	w.shows(lifecycle.Pending, "has adopted generation", "is offline and reported last at 20")
	w.connect()
	w.adopt()
	w.shows(lifecycle.Installed)
	w.do(http.MethodDelete, path, nil).into(http.StatusNoContent, nil)
	w.eventually(func() bool {
		d, err := w.store.Deployment(t.Context(), "home", "hello")
		return err == nil && d.State == lifecycle.Deleting
	})
}

// TestNodesOfAnOfflineSite checks that they are not counted as online.
func TestNodesOfAnOfflineSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	for _, online := range []bool{true, false} {
		w.presence(online)
		want, up, unknown := "online", 2, 0
		if !online {
			want, up, unknown = "unknown", 0, 2
		}
		var n fleet.Node
		w.get("/api/v1/nodes/home/gw-1").into(http.StatusOK, &n)
		if n.State != want || n.Online != online || n.ReportedAt == nil {
			t.Errorf("node of a site that is online %t: %s, online %t, as of %v", online, n.State, n.Online, n.ReportedAt)
		}
		var s fleet.Site
		w.get("/api/v1/sites/home").into(http.StatusOK, &s)
		if s.NodesOnline != up || s.NodesUnknown != unknown || s.ReportedAt == nil {
			t.Errorf("site that is online %t: %d nodes online, %d unknown, as of %v", online, s.NodesOnline, s.NodesUnknown, s.ReportedAt)
		}
		var all api.Status
		w.get("/api/v1/status").into(http.StatusOK, &all)
		if all.NodesOnline != up || all.NodesUnknown != unknown {
			t.Errorf("status with a site that is online %t: %d nodes online, %d unknown", online, all.NodesOnline, all.NodesUnknown)
		}
	}
}

// TestPlacementIsUndone sets a placement and undoes it, each way that the API has.
func TestPlacementIsUndone(t *testing.T) {
	t.Parallel()
	w := site(t)
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	for _, undo := range []string{
		`{"node": null, "nodes": null, "replicas": null}`, `{"node": "", "nodes": {}, "replicas": 0}`, `{"node": "*", "nodes": {}, "replicas": 0}`,
	} {
		const path = "/api/v1/deployments/home/hello"
		w.do(http.MethodPatch, path, `{"node": "gw-1", "nodes": {"hall": "7"}, "replicas": 2}`).into(http.StatusOK, nil)
		w.do(http.MethodPatch, path, `{"parameters": {}}`).into(http.StatusOK, nil)
		file, _ := w.file("home", "hello")
		diff(t, "placement", []any{"home/gw-1", map[string]string{"hall": "7"}, uint32(2)},
			[]any{file.Metadata.DeviceID, file.Spec.Colony.Selector, file.Spec.Colony.Replicas})
		w.do(http.MethodPatch, path, undo).into(http.StatusOK, nil)
		file, _ = w.file("home", "hello")
		if file.Metadata.DeviceID != "home/*" || len(file.Spec.Colony.Selector) != 0 || file.Spec.Colony.Replicas != 0 {
			t.Errorf("after %s: device %s, selector %v, replicas %d", undo, file.Metadata.DeviceID, file.Spec.Colony.Selector, file.Spec.Colony.Replicas)
		}
	}
	w.do(http.MethodPatch, "/api/v1/deployments/home/hello", `{"replicas": -1}`).fails(http.StatusUnprocessableEntity, "replicas")
	w.do(http.MethodPatch, "/api/v1/deployments/home/hello", `{"nodes": "x"}`).fails(http.StatusUnprocessableEntity, "nodes")
}

// TestParallelChangesOfOneDeployment changes one parameter in 10 requests at a time, and
// another in 10 more: all of them succeed, each with a commit of its own.
func TestParallelChangesOfOneDeployment(t *testing.T) {
	t.Parallel()
	w := site(t)
	w.deploy(map[string]any{"site": "home", "app": "hello", "replicas": 1})
	const path, writers = "/api/v1/deployments/home/hello", 10
	var wg sync.WaitGroup
	answers := make([]answer, 2*writers)
	for i := range writers {
		wg.Go(func() {
			answers[i] = w.do(http.MethodPatch, path, map[string]any{"replicas": i + 2})
		})
		wg.Go(func() {
			answers[writers+i] = w.do(http.MethodPatch, path, map[string]any{"policy": map[string]any{"attempts": i + 2}})
		})
	}
	wg.Wait()
	commits := map[string]bool{}
	for i, a := range answers {
		var d fleet.Deployment
		a.into(http.StatusOK, &d)
		if commits[d.Commit] = true; d.Commit == "" {
			t.Errorf("answer %d has no commit", i)
		}
	}
	file, _ := w.file("home", "hello")
	if len(commits) != len(answers) || file.Spec.Colony.Replicas < 2 || file.Spec.Colony.Policy == nil {
		t.Errorf("%d commits, want %d; %d replicas, policy %v", len(commits), len(answers), file.Spec.Colony.Replicas, fmt.Sprint(file.Spec.Colony.Policy))
	}
}
