package api_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

// calls are one of each kind, as good ones as there can be.
var calls = []struct {
	method, path string
	body         any
	writes       bool // goes to the remote of the deployments repo
}{
	{method: http.MethodGet, path: "/apps"},
	{method: http.MethodGet, path: "/apps/hello"},
	{method: http.MethodGet, path: "/apps/hello/versions/1.0.0"},
	{method: http.MethodGet, path: "/deployments"},
	{method: http.MethodGet, path: "/deployments/home/hello"},
	{method: http.MethodGet, path: "/deployments/home/hello/history"},
	{method: http.MethodGet, path: "/sites"},
	{method: http.MethodGet, path: "/sites/home"},
	{method: http.MethodGet, path: "/nodes"},
	{method: http.MethodGet, path: "/nodes/home/gw-1"},
	{method: http.MethodGet, path: "/events"},
	{method: http.MethodGet, path: "/status"},
	{method: http.MethodPost, path: "/deployments", body: map[string]any{"site": "home", "app": "meter"}, writes: true},
	{method: http.MethodPatch, path: "/deployments/home/hello", body: map[string]any{"version": "1.0.0"}, writes: true},
	{method: http.MethodPost, path: "/deployments/home/hello/retry", writes: true},
	{method: http.MethodDelete, path: "/deployments/home/hello", writes: true},
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	own := pgtest.NewOwn(t)
	w := site(t, databaseAt(own.URL()), withoutLoop)
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	own.Stop()
	for _, c := range calls {
		if c.writes && (c.method == http.MethodDelete || strings.HasSuffix(c.path, "/retry")) {
			continue // these need the repo only
		}
		w.do(c.method, "/api/v1"+c.path, c.body).fails(http.StatusServiceUnavailable, "the database is not reachable", "try again")
	}
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{"id": "new"}).fails(http.StatusServiceUnavailable, "create site")
	w.do(http.MethodGet, "/api/v1/events", nil, "Accept", "text/event-stream").fails(http.StatusServiceUnavailable, "the database is not reachable")
	a := w.get("/readyz").into(http.StatusServiceUnavailable, nil)
	if got := string(a.body); !strings.HasPrefix(got, "postgres: reach database: the database is not reachable") || strings.Contains(got, "repo") {
		t.Errorf("got %q", got)
	}
	a.leaksNothing()
	diff(t, "alive", "ok\n", string(w.get("/healthz").into(http.StatusOK, nil).body))

	// What needs the repo only goes on, and the answer says what was committed.
	var d fleet.Deployment
	w.do(http.MethodPost, "/api/v1/deployments/home/hello/retry", nil).into(http.StatusOK, &d)
	_, commit := w.file("home", "hello")
	diff(t, "commit", commit, d.Commit)

	own.Start()
	diff(t, "ready again", "ready\n", string(w.get("/readyz").into(http.StatusOK, nil).body))
	w.get("/api/v1/apps/hello").into(http.StatusOK, nil)
}

func TestRemoteAway(t *testing.T) {
	t.Parallel()
	w := site(t)
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	if err := os.Rename(w.remote, w.remote+".away"); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		a := w.do(c.method, "/api/v1"+c.path, c.body)
		if !c.writes {
			a.into(http.StatusOK, nil) // the cache and the record answer
			continue
		}
		a.fails(http.StatusServiceUnavailable, "git remote")
	}
	a := w.get("/readyz").into(http.StatusServiceUnavailable, nil)
	if got := string(a.body); !strings.HasPrefix(got, "deployments repo: ") || strings.Contains(got, "postgres") {
		t.Errorf("got %q", got)
	}
	var s api.Status
	w.get("/api/v1/status").into(http.StatusOK, &s)
	if s.Parts["postgres"] != "ok" || !strings.Contains(s.Parts["deployments repo"], "git remote") {
		t.Errorf("got %+v", s.Parts)
	}
	if err := os.Rename(w.remote+".away", w.remote); err != nil {
		t.Fatal(err)
	}
	w.do(http.MethodDelete, "/api/v1/deployments/home/hello", nil).into(http.StatusNoContent, nil)
}

// brokenApps fails as a fault of the program does.
type brokenApps struct {
	api.AppStore
	err error
}

func (b brokenApps) App(context.Context, string) (fleet.App, error) { return fleet.App{}, b.err }

func TestFaultsAreLoggedAndNotShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		status int
		level  string
	}{
		"no kind":     {errors.New("secret of the heap"), http.StatusInternalServerError, "level=ERROR"},
		"internal":    {protocol.Errorf(protocol.Internal, "secret of the heap"), http.StatusInternalServerError, "level=ERROR"},
		"unavailable": {protocol.Errorf(protocol.Unavailable, "read application: %w", context.DeadlineExceeded), http.StatusServiceUnavailable, "level=WARN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log strings.Builder
			w := newWorld(t, withoutLoop, options(func(o *api.Options) {
				o.Apps, o.Logger = brokenApps{o.Apps, tc.err}, slog.New(slog.NewTextHandler(&log, nil))
			}))
			a := w.get("/api/v1/apps/hello")
			a.fails(tc.status, "log")
			if strings.Contains(string(a.body), "secret") || strings.Contains(string(a.body), "deadline") {
				t.Errorf("the answer shows the cause: %s", a.body)
			}
			w.endFeed()
			w.server.Close() // nothing is written to the log any more
			if !strings.Contains(log.String(), tc.level) || !strings.Contains(log.String(), tc.err.Error()) {
				t.Errorf("the log does not show the cause: %s", log.String())
			}
		})
	}
}

// The stored description of an application that this program cannot read is not the fault of the
// caller.
func TestUnreadableStoredApplication(t *testing.T) {
	t.Parallel()
	w := site(t)
	v := fleet.AppVersion{AppID: "odd", Version: "1.0.0", Name: "Odd", Digest: protocol.DigestOf([]byte("x")), Document: "x: 1\n"}
	if _, err := w.store.SaveAppVersion(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	w.do(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "home", "app": "odd"}).fails(http.StatusInternalServerError, "an internal fault")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop, options(func(o *api.Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("colony_up 1\n")) })
	}))
	diff(t, "metrics", "colony_up 1\n", string(w.get("/metrics").into(http.StatusOK, nil).body))
}
