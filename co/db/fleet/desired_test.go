package fleetdb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func want(name, version, commit string) fleet.Desired {
	spec := []byte("spec of " + name + " " + version)
	return fleet.Desired{
		Site: "home", Name: protocol.DeploymentName(name), ID: "id-" + name, App: "app", AppVersion: version, Commit: commit,
		Entry: protocol.SiteEntry{Deployment: protocol.DeploymentName(name), Digest: protocol.DigestOf(spec), Size: uint64(len(spec)), Spec: spec},
	}
}

func TestSaveDesired(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	if v := must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); v.Generation != 0 || v.Epoch != pool.Epoch() || len(v.Deployments) != 0 {
		t.Errorf("unknown site: %+v", v)
	}
	broken := want("b", "1", "c1")
	broken.Entry, broken.Problem = protocol.SiteEntry{}, "line 3: no"
	stillBroken := broken
	stillBroken.Problem, stillBroken.App, stillBroken.Commit = "line 4: no", "", "c4"
	retried := want("a", "2", "c5")
	retried.Entry.Retry = 1

	for _, step := range []struct {
		name       string
		commit     string
		list       []fleet.Desired
		generation uint64
		versions   []string // of what is published
		events     []string
	}{
		{
			"first", "c1",
			[]fleet.Desired{want("b", "1", "c1"), want("a", "1", "c1")},
			1,
			[]string{"a 1", "b 1"},
			[]string{"deployment_created a", "deployment_created b"},
		},
		{"the same, later", "c2", []fleet.Desired{want("a", "1", "c1"), want("b", "1", "c1")}, 1, []string{"a 1", "b 1"}, []string{}},
		{"update", "c3", []fleet.Desired{want("a", "2", "c3"), want("b", "1", "c1")}, 2, []string{"a 2", "b 1"}, []string{"deployment_changed a"}},
		{
			"a bad file keeps its entry", "c4",
			[]fleet.Desired{want("a", "2", "c3"), stillBroken},
			2,
			[]string{"a 2", "b 1"},
			[]string{"deployment_invalid b"},
		},
		{"the same bad file", "c4", []fleet.Desired{want("a", "2", "c3"), stillBroken}, 2, []string{"a 2", "b 1"}, []string{}},
		{"retry", "c5", []fleet.Desired{retried, stillBroken}, 3, []string{"a 2", "b 1"}, []string{"deployment_changed a"}},
		{"remove", "c6", []fleet.Desired{retried}, 4, []string{"a 2"}, []string{"deployment_removed b"}},
		{"again, but bad", "c7", []fleet.Desired{retried, broken}, 4, []string{"a 2"}, []string{"deployment_created b", "deployment_invalid b"}},
		{"nothing", "c8", nil, 5, nil, []string{"deployment_removed a", "deployment_removed b"}},
	} {
		last := must[int64](t)(s.LastEvent(ctx))
		before := must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))
		out, changed, err := s.SaveDesired(ctx, "home", step.commit, step.list, fleet.SiteData{})
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if out.Generation != step.generation || changed != (before.Generation != out.Generation) {
			t.Errorf("%s: generation %d after %d, changed %v; want %d", step.name, out.Generation, before.Generation, changed, step.generation)
		}
		if changed != (out.Commit == step.commit) {
			t.Errorf("%s: commit %s", step.name, out.Commit)
		}
		var versions []string
		for _, e := range out.Deployments {
			for _, v := range []string{"1", "2"} {
				if e.Digest == want(string(e.Deployment), v, "").Entry.Digest {
					versions = append(versions, string(e.Deployment)+" "+v)
				}
			}
		}
		if diff := cmp.Diff(step.versions, versions); diff != "" {
			t.Errorf("%s: published: %s", step.name, diff)
		}
		if diff := cmp.Diff(out, must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); diff != "" {
			t.Errorf("%s: LastDesired: %s", step.name, diff)
		}
		got := kinds(must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last})))
		if diff := cmp.Diff(step.events, got); diff != "" {
			t.Errorf("%s: events: %s", step.name, diff)
		}
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c9", []fleet.Desired{retried, broken}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.Desired{retried, broken}, must[[]fleet.Desired](t)(s.Desired(ctx, "home"))); diff != "" {
		t.Error(diff)
	}
	spec := want("a", "1", "").Entry
	if b := must[[]byte](t)(s.Spec(ctx, spec.Digest)); string(b) != string(spec.Spec) {
		t.Errorf("spec of an old version: %q", b)
	}
	_, err := s.Spec(ctx, protocol.DigestOf(nil))
	wantKind(t, err, protocol.NotFound, "no spec")
}

func TestDeploymentBeforeAnyNode(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	bad := want("b", "1", "c1")
	bad.Entry, bad.Problem = protocol.SiteEntry{}, "no such profile"
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1"), bad}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	a := must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a"))
	if a.State != lifecycle.Pending || a.Archived || a.Commit != "c1" || a.AppVersion != "1" || a.ID != "id-a" {
		t.Errorf("%+v", a)
	}
	if b := must[fleet.Deployment](t)(s.Deployment(ctx, "home", "b")); b.Problem != "no such profile" || b.Digest != "" {
		t.Errorf("%+v", b)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c2", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if a := must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a")); !a.Archived || a.State != lifecycle.Deleted {
		t.Errorf("removed before any node had it: %+v", a)
	}
	if list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{}, fleet.Page{}); err != nil || len(list) != 0 {
		t.Errorf("archived ones are listed: %v, %v", list, err)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c3", []fleet.Desired{want("a", "1", "c3")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if a := must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a")); a.Archived || a.State != lifecycle.Pending {
		t.Errorf("deployed again: %+v", a)
	}
	_, err := s.Deployment(ctx, "home", "c")
	wantKind(t, err, protocol.NotFound, `no deployment "c" at site "home"`)
}
