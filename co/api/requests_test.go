package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// desired waits until what is published for home satisfies a condition.
func (w *world) desired(what string, cond func(protocol.SiteDesired) bool) {
	w.t.Helper()
	w.eventually(func() bool {
		m, err := w.store.LastDesired(w.t.Context(), "home")
		if err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
		return cond(m)
	})
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	w.report(protocol.InventoryChanged, "gw-1", protocol.Inventory{
		V: 1, Node: "gw-1", VolumeCount: 4, Volumes: []protocol.Volume{
			{Deployment: "old", Name: "data", Bytes: 10, RemovedMillis: 1_700_000_000_000}, {Deployment: "old", Name: "logs"}, {Deployment: "older", Name: "data"},
		},
	})
	volumes := func(a answer, status int) (got api.KeptVolumes) {
		t.Helper()
		a.into(status, &got)
		return got
	}
	got := volumes(w.get("/api/v1/sites/home/volumes"), http.StatusOK)
	if len(got.Items) != 3 || got.More != 1 || got.Items[0].RemovedAt == nil {
		t.Errorf("volumes of the site: %+v", got)
	}
	got = volumes(w.get("/api/v1/sites/home/volumes?node=gw-1&deployment=older"), http.StatusOK)
	if len(got.Items) != 1 || got.Items[0].Deployment != "older" {
		t.Errorf("volumes of older: %+v", got)
	}
	got = volumes(w.get("/api/v1/sites/home/volumes?node=gw-2"), http.StatusOK)
	if len(got.Items) != 0 || got.More != 0 {
		t.Errorf("volumes of gw-2: %+v", got)
	}
	w.get("/api/v1/sites/home/volumes?node=gw-9").fails(http.StatusNotFound, "gw-1, gw-2")
	w.get("/api/v1/sites/none/volumes").fails(http.StatusNotFound, "none")
	w.do(http.MethodDelete, "/api/v1/nodes/home/gw-2/volumes/old", nil).fails(http.StatusNotFound, "keeps no volume")

	got = volumes(w.do(http.MethodDelete, "/api/v1/nodes/home/gw-1/volumes/old?volume=logs", nil), http.StatusAccepted)
	if len(got.Items) != 1 || got.Items[0].Volume != "logs" || !got.Items[0].Purging {
		t.Errorf("asked for %+v, want logs", got)
	}
	w.desired("the purge of logs", func(m protocol.SiteDesired) bool {
		return len(m.Purges) == 1 && m.Purges[0].Node == "gw-1" && m.Purges[0].Deployment == "old" && m.Purges[0].Volume == "logs"
	})
	got = volumes(w.do(http.MethodDelete, "/api/v1/nodes/home/gw-1/volumes/old", nil), http.StatusAccepted)
	if len(got.Items) != 2 {
		t.Errorf("asked for %+v, want data and logs", got)
	}
	w.desired("the purge of all", func(m protocol.SiteDesired) bool { return len(m.Purges) == 2 && m.Purges[0].Volume == "" })
}

// TestDeleteWhatTheRepoHasNot removes deployments that nodes hold and no file names.
func TestDeleteWhatTheRepoHasNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	w.transitions("back", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	w.report(protocol.InventoryChanged, "gw-1", protocol.Inventory{
		V: 1, Node: "gw-1", Unknown: []protocol.DeploymentName{"lost"}, VolumeCount: 1, Volumes: []protocol.Volume{{Deployment: "kept", Name: "data"}},
	})
	const at = "/api/v1/deployments/home/"
	w.do(http.MethodDelete, at+"none", nil).fails(http.StatusNotFound, "no deployment none")
	w.do(http.MethodDelete, at+"kept", nil).fails(http.StatusNotFound, "no deployment kept")
	w.do(http.MethodDelete, at+"back", nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, at+"lost", nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, at+"kept?volumes=true", nil).into(http.StatusNoContent, nil)
	w.desired("the tombstones", func(m protocol.SiteDesired) bool {
		return len(m.Removals) == 3 && m.Removals[0].Deployment == "back" && m.Removals[1].Deployment == "kept" && m.Removals[1].Volumes && m.Removals[2].Deployment == "lost"
	})
	var d fleet.Deployment
	w.get(at+"back").into(http.StatusOK, &d)
	if d.State != lifecycle.Deleting {
		t.Errorf("back is %s, want DELETING", d.State)
	}
}

// TestChangeWhatTheRepoHasNot says what is left of a deployment that no file names, at a site
// that has more deployments than an error lists.
func TestChangeWhatTheRepoHasNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	for i := range 12 {
		w.transitions(protocol.DeploymentName(fmt.Sprintf("a%02d", i)), lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	}
	w.transitions("z", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	const at = "/api/v1/deployments/home/"
	w.do(http.MethodPatch, at+"z", map[string]any{}).fails(http.StatusNotFound, "the deployments repo has no deployment z of site home: nodes hold it all the same")
	w.do(http.MethodPatch, at+"b", map[string]any{}).fails(http.StatusNotFound, "site home has no deployment b; it has a00, ", ", a09 and more")
	w.do(http.MethodDelete, at+"z", nil).into(http.StatusNoContent, nil)
	w.desired("the tombstone", func(m protocol.SiteDesired) bool { return len(m.Removals) == 1 })
	w.do(http.MethodPatch, at+"z", map[string]any{}).fails(http.StatusNotFound, "it is being removed from its nodes")
}

func TestRemoveNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	if err := w.store.SetSitePresence(t.Context(), "home", protocol.Presence{V: 1, Online: true, Session: "1"}); err != nil {
		t.Fatal(err)
	}
	w.transitions("back", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	const gw1 = "/api/v1/nodes/home/gw-1"
	w.do(http.MethodDelete, "/api/v1/nodes/home/none", nil).fails(http.StatusNotFound, "no node none")
	w.do(http.MethodDelete, gw1+"?force=true", nil).fails(http.StatusConflict, "node home/gw-1 is online: stop its agent")
	w.report(protocol.NodeOfflineEvent, "gw-1", protocol.Presence{V: 1})
	w.do(http.MethodDelete, gw1, nil).fails(http.StatusConflict, "node home/gw-1 is in use: it runs back; placed on it by its name: nothing", "with force")
	var got api.NodeRemoval
	w.do(http.MethodDelete, gw1+"?force=true", nil).into(http.StatusAccepted, &got)
	diff(t, "what goes with it", api.NodeRemoval{Site: "home", Node: "gw-1", Runs: []protocol.DeploymentName{"back"}, Named: []protocol.DeploymentName{}}, got)
	var at protocol.Position
	w.desired("the removal of gw-1", func(m protocol.SiteDesired) bool {
		if len(m.Decommissions) != 1 || m.Decommissions[0].Node != "gw-1" {
			return false
		}
		at = m.Decommissions[0].Position
		return true
	})
	var n fleet.Node
	w.get(gw1).into(http.StatusOK, &n)
	if n.Decommissioning == nil {
		t.Errorf("%+v does not say that its removal was asked for", n)
	}
	w.report(protocol.NodeDecommissioned, "gw-1", protocol.Decommissioned{V: 1, Position: at})
	w.get(gw1).fails(http.StatusNotFound, "no node gw-1; it has gw-2")
}

func TestRemoveSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	const home = "/api/v1/sites/home"
	online := func(online bool) {
		t.Helper()
		if err := w.store.SetSitePresence(t.Context(), "home", protocol.Presence{V: 1, Online: online, Session: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	removed := func() bool {
		_, err := w.store.Site(t.Context(), "home")
		return protocol.KindOf(err) == protocol.NotFound
	}
	d := w.deploy(map[string]any{"site": "home", "app": "hello"})
	w.report(protocol.StatusEvent, "gw-1", protocol.DeploymentStatus{V: 1, Node: "gw-1", Deployment: d.Name, State: lifecycle.Pending, Actor: lifecycle.LO, Digest: d.Digest})
	online(true)
	w.do(http.MethodDelete, home+"?force=true", nil).fails(http.StatusConflict, "site home is online: stop its LO first")
	online(false)
	w.do(http.MethodDelete, home, nil).fails(http.StatusConflict, "site home is in use: its deployments are hello", "with force")
	w.do(http.MethodDelete, "/api/v1/sites/none", nil).fails(http.StatusNotFound, "none")
	var got api.SiteRemoval
	w.do(http.MethodDelete, home+"?force=true", nil).into(http.StatusAccepted, &got)
	if got.Nodes != 2 || len(got.Deployments) != 1 || got.Deployments[0] != d.Name {
		t.Errorf("what goes with it: %+v", got)
	}
	w.eventually(removed)
	w.get("/api/v1/deployments/home/" + string(d.Name)).fails(http.StatusNotFound)
	w.get("/api/v1/nodes/home/gw-1").fails(http.StatusNotFound)
	if !w.has(fleet.SiteRemoved) || !w.has(fleet.DeploymentCreated) {
		t.Error("the events of the site are not all there")
	}

	// The name is free, for a site like a new one.
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{"id": "home"}).into(http.StatusCreated, nil)
	again := w.deploy(map[string]any{"site": "home", "app": "hello"})
	if len(again.Nodes) != 0 || again.ID == d.ID {
		t.Errorf("deployed again: %+v", again)
	}
	w.do(http.MethodDelete, "/api/v1/deployments/home/"+string(d.Name), nil).into(http.StatusNoContent, nil)
	w.desired("the removal of hello", func(m protocol.SiteDesired) bool { return len(m.Deployments) == 0 })
	w.do(http.MethodDelete, home, nil).into(http.StatusAccepted, nil)
	w.eventually(removed)
}
