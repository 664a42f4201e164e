package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/form"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestEmptyListsAreNotNull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, list := range []string{"apps", "deployments", "sites", "nodes", "events"} {
		a := w.get("/api/v1/"+list).into(http.StatusOK, nil)
		if got := strings.TrimSpace(string(a.body)); got != `{"items":[]}` {
			t.Errorf("%s: %s", list, got)
		}
		diff(t, list, "application/json", a.header.Get("Content-Type"))
	}
}

func TestApps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.get("/api/v1/apps/hello").fails(http.StatusNotFound, `no application "hello"`, "nothing yet")
	w.importApps()

	var list form.List[fleet.App]
	w.get("/api/v1/apps").into(http.StatusOK, &list)
	diff(t, "apps", []fleet.App{
		{ID: "hello", Name: "Hello", Description: "A web server that greets", Latest: "1.1.0", Versions: []string{"1.1.0", "1.0.0"}},
		{ID: "meter", Name: "Meter", Description: "Reads meters", Latest: "1.0.0", Versions: []string{"1.0.0"}},
	}, list.Items)
	var app fleet.App
	w.get("/api/v1/apps/hello").into(http.StatusOK, &app)
	diff(t, "app", list.Items[0], app)
	w.get("/api/v1/apps/hallo").fails(http.StatusNotFound, `no application "hallo"`, "hello, meter")

	var v fleet.AppVersion
	w.get("/api/v1/apps/meter/versions/1.0.0").into(http.StatusOK, &v)
	if len(v.Profiles) != 3 || len(v.Parameters) != 2 || !strings.Contains(v.Document, "id: meter") || !v.Parameters[1].Immutable {
		t.Errorf("got %+v", v)
	}
	w.get("/api/v1/apps/meter/versions/2.0.0").fails(http.StatusNotFound, `no version "2.0.0"; it has 1.0.0`)
}

func TestImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	post := func(source string) answer {
		t.Helper()
		return w.do(http.MethodPost, "/api/v1/apps", map[string]string{"source": source})
	}
	var got api.ImportAnswer
	post(sourceOf(t, "")).into(http.StatusOK, &got)
	outcomes := map[string]string{}
	for _, r := range got.Results {
		outcomes[r.Path] = r.Outcome
		if (r.Outcome == "refused") != (len(r.Problems) > 0) {
			t.Errorf("%+v", r)
		}
	}
	diff(t, "outcomes", map[string]string{
		"broken": "refused", "hello-1.0.0": "imported", "hello-1.1.0": "imported", "meter-1.0.0": "imported",
	}, outcomes)
	post(sourceOf(t, "hello-1.0.0")).into(http.StatusOK, &got)
	diff(t, "again", "unchanged", got.Results[0].Outcome)

	post(sourceOf(t, "none")).fails(http.StatusNotFound, "none: no such file or directory")
	post("/nowhere/at/all").fails(http.StatusForbidden, "/nowhere/at/all: ", "import.roots")
	post(t.TempDir()).fails(http.StatusUnprocessableEntity)
	post("").fails(http.StatusUnprocessableEntity, "body.source: expected length >= 1")
}

func TestVersionWithoutParametersHasEmptyList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := fleet.AppVersion{AppID: "bare", Version: "1.0.0", Name: "Bare", Digest: protocol.DigestOf([]byte("x")), Document: "x"}
	if _, err := w.store.SaveAppVersion(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	a := w.get("/api/v1/apps/bare/versions/1.0.0").into(http.StatusOK, nil)
	if !strings.Contains(string(a.body), `"profiles":[]`) || !strings.Contains(string(a.body), `"parameters":[]`) {
		t.Errorf("got %s", a.body)
	}
}

func TestSites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.get("/api/v1/sites/home").fails(http.StatusNotFound, `no site "home"`, "nothing yet")
	w.fleet()
	w.connect()
	var s fleet.Site
	w.get("/api/v1/sites/home").into(http.StatusOK, &s)
	if s.ID != "home" || s.Nodes != 2 || s.NodesOnline != 2 || s.JournalSeq != 4 {
		t.Errorf("got %+v", s)
	}
	w.get("/api/v1/sites/nowhere").fails(http.StatusNotFound, `no site "nowhere"; there is away, home`)
	w.get("/api/v1/sites/UPPER").fails(http.StatusUnprocessableEntity, `path.site: site name "UPPER": want 1 to 63`)
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{"id": "home"}).fails(http.StatusConflict, "site home exists already")
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{"id": "-x"}).fails(http.StatusUnprocessableEntity, `body.id: site name "-x": want`)
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{}).fails(http.StatusUnprocessableEntity, "id")
}

func TestNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	w.connect()
	for query, want := range map[string]string{
		"":                                "home/gw-1 home/gw-2",
		"?site=home":                      "home/gw-1 home/gw-2",
		"?site=away":                      "",
		"?label=hall%3D8":                 "home/gw-2",
		"?label=line%3Da":                 "home/gw-1 home/gw-2",
		"?label=line%3Da,hall%3D7":        "home/gw-1",
		"?label=line%3Db":                 "",
		"?limit=1":                        "home/gw-1",
		"?site=home&label=hall%3D7":       "home/gw-1",
		"?label=" + url.QueryEscape("x="): "",
	} {
		var list form.List[fleet.Node]
		w.get("/api/v1/nodes"+query).into(http.StatusOK, &list)
		var got []string
		for _, n := range list.Items {
			got = append(got, string(n.Site)+"/"+string(n.ID))
		}
		diff(t, query, want, strings.Join(got, " "))
	}
	w.get("/api/v1/nodes?label=hall").fails(http.StatusUnprocessableEntity, `query.label: label "hall": want key=value`)

	var n fleet.Node
	w.get("/api/v1/nodes/home/gw-1").into(http.StatusOK, &n)
	if !n.Online || n.Labels["hall"] != "7" || n.Inventory == nil || n.Inventory.Cores != 4 || n.Inventory.Architecture != "amd64" {
		t.Errorf("got %+v", n)
	}
	w.get("/api/v1/nodes/home/gw-9").fails(http.StatusNotFound, "site home has no node gw-9; it has gw-1, gw-2")
	w.get("/api/v1/nodes/away/gw-1").fails(http.StatusNotFound, "site away has no node gw-1; it has none yet")
	w.get("/api/v1/nodes/nowhere/gw-1").fails(http.StatusNotFound, `no site "nowhere"; there is away, home`)
	w.get("/api/v1/nodes/home/GW").fails(http.StatusUnprocessableEntity, "path.node: ")
	w.get("/api/v1/nodes/HOME/gw-1").fails(http.StatusUnprocessableEntity, "path.site: ")
}

// walk follows the cursors of a list and returns how many pages it had.
func walk[T any](w *world, path string, id func(T) string) (ids []string, pages int) {
	w.t.Helper()
	cursor := ""
	for {
		var list form.List[T]
		w.get(path+"&cursor="+url.QueryEscape(cursor)).into(http.StatusOK, &list)
		pages++
		for _, v := range list.Items {
			ids = append(ids, id(v))
		}
		if cursor = list.Next; cursor == "" {
			return ids, pages
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	var sites, deployments []string
	for i := range 5 {
		id := protocol.SiteID("s" + string(rune('a'+i)))
		if _, err := w.store.CreateSite(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		sites = append(sites, string(id))
		d := fleet.Desired{Site: id, Name: "d", App: "app" + string(rune('a'+i%2)), Problem: "not compiled"}
		if _, _, err := w.store.SaveDesired(t.Context(), id, "c", []fleet.Desired{d}, fleet.SiteData{}); err != nil {
			t.Fatal(err)
		}
		deployments = append(deployments, string(id)+"/d")
	}
	got, pages := walk(w, "/api/v1/sites?limit=2", func(s fleet.Site) string { return string(s.ID) })
	diff(t, "sites", sites, got)
	diff(t, "pages", 3, pages)
	name := func(d fleet.Deployment) string { return string(d.Site) + "/" + string(d.Name) }
	got, pages = walk(w, "/api/v1/deployments?limit=1", name)
	diff(t, "deployments", deployments, got)
	diff(t, "pages", 5, pages)
	got, pages = walk(w, "/api/v1/deployments?limit=5", name)
	diff(t, "deployments", deployments, got)
	diff(t, "pages", 1, pages)
	got, _ = walk(w, "/api/v1/deployments?app=appb&limit=1", name)
	diff(t, "filtered", []string{"sb/d", "sd/d"}, got)

	w.importApps()
	got, pages = walk(w, "/api/v1/apps?limit=1", func(a fleet.App) string { return a.ID })
	diff(t, "apps", []string{"hello", "meter"}, got)
	diff(t, "pages", 2, pages)
	w.fleet()
	got, pages = walk(w, "/api/v1/nodes?limit=1", func(n fleet.Node) string { return string(n.ID) })
	diff(t, "nodes", []string{"gw-1", "gw-2"}, got)
	diff(t, "pages", 2, pages)

	for _, list := range []string{"apps", "sites", "nodes", "deployments"} {
		w.get("/api/v1/"+list+"?cursor=%25%25").fails(http.StatusUnprocessableEntity, "cursor", "take it from the page before")
		w.get("/api/v1/"+list+"?limit=0").fails(http.StatusUnprocessableEntity, "query.limit: expected number >= 1")
		w.get("/api/v1/"+list+"?limit=1001").fails(http.StatusUnprocessableEntity, "query.limit: expected number <= 1000")
		w.get("/api/v1/"+list+"?limit=x").fails(http.StatusUnprocessableEntity, "query.limit: ")
	}
}

func TestDeploymentFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	for _, d := range []map[string]any{
		{"site": "home", "app": "hello", "name": "one"},
		{"site": "home", "app": "meter", "name": "two"},
		{"site": "away", "app": "hello", "name": "three"},
		{"site": "away", "app": "hello", "name": "removed"},
	} {
		w.deploy(d)
	}
	w.adopt()
	w.transitions("one", lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
	w.do(http.MethodDelete, "/api/v1/deployments/away/removed", nil).into(http.StatusNoContent, nil)
	w.eventually(func() bool {
		d, err := w.store.Deployment(t.Context(), "away", "removed")
		return err == nil && d.Archived
	})
	for query, want := range map[string]string{
		"":                              "three one two",
		"?site=home":                    "one two",
		"?app=hello":                    "three one",
		"?state=INSTALLED":              "one",
		"?state=PENDING&site=home":      "two",
		"?archived=true":                "removed three one two",
		"?state=DELETED":                "removed",
		"?app=hello&state=PENDING":      "three",
		"?site=away&archived=true":      "removed three",
		"?site=home&app=meter&limit=10": "two",
		"?app=!hello":                   "two",
		"?app=hello,meter&site=home":    "one two",
		"?state=!PENDING,DELETED":       "one",
		"?state=!INSTALLED":             "three two",
		"?state=!INSTALLED&app=meter":   "two",
		"?version=1.0.0,9":              "two",
		"?version=!9":                   "three one two",
		"?q=E/O":                        "one",
		"?q=way&state=PENDING":          "three",
	} {
		var list form.List[fleet.Deployment]
		w.get("/api/v1/deployments"+query).into(http.StatusOK, &list)
		var got []string
		for _, d := range list.Items {
			got = append(got, string(d.Name))
		}
		diff(t, query, want, strings.Join(got, " "))
	}
	for query, total := range map[string]int{"": 3, "?archived=true": 4, "?state=PENDING": 2, "?site=home": 2, "?app=hello": 2, "?q=o": 2} {
		var list form.List[fleet.Deployment]
		w.get("/api/v1/deployments"+query+map[bool]string{true: "?", false: "&"}[query == ""]+"total=true&limit=1").into(http.StatusOK, &list)
		if list.Total == nil || *list.Total != total || list.TotalAtLeast {
			t.Errorf("%s: total %v, at least %v; want %d", query, list.Total, list.TotalAtLeast, total)
		}
	}
	w.get("/api/v1/deployments?state=RUNNING").fails(http.StatusUnprocessableEntity, "query.state: ", `state "RUNNING": want of FAILED,`, "INSTALLED")
	w.get("/api/v1/deployments?state=").fails(http.StatusUnprocessableEntity, "query.state: it is empty", "PENDING")
	w.get("/api/v1/proposals?state=").fails(http.StatusUnprocessableEntity, "query.state: it is empty", "open confirmed")
	w.get("/api/v1/events?site=nowhere").fails(http.StatusNotFound, `no site "nowhere"`)
	w.get("/api/v1/deployments?state=!FAILED,").fails(http.StatusUnprocessableEntity, `state "": want of`)
	w.get("/api/v1/deployments?site=nowhere").fails(http.StatusNotFound, `no site "nowhere"; there is away, home`)
	w.get("/api/v1/deployments?app=hallo").fails(http.StatusNotFound, `no application "hallo"`)
	w.get("/api/v1/nodes?site=nowhere").fails(http.StatusNotFound, `no site "nowhere"`)
	w.get("/api/v1/deployments?archived=maybe").fails(http.StatusUnprocessableEntity, "query.archived: ")
}

func TestEventsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, kind := range []string{"inventory", "app_imported", "inventory", "git_reachable", "app_imported"} {
		e := fleet.Event{Kind: kind, Site: "home", Message: string(rune('0' + i))}
		if i%2 == 0 {
			e.Node, e.Deployment = "gw-1", "d"
		}
		if i == 3 {
			e.Site = "away"
		}
		if err := w.store.AddEvent(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"":                              "01234",
		"?kind=inventory":               "02",
		"?kind=inventory,git_reachable": "023",
		"?site=away":                    "3",
		"?site=home&kind=app_imported":  "14",
		"?site=home&node=gw-1":          "024",
		"?site=home&deployment=d&kind=app_imported": "4",
		"?after=3":             "34",
		"?limit=2":             "01",
		"?newest=true&limit=2": "34",
	} {
		var list form.List[fleet.Event]
		w.get("/api/v1/events"+query).into(http.StatusOK, &list)
		got := ""
		for _, e := range list.Items {
			got += e.Message
		}
		diff(t, query, want, got)
	}
	w.get("/api/v1/events?kind=deployment_state").fails(http.StatusUnprocessableEntity, "query.kind: ", `kind "deployment_state": there is lo_started,`)
	w.get("/api/v1/events?site=nowhere&after=3").into(http.StatusOK, &form.List[fleet.Event]{}) // the end of those of a site that was removed
	w.get("/api/v1/events?node=gw-1").fails(http.StatusUnprocessableEntity, "query.site: ", "without its site")
	w.get("/api/v1/events?after=-1").fails(http.StatusUnprocessableEntity, "query.after: expected number >= 0")
	w.get("/api/v1/events?limit=2000").fails(http.StatusUnprocessableEntity, "query.limit: ")
}

func TestSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	made := w.deploy(map[string]any{"site": "home", "app": "hello"})
	d := w.recorded(made)
	if d.Problem != "" || d.Digest == "" {
		t.Fatalf("not compiled: %+v", d)
	}
	a := w.get("/api/v1/specs/"+string(d.Digest)).into(http.StatusOK, nil)
	diff(t, "content type", protocol.ContentType, a.header.Get("Content-Type"))
	diff(t, "digest", d.Digest, protocol.DigestOf(a.body))
	var spec protocol.DeploymentSpec
	if err := protocol.Unmarshal(a.body, &spec); err != nil || spec.App != "hello" {
		t.Errorf("got %+v: %v", spec, err)
	}
	unknown := string(protocol.DigestOf([]byte("nothing")))
	w.get("/api/v1/specs/"+unknown).fails(http.StatusNotFound, "no spec "+unknown)
	w.get("/api/v1/specs/sha256:1").fails(http.StatusUnprocessableEntity, "path.digest: ", "64 lower-case hex digits")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	if err := w.store.SetSitePresence(t.Context(), "home", protocol.Presence{Online: true, Session: "1"}); err != nil {
		t.Fatal(err)
	}
	var s api.Status
	w.get("/api/v1/status").into(http.StatusOK, &s)
	diff(t, "status", api.Status{
		Version: "1.2.3", Parts: map[string]string{"postgres": "ok", "deployments repo": "ok"},
		Sites: 2, SitesOnline: 1, Nodes: 2, NodesOnline: 2, Apps: 2, Deployments: map[string]int{"PENDING": 1},
	}, s)
}

func TestNodeAndSiteFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	if err := w.store.SetSitePresence(t.Context(), "home", protocol.Presence{Online: true, Session: "1", Version: "1.4.0"}); err != nil {
		t.Fatal(err)
	}
	w.report(protocol.NodeOfflineEvent, "gw-2", protocol.Presence{V: 1})
	for query, want := range map[string]string{
		"":                                   "gw-1 gw-2",
		"?state=online":                      "gw-1",
		"?state=offline":                     "gw-2",
		"?state=!online":                     "gw-2",
		"?state=unknown":                     "",
		"?state=unknown,online":              "gw-1",
		"?site=home&state=offline&q=GW":      "gw-2",
		"?q=e/gw-1":                          "gw-1",
		"?version=!7":                        "gw-1 gw-2",
		"?version=7":                         "",
		"?state=online&version=!7&site=home": "gw-1",
	} {
		var list form.List[fleet.Node]
		w.get("/api/v1/nodes"+query).into(http.StatusOK, &list)
		var got []string
		for _, n := range list.Items {
			got = append(got, string(n.ID))
		}
		diff(t, query, want, strings.Join(got, " "))
	}
	for query, total := range map[string]int{"": 2, "?state=offline": 1, "?site=home": 2, "?q=gw-1": 1} {
		var list form.List[fleet.Node]
		w.get("/api/v1/nodes"+query+map[bool]string{true: "?", false: "&"}[query == ""]+"total=true").into(http.StatusOK, &list)
		if list.Total == nil || *list.Total != total || list.TotalAtLeast {
			t.Errorf("%s: total %v, at least %v; want %d", query, list.Total, list.TotalAtLeast, total)
		}
	}
	w.get("/api/v1/nodes?state=absent").fails(http.StatusUnprocessableEntity, "query.state: ", `state "absent": want of online, offline, unknown`)

	for query, want := range map[string]string{
		"":                             "away home",
		"?online=true":                 "home",
		"?online=false":                "away",
		"?version=1.4.0":               "home",
		"?version=!1.4.0":              "away",
		"?q=OM":                        "home",
		"?online=false&q=om":           "",
		"?online=true&version=1.4.0,2": "home",
	} {
		var list form.List[fleet.Site]
		w.get("/api/v1/sites"+query+map[bool]string{true: "?", false: "&"}[query == ""]+"total=true").into(http.StatusOK, &list)
		var got []string
		for _, s := range list.Items {
			got = append(got, string(s.ID))
		}
		diff(t, query, want, strings.Join(got, " "))
		diff(t, "total of "+query, len(got), *list.Total)
	}
	w.get("/api/v1/sites?online=maybe").fails(http.StatusUnprocessableEntity, "query.online: expected value to be one of")
}

// TestEventsThatAreNotKept goes on behind events that retention has removed: the answer
// says from where to go on.
func TestEventsThatAreNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	say := func() {
		t.Helper()
		if err := w.store.AddEvent(t.Context(), fleet.Event{Kind: "inventory"}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.LastEvent(t.Context()); err != nil { // gives it its id
			t.Fatal(err)
		}
	}
	execute := func(sql string) {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	say()
	execute(`update event_sequence set last = 100000`) // the next one is in the next partition
	say()
	execute(`update events set time = '2000-01-01'`)
	say()
	if err := w.store.Retain(t.Context(), upkeepdb.Retention{Events: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	first, err := w.store.FirstEvent(t.Context())
	if err != nil || first < 2 {
		t.Fatalf("the first event that is kept is %d, %v", first, err)
	}
	says := fmt.Sprintf("the events from 2 to %d are not kept any more: go on after %[1]d", first-1)
	w.get("/api/v1/events?after=1").fails(http.StatusGone, says)
	w.do(http.MethodGet, "/api/v1/events", nil, "Accept", "text/event-stream", "Last-Event-ID", "1").fails(http.StatusGone, says)
	var list form.List[fleet.Event]
	w.get(fmt.Sprintf("/api/v1/events?after=%d", first-1)).into(http.StatusOK, &list)
	if len(list.Items) == 0 || list.Items[0].ID < first {
		t.Errorf("after the deleted events: %+v", list.Items)
	}
	w.get("/api/v1/events?after=0").into(http.StatusOK, nil)
}
