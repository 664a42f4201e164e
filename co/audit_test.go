package co_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/testpart"
)

// entries are those of the audit, the newest first.
func (b *bench) entries(text, query string) []audit.Entry {
	b.t.Helper()
	status, said := b.ask(http.MethodGet, "/api/v1/audit"+query, text, "")
	var page auditapi.Entries
	if err := json.Unmarshal([]byte(said), &page); err != nil || status != http.StatusOK {
		b.t.Fatalf("%d %s (%v)", status, said, err)
	}
	return page.Items
}

// TestAudit has three people work with a CO, and reads the audit.
func TestAudit(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	_, reader := b.tokenOf("rob", access.ReadOnly, time.Hour)
	do := func(method, path, text, body string, want int) {
		t.Helper()
		if status, said := b.ask(method, path, text, body); status != want {
			t.Fatalf("%s %s: %d %s, want %d", method, path, status, said, want)
		}
	}
	do(http.MethodPost, "/api/v1/sites", admin, `{"id":"plant"}`, http.StatusCreated)
	do(http.MethodPut, "/api/v1/sites/plant/data-rules", admin, `{"document":"apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec: {data: {rules: [{name: a, direction: up, topics: ['a/#']}]}}"}`, http.StatusOK)
	do(http.MethodDelete, "/api/v1/sites/plant?force=true", reader, "", http.StatusForbidden)
	do(http.MethodPost, "/api/v1/sites", "x.y.z", `{"id":"other"}`, http.StatusUnauthorized)
	do(http.MethodPost, "/api/v1/sites", admin, `{"id":"NOT A NAME"}`, http.StatusUnprocessableEntity)
	do(http.MethodPost, "/api/v1/tokens", admin, `{"name":"ci","role":"operator"}`, http.StatusCreated)
	do(http.MethodGet, "/api/v1/audit", reader, "", http.StatusForbidden)
	do(http.MethodGet, "/api/v1/sites", reader, "", http.StatusOK)                                           // which changes nothing, and is allowed
	do(http.MethodGet, "/api/v1/deployments/plant/meter/logs?grep=key", admin, "", http.StatusConflict)      // what is read there may be secret
	do(http.MethodGet, "/api/v1/deployments/plant/meter/logs?follow=true", reader, "", http.StatusForbidden) // likewise

	var list []audit.Entry
	testpart.Within(t, time.Minute, "each operation has its outcome", func() error {
		list = b.entries(admin, "")
		for _, e := range list {
			if e.Kind == audit.Intent && e.DoneAt == nil {
				return fmt.Errorf("%s has none", e.Operation)
			}
		}
		return nil
	})
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprintf("%s %s %s %d", e.Kind, e.Principal, e.Operation, e.Status))
		if e.Kind != audit.Local && !strings.HasPrefix(e.Remote, "127.0.0.1:") {
			t.Errorf("%s came from %q", e.Operation, e.Remote)
		}
	}
	want := []string{
		"refused rob GET /api/v1/deployments/{site}/{name}/logs 403",
		"intent ann GET /api/v1/deployments/{site}/{name}/logs 409",
		"refused rob GET /api/v1/audit 403",
		"intent ann POST /api/v1/tokens 201",
		"intent ann POST /api/v1/sites 422",
		"refused  POST /api/v1/sites 401",
		"refused rob DELETE /api/v1/sites/{site} 403",
		"intent ann PUT /api/v1/sites/{site}/data-rules 200",
		"intent ann POST /api/v1/sites 201",
		"local  colony co token 0",
		"local  colony co token 0",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("the audit says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for at, text := range map[int]string{2: "audit:read", 3: "of ci (operator)", 4: "NOT A NAME", 6: "read-only", 9: "of rob (read-only)", 10: "of ann (admin)"} {
		if !strings.Contains(list[at].Detail, text) {
			t.Errorf("%s says %q, want %q in it", want[at], list[at].Detail, text)
		}
	}
	if got := list[6].Target; got != "/api/v1/sites/plant?force=true" {
		t.Errorf("target %q", got)
	}
	if got := list[1].Target; got != "/api/v1/deployments/plant/meter/logs?grep=key" {
		t.Errorf("target %q of who read a log", got)
	}
	if all, err := json.Marshal(list); err != nil || strings.Contains(string(all), admin) {
		t.Errorf("a token is in the audit (%v)", err)
	}

	// The commit names the operation, and the operation the commit.
	change := list[7]
	if len(change.Commits) != 1 {
		t.Fatalf("commits %v, want one", change.Commits)
	}
	message, err := exec.Command("git", "-C", b.remote, "show", "-s", "--format=%(trailers:only)", change.Commits[0]).Output()
	if want := "Colony-Principal: ann\nColony-Audit: " + change.ID + "\n"; err != nil || strings.TrimRight(string(message), "\n")+"\n" != want {
		t.Errorf("the commit says %q (%v), want %q", message, err, want)
	}
}

// TestSiteRemovalWithTokenHasItsTrailer removes a site that has data rules, with a token: the commit says which site it
// removes, beside who did it.
func TestSiteRemovalWithTokenHasItsTrailer(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	for _, r := range [][3]string{
		{http.MethodPost, "/api/v1/sites", `{"id":"plant"}`},
		{http.MethodPut, "/api/v1/sites/plant/data-rules", `{"document":"apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec: {data: {rules: [{name: a, direction: up, topics: ['a/#']}]}}"}`},
		{http.MethodDelete, "/api/v1/sites/plant?force=true", ""},
	} {
		if status, said := b.ask(r[0], r[1], admin, r[2]); status >= http.StatusBadRequest {
			t.Fatalf("%s %s: %d %s", r[0], r[1], status, said)
		}
	}
	message, err := exec.Command("git", "-C", b.remote, "show", "-s", "--format=%(trailers:key=Colony-Remove-Site,valueonly)", "main").Output()
	if err != nil || strings.TrimSpace(string(message)) != "plant" {
		t.Errorf("git reads %q as the site that the commit removes (%v), want plant", message, err)
	}
}

// TestAuditIsVerified changes the record behind the CO's back.
func TestAuditIsVerified(t *testing.T) {
	t.Parallel()
	b := start(t)
	verify := func() (v auditapi.Verification) {
		t.Helper()
		status, said := b.ask(http.MethodGet, "/api/v1/audit/verification", "", "")
		if err := json.Unmarshal([]byte(said), &v); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s (%v)", status, said, err)
		}
		return v
	}
	for _, id := range []string{"one", "two", "three"} {
		if status, said := b.ask(http.MethodPost, "/api/v1/sites", "", `{"id":"`+id+`"}`); status != http.StatusCreated {
			t.Fatalf("%d %s", status, said)
		}
	}
	testpart.Within(t, time.Minute, "all is sealed", func() error {
		if v := verify(); v.Rows != 6 || len(v.Findings) != 0 {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	// A CO that starts writes a checkpoint of what is sealed.
	b.coStop()
	var err error
	if b.co, err = co.New(b.options); err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b.co)
	testpart.Within(t, time.Minute, "there is a checkpoint of all", func() error {
		if file, err := os.ReadFile(b.options.AuditCheckpoints()); err != nil || !strings.Contains(string(file), `"position":6`) {
			return fmt.Errorf("%s (%w)", file, err)
		}
		return nil
	})
	pool, err := db.Open(t.Context(), b.options.DatabaseURL, db.Options{NoMigration: true})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, sql := range []string{`alter table audit disable trigger user`, `update audit set remote = '192.0.2.1' where position = 2`, `delete from audit where position > 4`} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if v := verify(); len(v.Findings) != 2 || v.Findings[0].Position != 2 || v.Findings[1].Position != 5 || !strings.Contains(v.Findings[1].Problem, "up to position 6") {
		t.Errorf("%+v, want a changed row 2 and a missing end from 5 on", v)
	}
	file := b.options.AuditCheckpoints()
	if err := os.WriteFile(file, []byte(`{"position":9,"hash":"00","at":"2026-01-01T00:00:00Z","signature":"AA=="}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := verify(); v.BadCheckpoints != 1 || v.Checkpoints != 0 {
		t.Errorf("a checkpoint of somebody else: %+v", v)
	}
	if info, err := os.Stat(filepath.Join(filepath.Dir(file), "checkpoint.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// done waits until each operation in the audit has its outcome.
func (b *bench) done(text string) {
	b.t.Helper()
	testpart.Within(b.t, time.Minute, "each operation has its outcome", func() error {
		for _, e := range b.entries(text, "") {
			if e.Kind == audit.Intent && e.DoneAt == nil {
				return fmt.Errorf("%s has none", e.Operation)
			}
		}
		return nil
	})
}

// TestRefusalsOfHandlersAreRecorded has a body or a filter name a site that the token does not hold for: what the gate
// lets pass and a handler refuses has a row and is counted, too.
func TestRefusalsOfHandlersAreRecorded(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	scoped := b.scopedToken(access.Admin, "plant*")
	want := map[string]bool{}
	for _, r := range [][3]string{
		{http.MethodGet, "/api/v1/nodes?site=south", ""},
		{http.MethodGet, "/api/v1/deployments?site=south", ""},
		{http.MethodGet, "/api/v1/events?site=south", ""},
		{http.MethodGet, "/api/v1/pending-nodes?site=south", ""},
		{http.MethodPost, "/api/v1/sites", `{"id":"south"}`},
		{http.MethodPost, "/api/v1/deployments", `{"site":"south","app":"none"}`},
	} {
		if status, said := b.ask(r[0], r[1], scoped, r[2]); status != http.StatusForbidden {
			t.Fatalf("%s %s: %d %s", r[0], r[1], status, said)
		}
		want[r[1]] = true
	}
	refused := b.entries(admin, "?kind=refused")
	for _, e := range refused {
		if !want[e.Target] || e.Principal != "some-admin" || e.Status != http.StatusForbidden || !strings.Contains(e.Detail, `not for site "south"`) {
			t.Errorf("a refusal: %+v", e)
		}
	}
	if len(refused) != len(want) {
		t.Errorf("%d refusals have rows, want %d", len(refused), len(want))
	}
	if _, metrics := b.ask(http.MethodGet, "/metrics", admin, ""); !strings.Contains(metrics, `colony_co_requests_refused_total{status="403"} 6`) {
		t.Error("the refusals are not counted")
	}
}

// TestAuditNamesSites has operations name the site that they are of, whether the body says it or the path, and in
// whichever spelling.
func TestAuditNamesSites(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	for _, r := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodPost, "/api/v1/sites", `{"id":"plant"}`, http.StatusCreated},
		{http.MethodPost, "/api/v1/deployments", `{"site":"plant","name":"web","app":"none"}`, http.StatusNotFound},
		{http.MethodPut, "/api/v1/sites/pl%61nt/data-rules", `{"rules":[]}`, http.StatusOK},
	} {
		if status, said := b.ask(r.method, r.path, admin, r.body); status != r.want {
			t.Fatalf("%s %s: %d %s, want %d", r.method, r.path, status, said, r.want)
		}
	}
	b.done(admin)
	if list := b.entries(admin, "?target=/api/v1/sites/plant/"); len(list) != 1 || list[0].Target != "/api/v1/sites/plant/data-rules" {
		t.Errorf("what was done at the site: %+v", list)
	}
	for path, detail := range map[string]string{"/api/v1/sites": "site plant", "/api/v1/deployments": "deployment plant/web"} {
		found := false
		for _, e := range b.entries(admin, "?kind=intent&target="+path) {
			found = found || e.Target == path && strings.Contains(e.Detail, detail)
		}
		if !found {
			t.Errorf("no operation at %s says %q", path, detail)
		}
	}
}
