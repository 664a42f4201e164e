package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// site returns a world with the samples and the nodes of the site home.
func site(t *testing.T, settings ...setting) *world {
	t.Helper()
	w := newWorld(t, settings...)
	w.importApps()
	w.fleet()
	return w
}

// file reads a deployment from the remote of the deployments repo.
func (w *world) file(site protocol.SiteID, name protocol.DeploymentName) (*v1rc3.Deployment, string) {
	w.t.Helper()
	content, commit, err := repo{w.repo}.File(w.t.Context(), intent.Path(site, name))
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := v1rc3.ParseDeployment(content)
	if err != nil {
		w.t.Fatal(err)
	}
	return d, commit
}

func TestDeploy(t *testing.T) {
	t.Parallel()
	w := site(t)
	var made fleet.Deployment
	a := w.do(http.MethodPost, "/api/v1/deployments", map[string]any{
		"site": "home", "app": "hello", "version": "1.0.0", "node": "gw-1", "nodes": map[string]string{"line": "a"}, "replicas": 1,
		"parameters": map[string]any{"greeting": "Good morning", "port": 8099},
		"policy":     map[string]any{"attempts": 5, "backoff": "30s", "rollback": false},
	}).into(http.StatusCreated, &made)
	file, commit := w.file("home", "hello")
	diff(t, "etag", `"`+commit+`"`, a.header.Get("ETag"))
	diff(t, "answer", []any{
		protocol.SiteID("home"), protocol.DeploymentName("hello"), "hello", "1.0.0", "hello-compose", lifecycle.Pending, commit, file.ID,
	}, []any{made.Site, made.Name, made.App, made.AppVersion, made.Profile, made.State, made.Commit, made.ID})
	diff(t, "device", "home/gw-1", file.Metadata.DeviceID)
	diff(t, "port", "8099", file.Spec.Parameters["port"].Value)
	diff(t, "policy", uint32(5), file.Spec.Colony.Policy.Attempts)

	w.recorded(made)
	var shown fleet.Deployment
	a = w.get("/api/v1/deployments/home/hello").into(http.StatusOK, &shown)
	diff(t, "etag of what is recorded", `"`+commit+`"`, a.header.Get("ETag"))
	if shown.ID != made.ID || shown.AppVersion != "1.0.0" || shown.Problem != "" || shown.Digest == "" {
		t.Errorf("got %+v", shown)
	}
	// A number keeps the digits that it was sent with, and a text stays what it is.
	for _, value := range []any{json.Number("1.10"), json.Number("123456789012345678901234"), "0644", "1e3", "2024-01-01", "abc #def"} {
		w.do(http.MethodPatch, "/api/v1/deployments/home/hello", map[string]any{"parameters": map[string]any{"greeting": value}}).into(http.StatusOK, &made)
		file, _ = w.file("home", "hello")
		diff(t, "greeting", fmt.Sprint(value), file.Spec.Parameters["greeting"].Value.(string))
	}
	// The latest version and the application's id are the defaults.
	made = w.deploy(map[string]any{"site": "away", "app": "hello"})
	diff(t, "defaults", []any{"1.1.0", protocol.DeploymentName("hello")}, []any{made.AppVersion, made.Name})
}

func TestDeploymentIsShownBeforeItIsRecorded(t *testing.T) {
	t.Parallel()
	w := site(t, withoutLoop)
	w.get("/api/v1/deployments/home/hello").fails(http.StatusNotFound, "site home has no deployment hello; it has none yet")
	made := w.deploy(map[string]any{"site": "home", "app": "hello"})
	var d fleet.Deployment
	a := w.get("/api/v1/deployments/home/hello").into(http.StatusOK, &d)
	diff(t, "deployment", []any{made.ID, made.Commit, lifecycle.Pending, "1.1.0"}, []any{d.ID, d.Commit, d.State, d.AppVersion})
	diff(t, "etag", `"`+made.Commit+`"`, a.header.Get("ETag"))
	if body := string(a.body); !strings.Contains(body, `"counts":{}`) {
		t.Errorf("got %s", body)
	}
	var h api.History
	a = w.get("/api/v1/deployments/home/hello/history").into(http.StatusOK, &h)
	if len(h.Revisions) != 1 || !strings.Contains(string(a.body), `"transitions":[]`) {
		t.Errorf("got %s", a.body)
	}
	// The record of another life is not shown as the state of this one.
	if _, _, err := w.store.SaveDesired(t.Context(), "away", "c", []fleet.Desired{{Site: "away", Name: "meter", App: "meter", Problem: "x"}}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.store.SaveDesired(t.Context(), "away", "c", nil, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	made = w.deploy(map[string]any{"site": "away", "app": "meter"})
	diff(t, "state", []any{lifecycle.Pending, false}, []any{made.State, made.Archived})
}

func TestDeployRefuses(t *testing.T) {
	t.Parallel()
	w := site(t)
	w.deploy(map[string]any{"site": "home", "app": "hello", "name": "taken"})
	for name, tc := range map[string]struct {
		change map[string]any
		status int
		text   string
	}{
		"unknown application": {map[string]any{"app": "hallo"}, 404, `no application "hallo" in the catalog; there is hello, meter`},
		"unknown version":     {map[string]any{"version": "9"}, 404, "has no version 9; it has 1.1.0, 1.0.0"},
		"unknown site":        {map[string]any{"site": "nowhere"}, 404, `no site "nowhere"; there is away, home`},
		"unknown node":        {map[string]any{"node": "gw-9"}, 404, "site home has no node gw-9; it has gw-1, gw-2"},
		"name is taken":       {map[string]any{"name": "taken"}, 409, "site home has a deployment taken already"},
		"site is no name":     {map[string]any{"site": "Home!"}, 422, `body.site: site name "Home!": want`},
		"name is no name":     {map[string]any{"name": "a_b"}, 422, `body.name: deployment name "a_b": want`},
		"node is no name":     {map[string]any{"node": "../x"}, 422, `body.node: node name "../x": want`},
		"no site":             {map[string]any{"site": nil}, 422, "body: expected required property site to be present"},
		"empty app":           {map[string]any{"app": ""}, 422, "body.app: expected length >= 1"},
		"unknown profile":     {map[string]any{"profile": "tiny"}, 422, `body.profile: application hello has no profile "tiny"; it has hello-compose (compose)`},
		"profile of helm":     {map[string]any{"app": "meter", "profile": "cluster"}, 422, "body.profile: profile cluster is of type helm"},
		"unknown parameter":   {map[string]any{"parameters": map[string]any{"x": 1}}, 422, "body.parameters.x: the application has no such parameter; it has addressee, greeting, port"},
		"bad parameter":       {map[string]any{"parameters": map[string]any{"port": 80}}, 422, "body.parameters.port: 80 is below minValue 1024"},
		"empty parameter":     {map[string]any{"parameters": map[string]any{"greeting": ""}}, 422, "body.parameters.greeting: the value is empty"},
		"bad backoff":         {map[string]any{"policy": map[string]any{"backoff": "soon"}}, 422, `body.policy.backoff: "soon": want a duration from 0s to 1h`},
		"long backoff":        {map[string]any{"policy": map[string]any{"backoff": "2h"}}, 422, "body.policy.backoff"},
		"too many attempts":   {map[string]any{"policy": map[string]any{"attempts": 101}}, 422, "body.policy.attempts: expected number <= 100"},
		"negative replicas":   {map[string]any{"replicas": -1}, 422, "body.replicas"},
		"unknown field":       {map[string]any{"replica": 1}, 422, "body.replica: unexpected property"},
		"wrong type":          {map[string]any{"app": 7}, 422, "body.app: expected string"},
		"parameters a list":   {map[string]any{"parameters": []int{1}}, 422, "body.parameters: expected object"},
		"NUL":                 {map[string]any{"app": "a\x00b"}, 422, "the database does not take this"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := map[string]any{"site": "home", "app": "hello", "name": "fresh"}
			for k, v := range tc.change {
				if body[k] = v; v == nil {
					delete(body, k)
				}
			}
			a := w.do(http.MethodPost, "/api/v1/deployments", body)
			a.t = t
			a.fails(tc.status, tc.text)
			w.get("/api/v1/deployments/home/fresh").fails(http.StatusNotFound)
		})
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	w := site(t)
	post := func(body string, header ...string) answer {
		t.Helper()
		return w.do(http.MethodPost, "/api/v1/deployments", body, header...)
	}
	post(`{"site": "home",`).fails(http.StatusBadRequest)
	post(`["home"]`).fails(http.StatusUnprocessableEntity, "body: expected object")
	post(``).fails(http.StatusBadRequest, "request body is required")
	post(`{"site":"home","app":"hello","name":"` + strings.Repeat("x", 2<<20) + `"}`).fails(http.StatusRequestEntityTooLarge)
	post(`<a/>`, "Content-Type", "application/xml").fails(http.StatusUnsupportedMediaType)
	w.get("/api/v1/deployments/home/%00").fails(http.StatusUnprocessableEntity, "the path holds NUL")
	w.get("/api/v1/apps/%ff").fails(http.StatusUnprocessableEntity, "not UTF-8")
	w.get("/api/v1/deployments?app=%00").fails(http.StatusUnprocessableEntity, "the query holds NUL")
	w.get("/api/v1/events?kind=%ff").fails(http.StatusUnprocessableEntity, "the query holds NUL")
	w.do(http.MethodGet, "/api/v1/events?site=%00", nil, "Accept", "text/event-stream").fails(http.StatusUnprocessableEntity, "the query holds NUL")
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	w := site(t)
	no := false
	w.deploy(map[string]any{
		"site": "home", "app": "meter", "profile": "large", "node": "gw-1", "nodes": map[string]string{"line": "a"}, "replicas": 1,
		"parameters": map[string]any{"port": 2000, "serial": "S-1"}, "policy": map[string]any{"attempts": 5, "backoff": "30s", "rollback": false, "minHealthy": "5m"},
	})
	before, _ := w.file("home", "meter")
	var d fleet.Deployment
	a := w.do(http.MethodPatch, "/api/v1/deployments/home/meter", map[string]any{
		"parameters": map[string]any{"port": 2001}, "policy": map[string]any{"attempts": 2},
	}).into(http.StatusOK, &d)
	after, commit := w.file("home", "meter")
	diff(t, "etag", `"`+commit+`"`, a.header.Get("ETag"))
	diff(t, "id", before.ID, after.ID)
	diff(t, "values", []any{"2001", "S-1"}, []any{after.Spec.Parameters["port"].Value, after.Spec.Parameters["serial"].Value})
	diff(t, "device", "home/gw-1", after.Metadata.DeviceID)
	want := *before.Spec.Colony
	want.Policy = &v1rc3.Policy{Attempts: 2, Backoff: before.Spec.Colony.Policy.Backoff, Rollback: &no, MinHealthy: v1rc3.Duration(5 * time.Minute)}
	diff(t, "extensions", &want, after.Spec.Colony)
	diff(t, "etag of what is recorded", w.recorded(d).Commit, commit)

	// Unpinned, and with no labels; the type of a JSON merge patch will do as well.
	w.do(http.MethodPatch, "/api/v1/deployments/home/meter", map[string]any{"node": "*", "nodes": map[string]string{}, "profile": "small"},
		"Content-Type", "application/merge-patch+json").into(http.StatusOK, nil)
	after, _ = w.file("home", "meter")
	diff(t, "device", "home/*", after.Metadata.DeviceID)
	diff(t, "profile", "small", after.Spec.Colony.Profile)
	diff(t, "selector", 0, len(after.Spec.Colony.Selector))

	// What changes nothing makes no commit.
	var same fleet.Deployment
	_, commit = w.file("home", "meter")
	w.do(http.MethodPatch, "/api/v1/deployments/home/meter", map[string]any{}).into(http.StatusOK, &same)
	diff(t, "commit", commit, same.Commit)

	patch := func(body map[string]any) answer {
		t.Helper()
		return w.do(http.MethodPatch, "/api/v1/deployments/home/meter", body)
	}
	patch(map[string]any{"parameters": map[string]any{"serial": "S-2"}}).fails(http.StatusUnprocessableEntity,
		`body.parameters.serial: this parameter may not change after the first install; it is "S-1"`)
	patch(map[string]any{"version": "9"}).fails(http.StatusNotFound, "application meter has no version 9; it has 1.0.0")
	patch(map[string]any{"node": "gw-9"}).fails(http.StatusNotFound, "it has gw-1, gw-2")
	patch(map[string]any{"profile": "tiny"}).fails(http.StatusUnprocessableEntity, "body.profile: ")
	patch(map[string]any{"app": "hello"}).fails(http.StatusUnprocessableEntity, "body.app: unexpected property")
	patch(map[string]any{"policy": map[string]any{"backoff": "x"}}).fails(http.StatusUnprocessableEntity, "body.policy.backoff: ")
	for _, path := range []string{"/away/meter", "/home/metre", "/nowhere/meter", "/home/Meter"} {
		status, text := http.StatusNotFound, map[string]string{
			"/away/meter": "site away has no deployment meter; it has none yet", "/home/metre": "site home has no deployment metre; it has meter",
			"/nowhere/meter": "there is away, home", "/home/Meter": "path.name: ",
		}[path]
		if path == "/home/Meter" {
			status = http.StatusUnprocessableEntity
		}
		for _, call := range [][2]string{
			{http.MethodGet, ""}, {http.MethodPatch, ""}, {http.MethodDelete, ""}, {http.MethodPost, "/rollback"}, {http.MethodPost, "/retry"}, {http.MethodGet, "/history"},
		} {
			var body any
			if call[0] == http.MethodPatch {
				body = map[string]any{}
			}
			w.do(call[0], "/api/v1/deployments"+path+call[1], body).fails(status, text)
		}
	}
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	w := site(t)
	first := w.deploy(map[string]any{"site": "home", "app": "hello"})
	const path = "/api/v1/deployments/home/hello"
	old := `"` + first.Commit + `"`
	greet := func(s string) map[string]any { return map[string]any{"parameters": map[string]any{"greeting": s}} }
	now := w.do(http.MethodPatch, path, greet("One"), "If-Match", old).into(http.StatusOK, nil).header.Get("ETag")
	for _, call := range [][2]string{{http.MethodPatch, ""}, {http.MethodDelete, ""}, {http.MethodPost, "/rollback"}, {http.MethodPost, "/retry"}} {
		w.do(call[0], path+call[1], map[string]any{}, "If-Match", old).fails(http.StatusPreconditionFailed, "deployment home/hello was changed since you read it")
	}
	w.do(http.MethodPatch, path, greet("Two"), "If-Match", "W/"+now).fails(http.StatusPreconditionFailed)
	now = w.do(http.MethodPatch, path, greet("Two"), "If-Match", old+", "+now).into(http.StatusOK, nil).header.Get("ETag")
	w.do(http.MethodPatch, path, greet("Three"), "If-Match", "*").into(http.StatusOK, nil)
	now2 := w.do(http.MethodPatch, path, greet("Four")).into(http.StatusOK, nil).header.Get("ETag")
	if now == now2 {
		t.Error("the ETag did not change")
	}
	w.do(http.MethodDelete, path, nil, "If-Match", now2).into(http.StatusNoContent, nil)
}

// Many at once: without If-Match each change lands on top of the others, with it
// one only.
func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	w := site(t)
	first := w.deploy(map[string]any{"site": "home", "app": "hello"})
	const n = 4
	run := func(call func(i int) answer) (statuses map[int]int) {
		t.Helper()
		answers := make([]answer, n)
		var g errgroup.Group
		for i := range n {
			g.Go(func() error { answers[i] = call(i); return nil })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		statuses = map[int]int{}
		for _, a := range answers {
			statuses[a.status]++
			if a.status >= 400 {
				a.leaksNothing()
			}
		}
		return statuses
	}
	names := []string{"a", "b", "c", "d"}
	diff(t, "with If-Match", map[int]int{200: 1, 412: n - 1}, run(func(i int) answer {
		return w.do(http.MethodPatch, "/api/v1/deployments/home/hello", map[string]any{"parameters": map[string]any{"greeting": names[i]}},
			"If-Match", `"`+first.Commit+`"`)
	}))
	diff(t, "without", map[int]int{200: n}, run(func(int) answer { return w.do(http.MethodPost, "/api/v1/deployments/home/hello/retry", nil) }))
	d, _ := w.file("home", "hello")
	diff(t, "no retry was lost", uint32(n), d.Spec.Colony.Retry)
	diff(t, "one name", map[int]int{201: 1, 409: n - 1}, run(func(int) answer {
		return w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "meter"})
	}))
	diff(t, "removed once", map[int]int{204: 1, 404: n - 1}, run(func(int) answer {
		return w.do(http.MethodDelete, "/api/v1/deployments/home/meter", nil)
	}))
}

// A rollback passes over a revision whose version failed on a node when it ran there last.
func TestRollbackPassesOverWhatFailed(t *testing.T) {
	t.Parallel()
	w := site(t, options(func(o *api.Options) {
		o.Check = func(ctx context.Context, _ intent.Target, d *v1rc3.Deployment) (protocol.Digest, error) {
			entry, _, err := compiler.Compile(ctx, d, shelf{})
			return entry.Digest, err
		}
	}))
	const path = "/api/v1/deployments/home/hello"
	outcome := func(state lifecycle.State, code protocol.Code) {
		t.Helper()
		d, err := w.store.Deployment(t.Context(), "home", "hello")
		if err != nil {
			t.Fatal(err)
		}
		w.report(protocol.StatusEvent, "gw-1", protocol.DeploymentStatus{
			V: 1, Node: "gw-1", Deployment: "hello", State: state, Actor: lifecycle.EN, App: "hello", AppVersion: d.AppVersion, Digest: d.Digest, Code: code,
		})
	}
	change := func(version string) {
		t.Helper()
		var d fleet.Deployment
		w.do(http.MethodPatch, path, map[string]any{"version": version}).into(http.StatusOK, &d)
		w.recorded(d)
	}
	w.deploy(map[string]any{"site": "home", "app": "hello", "version": "1.0.0"})
	w.transitions("hello", lifecycle.Pending, lifecycle.Installing)
	outcome(lifecycle.Installed, "")
	change("1.1.0")
	w.transitions("hello", lifecycle.Updating)
	outcome(lifecycle.Failed, protocol.CrashLoop)
	change("1.0.0")
	w.do(http.MethodPost, path+"/rollback", nil).fails(http.StatusConflict, "each earlier revision of home/hello failed on a node: name the one to return to")

	// A failure of the node is none of the version.
	change("1.1.0")
	w.transitions("hello", lifecycle.Updating, lifecycle.Installed)
	outcome(lifecycle.Failed, protocol.EngineUnavailable)
	change("1.0.0")
	var back fleet.Deployment
	w.do(http.MethodPost, path+"/rollback", nil).into(http.StatusOK, &back)
	diff(t, "version", "1.1.0", back.AppVersion)
}

func TestRollbackAndHistory(t *testing.T) {
	t.Parallel()
	w := site(t)
	const path = "/api/v1/deployments/home/hello"
	one := w.deploy(map[string]any{"site": "home", "app": "hello", "version": "1.0.0"})
	w.do(http.MethodPost, path+"/rollback", nil).fails(http.StatusConflict, "home/hello has no earlier revision to return to")
	var two, back, d fleet.Deployment
	w.do(http.MethodPatch, path, map[string]any{"version": "1.1.0"}).into(http.StatusOK, &two)
	diff(t, "version", "1.1.0", two.AppVersion)
	w.do(http.MethodPost, path+"/retry", nil).into(http.StatusOK, nil)
	file, _ := w.file("home", "hello")
	diff(t, "retry", uint32(1), file.Spec.Colony.Retry)

	// By default past the retry, to what was before this version.
	w.do(http.MethodPost, path+"/rollback", nil).into(http.StatusOK, &back)
	diff(t, "version", "1.0.0", back.AppVersion)
	diff(t, "id", one.ID, back.ID)
	file, _ = w.file("home", "hello")
	diff(t, "marked", []any{true, uint32(1)}, []any{fleet.RolledBack(file), file.Spec.Colony.Retry})
	w.recorded(back)

	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": two.Commit[:7]}).into(http.StatusOK, &d)
	diff(t, "version", "1.1.0", d.AppVersion)
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": two.Commit}, "If-Match", `"`+d.Commit+`"`).into(http.StatusOK, &back)
	diff(t, "again makes no commit", d.Commit, back.Commit)
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": "abc"}).fails(http.StatusUnprocessableEntity, "body.to: ", "at least 7 digits")
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": "0000000"}).fails(http.StatusNotFound, "no revision 0000000 of home/hello: see its history")
	w.do(http.MethodPost, path+"/rollback", map[string]string{"too": "0000000"}).fails(http.StatusUnprocessableEntity, "body.too: unexpected property")

	w.transitions("hello", lifecycle.Pending, lifecycle.Installing, lifecycle.Failed)
	w.do(http.MethodDelete, path, nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, path, nil).into(http.StatusNoContent, nil) // a node holds it: it is asked for once more
	w.do(http.MethodPost, path+"/rollback", nil).fails(http.StatusNotFound)
	w.eventually(func() bool { return w.has(fleet.DeploymentRemoved) })
	w.do(http.MethodPatch, path, map[string]any{}).fails(http.StatusNotFound, "the deployments repo has no deployment hello of site home: it is being removed from its nodes")

	var h api.History
	w.get(path+"/history").into(http.StatusOK, &h)
	var got []fleet.Revision
	for _, r := range h.Revisions {
		got = append(got, fleet.Revision{Message: r.Message, AppVersion: r.AppVersion, Removed: r.Removed})
		if r.Commit == "" || r.Time.IsZero() || r.Author == "" {
			t.Errorf("got %+v", r)
		}
	}
	diff(t, "revisions", []fleet.Revision{
		{Message: "Remove hello\n\nColony-Confirm: home/hello", Removed: true},
		{Message: "Roll hello back to " + two.Commit[:12], AppVersion: "1.1.0"},
		{Message: "Roll hello back to " + one.Commit[:12], AppVersion: "1.0.0"},
		{Message: "Retry hello", AppVersion: "1.1.0"},
		{Message: "Update hello to hello 1.1.0", AppVersion: "1.1.0"},
		{Message: "Deploy hello 1.0.0", AppVersion: "1.0.0"},
	}, got)
	var transitions []lifecycle.State
	for _, m := range h.Transitions {
		transitions = append(transitions, m.To)
	}
	diff(t, "transitions", []lifecycle.State{lifecycle.Failed, lifecycle.Installing, lifecycle.Pending}, transitions)
	w.get(path+"/history?limit=1").into(http.StatusOK, &h)
	diff(t, "limited", 1, len(h.Transitions))

	// A new life does not return to the one before by itself, but may by name.
	var anew fleet.Deployment
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "hello"}).into(http.StatusCreated, &anew)
	w.do(http.MethodPost, path+"/rollback", nil).fails(http.StatusConflict, "no earlier revision")
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": h.Revisions[0].Commit}).fails(http.StatusConflict, "removed home/hello")
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": one.Commit}).into(http.StatusOK, &back)
	diff(t, "version and id", []string{"1.0.0", anew.ID}, []string{back.AppVersion, back.ID})

	// Nor does a deployment become one of another application.
	w.do(http.MethodDelete, path, nil).into(http.StatusNoContent, nil)
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "meter", "name": "hello"}).into(http.StatusCreated, nil)
	w.do(http.MethodPost, path+"/rollback", map[string]string{"to": one.Commit}).fails(http.StatusConflict, "is of application hello, not meter")
}

func (w *world) has(kind string) bool {
	list, err := w.store.Events(w.t.Context(), fleet.EventFilter{Kinds: []string{kind}})
	return err == nil && len(list) > 0
}

// An invalid file that was pushed by hand can be read around, reported, and removed.
func TestBadFileInRepo(t *testing.T) {
	t.Parallel()
	w := site(t)
	const path = "/api/v1/deployments/home/hello"
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	_, err := w.repo.Commit(t.Context(), git.Change{
		Message: "by hand", Files: map[string][]byte{intent.Path("home", "hello"): []byte("id: 7\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.do(http.MethodPatch, path, map[string]any{}).fails(http.StatusConflict, "the file of home/hello in the deployments repo is not valid", "metadata")
	w.do(http.MethodPost, path+"/retry", nil).fails(http.StatusConflict, "repair or remove it there")
	var h api.History
	w.get(path+"/history").into(http.StatusOK, &h)
	diff(t, "revisions", []string{"", "1.1.0"}, []string{h.Revisions[0].AppVersion, h.Revisions[1].AppVersion})
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "hello"}).fails(http.StatusConflict)
	w.eventually(func() bool { return w.has(fleet.DeploymentInvalid) })
	var d fleet.Deployment
	w.get(path).into(http.StatusOK, &d)
	if d.Problem == "" {
		t.Errorf("got %+v", d)
	}
	w.do(http.MethodDelete, path, nil).into(http.StatusNoContent, nil)
}
