package fleetdb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t testing.TB) *fleetdb.Store {
	t.Helper()
	return fleetdb.New(openDB(t))
}

func openDB(t testing.TB) *db.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := db.Open(ctx, pgtest.New(t), db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func wantKind(t *testing.T, err error, kind protocol.Kind, text string) {
	t.Helper()
	if err == nil || protocol.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (kind %s), want kind %s and %q", err, protocol.KindOf(err), kind, text)
	}
}

func kinds(events []fleet.Event) []string {
	out := []string{}
	for _, e := range events {
		k := e.Kind
		if e.Deployment != "" {
			k += " " + string(e.Deployment)
		}
		if e.Node != "" {
			k += "@" + string(e.Node)
		}
		if e.To != "" {
			k += " " + string(e.From) + ">" + string(e.To)
		}
		out = append(out, k)
	}
	return out
}

// TestRemoveAppVersion removes versions that nothing uses, and is refused those that a
// deployment is to run or that a node runs.
func TestRemoveAppVersion(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	version := func(number, content string) fleet.AppVersion {
		return fleet.AppVersion{AppID: "app", Version: number, Name: "App " + number, Source: "dir", Digest: protocol.DigestOf([]byte(content)), Document: "x"}
	}
	for _, v := range []string{"1", "2", "3"} {
		testpart.Must[bool](t)(s.SaveAppVersion(ctx, version(v, v)))
	}
	j := journal{epoch: "a"}
	j.life("d", "n1") // a node runs version 1
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 3, 0))
	wanted := []fleet.Desired{{Site: "home", Name: "d", App: "app", AppVersion: "3", Commit: "c", Entry: protocol.SiteEntry{Deployment: "d", Digest: protocol.DigestOf(nil)}}}
	if _, _, err := s.SaveDesired(ctx, "home", "c", wanted, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"1", "3"} {
		wantKind(t, s.RemoveAppVersion(ctx, "app", v), protocol.Conflict, "app "+v+" is in use by home/d: deploy another version there")
	}
	wantKind(t, s.RemoveAppVersion(ctx, "app", "4"), protocol.NotFound, "has no version \"4\"")
	wantKind(t, s.RemoveAppVersion(ctx, "none", "1"), protocol.NotFound, "none")
	if err := s.RemoveAppVersion(ctx, "app", "2"); err != nil {
		t.Fatal(err)
	}
	_, err := s.AppVersion(ctx, "app", "2")
	wantKind(t, err, protocol.NotFound, "it has 3, 1")
	_, err = s.SaveAppVersion(ctx, version("2", "other bytes"))
	wantKind(t, err, protocol.Conflict, "was removed, and had other content")
	if created := testpart.Must[bool](t)(s.SaveAppVersion(ctx, version("2", "2"))); !created {
		t.Error("the same bytes again are not new after the removal")
	}

	// It is removed from the repo and from the node: the newest that is left is the latest.
	if _, _, err := s.SaveDesired(ctx, "home", "c2", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	j.status("d", "n1", lifecycle.Deleting, lifecycle.LO)
	j.status("d", "n1", lifecycle.Deleted, lifecycle.EN)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 4, 5, 0))
	if err := s.RemoveAppVersion(ctx, "app", "3"); err != nil {
		t.Fatal(err)
	}
	if app := testpart.Must[fleet.App](t)(s.App(ctx, "app")); app.Latest != "2" || app.Name != "App 2" {
		t.Errorf("latest is %+v, want version 2", app)
	}
	for _, v := range []string{"1", "2"} {
		if err := s.RemoveAppVersion(ctx, "app", v); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.App(ctx, "app")
	wantKind(t, err, protocol.NotFound, "nothing yet")
}

func TestApps(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	_, err := s.App(ctx, "hello")
	wantKind(t, err, protocol.NotFound, "nothing yet")
	v := fleet.AppVersion{
		AppID: "hello", Version: "1.0.0", Name: "Hello", Source: "dir", Digest: protocol.DigestOf([]byte("one")), Document: "a: \x01ä\n",
		Profiles:   []fleet.Profile{{ID: "p", Type: "compose", Components: []fleet.Component{{Name: "c", Repository: "r", Revision: "1"}}}},
		Parameters: []fleet.Parameter{{Name: "n", Default: "nul\x00 and \\u0000", Immutable: true}},
	}
	if created, err := s.SaveAppVersion(ctx, v); err != nil || !created {
		t.Fatalf("created %v: %v", created, err)
	}
	if created, err := s.SaveAppVersion(ctx, v); err != nil || created {
		t.Fatalf("again: created %v: %v", created, err)
	}
	for archive, want := range map[string]string{"r 1": "hello", "r 2": "", "c 1": ""} {
		repository, revision, _ := strings.Cut(archive, " ")
		if got, err := s.AppsWith(ctx, repository, revision); err != nil || strings.Join(got, " ") != want {
			t.Errorf("applications with %s: %q (%v), want %q", archive, got, err, want)
		}
	}
	other := v
	other.Digest = protocol.DigestOf([]byte("two"))
	_, err = s.SaveAppVersion(ctx, other)
	wantKind(t, err, protocol.Conflict, "a version is immutable")

	got := testpart.Must[fleet.AppVersion](t)(s.AppVersion(ctx, "hello", ""))
	v.Parameters[0].Default, v.Stage = "nul\uFFFD and \\u0000", fleet.Active
	if diff := cmp.Diff(v, got, cmpopts.IgnoreFields(fleet.AppVersion{}, "ImportedAt")); diff != "" {
		t.Error(diff)
	}
	v.Version = "0.9.0"
	testpart.Must[bool](t)(s.SaveAppVersion(ctx, v))
	app := testpart.Must[fleet.App](t)(s.App(ctx, "hello"))
	if diff := cmp.Diff(fleet.App{ID: "hello", Name: "Hello", Latest: "1.0.0", Versions: []string{"0.9.0", "1.0.0"}}, app); diff != "" {
		t.Error(diff)
	}
	_, err = s.AppVersion(ctx, "hello", "3")
	wantKind(t, err, protocol.NotFound, "it has 0.9.0, 1.0.0")
	_, err = s.App(ctx, "hallo")
	wantKind(t, err, protocol.NotFound, "there is hello")
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{}))
	if diff := cmp.Diff([]string{"app_imported", "app_imported"}, kinds(events)); diff != "" {
		t.Error(diff)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for i := range 7 {
		testpart.Must[fleet.Site](t)(s.CreateSite(ctx, protocol.SiteID(fmt.Sprintf("site-%d", i))))
	}
	_, err := s.CreateSite(ctx, "site-0")
	wantKind(t, err, protocol.Conflict, "exists already")
	_, err = s.Site(ctx, "nowhere")
	wantKind(t, err, protocol.NotFound, "no site")
	var seen []string
	p := fleet.Page{Limit: 3}
	for pages := 1; ; pages++ {
		list, next, err := s.Sites(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			seen = append(seen, string(v.ID))
		}
		if p.Cursor = next; next == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if want := "site-0 site-1 site-2 site-3 site-4 site-5 site-6"; strings.Join(seen, " ") != want {
		t.Errorf("got %v", seen)
	}
	_, _, err = s.Sites(ctx, fleet.Page{Cursor: "not one"})
	wantKind(t, err, protocol.Invalid, "cursor")
	_, _, err = s.Deployments(ctx, fleet.DeploymentFilter{App: fleet.Only("a\x00")}, fleet.Page{})
	wantKind(t, err, protocol.Invalid, "list deployments")
}

func TestSitePresence(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for _, p := range []protocol.Presence{
		{Online: true, Session: "1", Version: "v1"},
		{Online: true, Session: "1", Version: "v1"}, // retained, read again
		{Online: true, Session: "2", Version: "v2"},
		{Online: false, Session: "1"}, // the late will of an old connection
	} {
		if err := s.SetSitePresence(ctx, "home", p); err != nil {
			t.Fatal(err)
		}
	}
	if v := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); !v.Online || v.Version != "v2" || v.OnlineSince == nil {
		t.Errorf("a late will changed the presence: %+v", v)
	}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{Session: "2"}); err != nil {
		t.Fatal(err)
	}
	if v := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); v.Online || v.Version != "v2" {
		t.Errorf("still online: %+v", v)
	}
	for _, id := range []protocol.SiteID{"home", "away"} {
		if err := s.SetSitePresence(ctx, id, protocol.Presence{Online: true, Session: "3"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetOfflineExcept(ctx, []protocol.SiteID{"home"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{})) {
		got = append(got, e.Kind+" "+string(e.Site))
	}
	want := []string{"site_online home", "site_offline home", "site_online home", "site_online away", "site_offline away"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSiteProblem has an LO say that its disk is full, over a lost connection, and that it has
// room again.
func TestSiteProblem(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for i, p := range []protocol.Presence{
		{Online: true, Session: "1"},
		{Online: true, Session: "1", Problem: "the disk is full"},
		{Online: true, Session: "1", Problem: "the disk is full"},
		{Session: "1"}, // the last will was made before
		{Online: true, Session: "2", Problem: "the disk is full"},
		{Online: true, Session: "2"},
	} {
		if err := s.SetSitePresence(ctx, "home", p); err != nil {
			t.Fatal(err)
		}
		want := "the disk is full"
		if i == 0 || i == 5 {
			want = ""
		}
		if v := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); v.Problem != want {
			t.Errorf("after presence %d the problem is %q, want %q", i, v.Problem, want)
		}
	}
	var got []string
	for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{})) {
		got = append(got, strings.TrimSpace(e.Kind+" "+e.Message))
	}
	want := []string{"site_online", "site_problem the disk is full", "site_offline", "site_online", "site_problem " + fleet.NoProblem}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestRecordReach records that the deployments repo cannot be reached, and that it can
// be again.
func TestRecordReach(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.RecordReach(t.Context(), "git@example:repo", errors.New("no route to host"))
	s.RecordReach(t.Context(), "git@example:repo", nil)
	events, err := s.Events(t.Context(), fleet.EventFilter{})
	if err != nil || len(events) != 2 {
		t.Fatalf("events %+v, %v; want two", events, err)
	}
	for i, want := range []fleet.Event{
		{Kind: fleet.GitUnreachable, Message: "no route to host"}, {Kind: fleet.GitReachable, Message: "git@example:repo"},
	} {
		if events[i].Kind != want.Kind || events[i].Message != want.Message {
			t.Errorf("event %d: kind %s, message %q; want %s, %q", i, events[i].Kind, events[i].Message, want.Kind, want.Message)
		}
	}
}

func TestEventFilters(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for i := range 10 {
		e := fleet.Event{Kind: fmt.Sprintf("k%d", i%2), Site: "s", Node: protocol.NodeID(fmt.Sprintf("n%d", i%3)), Message: fmt.Sprint(i)}
		if i%5 == 0 {
			e.Deployment = "d"
		}
		if err := s.AddEvent(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddEvent(ctx, fleet.Event{Kind: string(protocol.CommandResult), Site: "s", Node: "n1", Message: "r"}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		f    fleet.EventFilter
		want string
	}{
		"all":        {fleet.EventFilter{}, "0123456789r"},
		"no results": {fleet.EventFilter{WithoutResults: true, Limit: 2, Newest: true}, "89"},
		"results":    {fleet.EventFilter{Kinds: []string{string(protocol.CommandResult)}}, "r"},
		"limit":      {fleet.EventFilter{Limit: 2}, "01"},
		"newest":     {fleet.EventFilter{Limit: 2, Newest: true}, "9r"},
		"after":      {fleet.EventFilter{After: 7}, "789r"},
		"kind":       {fleet.EventFilter{Kinds: []string{"k1", "none"}}, "13579"},
		"node":       {fleet.EventFilter{Node: "n2", Site: "s"}, "258"},
		"deployment": {fleet.EventFilter{Deployment: "d"}, "05"},
		"other site": {fleet.EventFilter{Site: "t"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, tc.f)) {
				got += e.Message
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestSpecsWith finds the specifications that hold a text by the sites that must run them, and by
// the nodes that have them; unused ones are not found.
func TestSpecsWith(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	saved := func(content string) protocol.Digest {
		return testpart.Must[protocol.Digest](t)(s.SaveSpec(ctx, []byte(content)))
	}
	first, second := saved("\xa1 image@sha256:1"), saved("\xa1 image@sha256:2")
	saved("\xa1 of nobody image@sha256:1")
	j := journal{epoch: "a"}
	for _, node := range []string{"n1", "n2"} {
		for _, step := range []struct {
			to lifecycle.State
			by lifecycle.Actor
		}{{lifecycle.Pending, lifecycle.LO}, {lifecycle.Installing, lifecycle.LO}, {lifecycle.Installed, lifecycle.EN}} {
			report := status("d", node, step.to, step.by)
			report.Digest = first
			j.add(protocol.StatusEvent, report.Node, report)
		}
	}
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 6, 0))
	wanted := []fleet.Desired{{Site: "home", Name: "d", App: "app", AppVersion: "2", Commit: "c", Entry: protocol.SiteEntry{Deployment: "d", Digest: second}}}
	if _, _, err := s.SaveDesired(ctx, "home", "c", wanted, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	check := func(text string, want ...fleet.SpecUse) {
		t.Helper()
		if diff := cmp.Diff(want, testpart.Must[[]fleet.SpecUse](t)(s.SpecsWith(ctx, text))); diff != "" {
			t.Errorf("specifications with %s (-want +got):\n%s", text, diff)
		}
	}
	check("sha256:1", fleet.SpecUse{Site: "home", Deployment: "d", Nodes: []protocol.NodeID{"n1", "n2"}, Spec: []byte("\xa1 image@sha256:1")})
	check("sha256:2", fleet.SpecUse{Site: "home", Deployment: "d", Desired: true, Nodes: []protocol.NodeID{}, Spec: []byte("\xa1 image@sha256:2")})
	if got := testpart.Must[[]fleet.SpecUse](t)(s.SpecsWith(ctx, "sha256:3")); len(got) != 0 {
		t.Errorf("specifications with sha256:3: %+v", got)
	}
	j.status("d", "n1", lifecycle.Deleting, lifecycle.LO)
	j.status("d", "n1", lifecycle.Deleted, lifecycle.EN)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 7, 8, 0))
	check("sha256:1", fleet.SpecUse{Site: "home", Deployment: "d", Nodes: []protocol.NodeID{"n2"}, Spec: []byte("\xa1 image@sha256:1")})
}
