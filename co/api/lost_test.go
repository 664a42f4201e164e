package api_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestStatusWithAHungPart asks for the status while a part does not answer at all.
func TestStatusWithAHungPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop, options(func(o *api.Options) {
		o.Ready = func(ctx context.Context) map[string]error {
			<-ctx.Done()
			return map[string]error{"deployments repo": ctx.Err()}
		}
	}))
	var s api.Status
	w.get("/api/v1/status").into(http.StatusOK, &s)
	if p := s.Parts["deployments repo"]; p == "" || p == "ok" {
		t.Errorf("parts = %v", s.Parts)
	}
}

// TestArchivedNameIsUsedAgain asks for a deployment of a name that was used before,
// while the record does not hold the new one yet.
func TestArchivedNameIsUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.importApps()
	w.fleet()
	ctx := t.Context()
	d := w.deploy(map[string]any{"site": "home", "app": "hello"})
	wanted := []fleet.Desired{{Site: d.Site, Name: d.Name, ID: d.ID, App: d.App, Commit: d.Commit, Problem: "none of its images is there"}}
	for _, list := range [][]fleet.Desired{wanted, nil} {
		if _, _, err := w.store.SaveDesired(ctx, d.Site, d.Commit, list, fleet.SiteData{}); err != nil {
			t.Fatal(err)
		}
	}
	url := "/api/v1/deployments/home/" + string(d.Name)
	w.do(http.MethodDelete, url, nil).into(http.StatusNoContent, nil)
	var got fleet.Deployment
	if w.get(url).into(http.StatusOK, &got); !got.Archived || got.State != lifecycle.Deleted {
		t.Fatalf("got %+v, want it archived", got)
	}
	w.do(http.MethodPatch, url, map[string]any{}).fails(http.StatusNotFound, "it was removed, and no node has it any more")
	again := w.deploy(map[string]any{"site": "home", "app": "hello"})
	got = fleet.Deployment{}
	if w.get(url).into(http.StatusOK, &got); got.Archived || got.State != lifecycle.Pending || got.Commit != again.Commit {
		t.Errorf("got %+v, want what the repo holds, at %s", got, again.Commit)
	}
}

// TestStreamOfAnotherRecord resumes a stream with an id of a record that was lost.
func TestStreamOfAnotherRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	if err := w.store.AddEvent(t.Context(), fleet.Event{Kind: fleet.GitReachable, Message: "first"}); err != nil {
		t.Fatal(err)
	}
	got, _ := w.open("", "1000000").next(1)
	if len(got) != 1 || got[0] != "first" {
		t.Errorf("got %+v, want the first event of the record", got)
	}
}
