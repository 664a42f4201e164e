package fleetdb_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
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
	if v := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); !v.Position.IsZero() || len(v.Deployments) != 0 {
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
		versions   []string // of what is published, with the position of the last change
		events     []string
	}{
		{
			"first", "c1",
			[]fleet.Desired{want("b", "1", "c1"), want("a", "1", "c1")},
			1,
			[]string{"a 1 at 1.1", "b 1 at 1.1"},
			[]string{"deployment_created a", "deployment_created b"},
		},
		{"the same, later", "c2", []fleet.Desired{want("a", "1", "c1"), want("b", "1", "c1")}, 1, []string{"a 1 at 1.1", "b 1 at 1.1"}, []string{}},
		{"update", "c3", []fleet.Desired{want("a", "2", "c3"), want("b", "1", "c1")}, 2, []string{"a 2 at 1.2", "b 1 at 1.1"}, []string{"deployment_changed a"}},
		{
			"a bad file keeps its entry", "c4",
			[]fleet.Desired{want("a", "2", "c3"), stillBroken},
			2,
			[]string{"a 2 at 1.2", "b 1 at 1.1"},
			[]string{"deployment_invalid b"},
		},
		{"the same bad file", "c4", []fleet.Desired{want("a", "2", "c3"), stillBroken}, 2, []string{"a 2 at 1.2", "b 1 at 1.1"}, []string{}},
		{"retry", "c5", []fleet.Desired{retried, stillBroken}, 3, []string{"a 2 at 1.3", "b 1 at 1.1"}, []string{"deployment_changed a"}},
		{"remove", "c6", []fleet.Desired{retried}, 4, []string{"a 2 at 1.3", "remove b at 1.4"}, []string{"deployment_removed b"}},
		{"again, but bad", "c7", []fleet.Desired{retried, broken}, 5, []string{"a 2 at 1.3"}, []string{"deployment_created b", "deployment_invalid b"}},
		{"nothing", "c8", nil, 6, []string{"remove a at 1.6"}, []string{"deployment_removed a", "deployment_removed b"}},
	} {
		last := testpart.Must[int64](t)(s.LastEvent(ctx))
		before := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))
		out, changed, err := s.SaveDesired(ctx, "home", step.commit, step.list, fleet.SiteData{})
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if out.Position.Generation != step.generation || changed != (before.Position.Generation != out.Position.Generation) {
			t.Errorf("%s: generation %d after %d, changed %v; want %d", step.name, out.Position.Generation, before.Position.Generation, changed, step.generation)
		}
		if changed != (out.Commit == step.commit) {
			t.Errorf("%s: commit %s", step.name, out.Commit)
		}
		var versions []string
		for _, e := range out.Deployments {
			for _, v := range []string{"1", "2"} {
				if e.Digest == want(string(e.Deployment), v, "").Entry.Digest {
					versions = append(versions, string(e.Deployment)+" "+v+" at "+e.Position.String())
				}
			}
		}
		for _, r := range out.Removals {
			versions = append(versions, "remove "+string(r.Deployment)+" at "+r.Position.String())
		}
		if diff := cmp.Diff(step.versions, versions); diff != "" {
			t.Errorf("%s: published: %s", step.name, diff)
		}
		if diff := cmp.Diff(out, testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); diff != "" {
			t.Errorf("%s: LastDesired: %s", step.name, diff)
		}
		got := kinds(testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last})))
		if diff := cmp.Diff(step.events, got); diff != "" {
			t.Errorf("%s: events: %s", step.name, diff)
		}
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c9", []fleet.Desired{retried, broken}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.Desired{retried, broken}, testpart.Must[[]fleet.SiteRecord](t)(s.Recorded(ctx, []protocol.SiteID{"home"}))[0].Desired); diff != "" {
		t.Error(diff)
	}
	spec := want("a", "1", "").Entry
	if b := testpart.Must[[]byte](t)(s.Spec(ctx, spec.Digest)); string(b) != string(spec.Spec) {
		t.Errorf("spec of an old version: %q", b)
	}
	_, err := s.Spec(ctx, protocol.DigestOf(nil))
	wantKind(t, err, protocol.NotFound, "no spec")
}

// TestSaveAll saves several sites at once; one of them has a text that no column can hold, and
// does not keep the others from being saved.
func TestSaveAll(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	bad := want("a", "1", "c1")
	bad.Problem = "line 1: \x00"
	wants := []fleet.SiteWant{
		{Site: "mill", Desired: []fleet.Desired{want("a", "1", "c1"), want("b", "1", "c1")}},
		{Site: "bad", Desired: []fleet.Desired{bad}},
		{Site: "home", Desired: []fleet.Desired{want("a", "2", "c1")}, Data: fleet.SiteData{Commit: "c1", Problem: "line 2"}},
	}
	check := func(commit string, list []fleet.SiteWant, changed bool) {
		t.Helper()
		saved := s.SaveAll(ctx, commit, list)
		for i, w := range list {
			if w.Site == "bad" {
				wantKind(t, saved[i].Err, protocol.Invalid, "save desired state")
				continue
			}
			if saved[i].Err != nil || saved[i].Changed != changed || saved[i].Message.Site != w.Site {
				t.Errorf("site %s: %+v", w.Site, saved[i])
			}
			r := testpart.Must[[]fleet.SiteRecord](t)(s.Recorded(ctx, []protocol.SiteID{"none", w.Site}))
			for j := range w.Desired {
				w.Desired[j].Site = w.Site
			}
			if diff := cmp.Diff(fleet.SiteRecord{Site: w.Site, Desired: w.Desired, Data: w.Data, Message: saved[i].Message}, r[1]); diff != "" {
				t.Errorf("site %s (-saved +recorded):\n%s", w.Site, diff)
			}
			if r[0].Site != "none" || len(r[0].Desired) > 0 || !r[0].Message.Position.IsZero() {
				t.Errorf("a site that is not there: %+v", r[0])
			}
		}
	}
	check("c1", wants, true)
	check("c2", append(wants[:1:1], wants[2]), false)
	if got := testpart.Must[map[protocol.SiteID]bool](t)(s.Connected(ctx)); len(got) != 2 || got["mill"] || got["home"] {
		t.Errorf("sites and whether they were online: %v", got)
	}
}

// TestSaveOfFormerHolder saves for a holder of the lease that another one has acquired since.
func TestSaveOfFormerHolder(t *testing.T) {
	t.Parallel()
	pool := openDB(t)
	s := fleetdb.New(pool)
	held, release, err := pool.Lease(t.Context(), "desired state")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	list := []fleet.SiteWant{{Site: "home", Desired: []fleet.Desired{want("a", "1", "c1")}}}
	if saved := s.SaveAll(held, "c1", list); saved[0].Err != nil {
		t.Fatal(saved[0].Err)
	}
	if _, err := pool.Exec(t.Context(), `update leases set token = token + 1`); err != nil {
		t.Fatal(err)
	}
	list[0].Desired = nil
	saved := s.SaveAll(context.WithoutCancel(held), "c2", list)
	wantKind(t, saved[0].Err, protocol.Unavailable, "was given to another replica")
	if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(t.Context(), "home")); last.Commit != "c1" || len(last.Deployments) != 1 {
		t.Errorf("recorded after that: %+v", last)
	}
}

// TestTombstones follows a removal until it has done its work: it is published until
// the site has adopted it and every node has reported DELETED, and what is published
// changes only with the position.
func TestTombstones(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	commits := 0
	save := func(list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		commits++
		out, _, err := s.SaveDesired(ctx, "home", fmt.Sprint("c", commits), list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	removals := func(m protocol.SiteDesired) []string {
		var out []string
		for _, r := range m.Removals {
			out = append(out, string(r.Deployment)+" "+r.Position.String())
		}
		return out
	}
	check := func(what string, m protocol.SiteDesired, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, removals(m)); diff != "" {
			t.Errorf("%s: removals (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(m, testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); diff != "" {
			t.Errorf("%s: what is recorded differs from what was published:\n%s", what, diff)
		}
	}
	x := want("x", "1", "c")
	save(want("a", "1", "c1"), x)
	check("removed", save(x), "a 1.2")
	y := want("y", "1", "c")
	check("the site has not adopted it", save(x, y), "a 1.2")

	j, sent := &journal{epoch: "e"}, 0
	commit := func() {
		t.Helper()
		if _, err := j.send(ctx, s, sent+1, len(j.events), 0); err != nil {
			t.Fatal(err)
		}
		sent = len(j.events)
	}
	j.status("a", "n1", lifecycle.Pending, lifecycle.LO)
	j.status("a", "n1", lifecycle.Deleting, lifecycle.LO)
	j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: 3}})
	commit()
	check("the node removes it", save(x), "a 1.2", "y 1.4")
	j.status("a", "n1", lifecycle.Deleted, lifecycle.EN)
	commit()
	last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))
	check("nothing changed since the node reported DELETED", last, "a 1.2", "y 1.4")
	if again := save(x); again.Position != last.Position {
		t.Errorf("the position is %s after nothing changed, want %s", again.Position, last.Position)
	}
	check("the next change drops it", save(), "x 1.5", "y 1.4")
	back := save(want("y", "2", "c"))
	check("deployed again under the same name", back, "x 1.5")
	if e := back.Deployments[0]; e.Position != (protocol.Position{Epoch: 1, Generation: 6}) {
		t.Errorf("the entry of a deployment that came back has position %s, want 1.6", e.Position)
	}
}

// TestTombstoneEndsWhereTheNameIsBack lists a removed name again in a file that does not
// compile: what a node may run of it stays until the file says what to do.
func TestTombstoneEndsWhereTheNameIsBack(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	broken := want("a", "1", "c3")
	broken.Entry, broken.Problem = protocol.SiteEntry{}, "no such profile"
	var out protocol.SiteDesired
	for i, list := range [][]fleet.Desired{{want("a", "1", "c1")}, nil, {broken}} {
		var changed bool
		var err error
		if out, changed, err = s.SaveDesired(ctx, "home", fmt.Sprint("c", i+1), list, fleet.SiteData{}); err != nil || !changed {
			t.Fatalf("save %d: changed %t, error %v; want a change", i+1, changed, err)
		}
	}
	if len(out.Removals) > 0 || out.Position != (protocol.Position{Epoch: 1, Generation: 3}) {
		t.Errorf("published %s with removals %+v, want 1.3 without", out.Position, out.Removals)
	}
	if diff := cmp.Diff(out, testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); diff != "" {
		t.Errorf("what is recorded differs from what was published:\n%s", diff)
	}
}

func TestDeploymentBeforeAnyNode(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	bad := want("b", "1", "c1")
	bad.Entry, bad.Problem = protocol.SiteEntry{}, "no such profile"
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1"), bad}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	a := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a"))
	if a.State != lifecycle.Pending || a.Archived || a.Commit != "c1" || a.AppVersion != "1" || a.ID != "id-a" {
		t.Errorf("%+v", a)
	}
	if b := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "b")); b.Problem != "no such profile" || b.Digest != "" {
		t.Errorf("%+v", b)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c2", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if a := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a")); !a.Archived || a.State != lifecycle.Deleted {
		t.Errorf("removed before any node had it: %+v", a)
	}
	if list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{}, fleet.Page{}); err != nil || len(list) != 0 {
		t.Errorf("archived ones are listed: %v, %v", list, err)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c3", []fleet.Desired{want("a", "1", "c3")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if a := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a")); a.Archived || a.State != lifecycle.Pending {
		t.Errorf("deployed again: %+v", a)
	}
	_, err := s.Deployment(ctx, "home", "c")
	wantKind(t, err, protocol.NotFound, `no deployment "c" at site "home"`)
}
