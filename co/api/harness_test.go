package api_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/admission"
	"github.com/colonyfleet/colony/co/api"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	"github.com/colonyfleet/colony/co/api/images"
	rolloutsapi "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/catalog"
	commandlive "github.com/colonyfleet/colony/co/command/live"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/data/live"
	"github.com/colonyfleet/colony/co/db"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	commandsdb "github.com/colonyfleet/colony/co/db/commands"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	rolloutdb "github.com/colonyfleet/colony/co/db/fleet/rollouts"
	sessionsdb "github.com/colonyfleet/colony/co/db/sessions"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/registry"
	"github.com/colonyfleet/colony/co/registry/uses"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/rollout/driver"
	"github.com/colonyfleet/colony/co/session"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patience is how long a test waits for what should come at once.
const patience = 2 * time.Minute

// world is a CO without its brokers: the API on a real store, a real deployments
// repo, and, unless it is left out, the real loop from the one to the other.
type world struct {
	t             *testing.T
	url           string
	remote        string
	db            *db.DB
	store         *fleetdb.Store
	proposalStore *proposaldb.Store
	dataStore     *datadb.Store
	repo          *git.Repo
	server        *httptest.Server
	loop          *desired.Loop
	driver        *driver.Driver
	registry      *registry.Handler
	hub           *live.Hub
	// asked counts how often the site was asked for the state of its streams.
	asked atomic.Int32
	// ask is what the site does then.
	ask func() error
	// endFeed ends the live streams, as the CO does when it stops.
	endFeed func()
	journal uint64 // events of the site home that were sent
}

type setting func(*config)

type config struct {
	database string
	noLoop   bool
	change   []func(*api.Options)
}

// withoutLoop leaves the record of deployments to the test.
func withoutLoop(c *config) { c.noLoop = true }

func databaseAt(url string) setting { return func(c *config) { c.database = url } }

func options(f func(*api.Options)) setting {
	return func(c *config) { c.change = append(c.change, f) }
}

func newWorld(t *testing.T, settings ...setting) *world {
	t.Helper()
	c := &config{}
	for _, f := range settings {
		f(c)
	}
	if c.database == "" {
		c.database = pgtest.New(t)
	}
	w := &world{t: t, hub: &live.Hub{}, ask: func() error { return nil }, remote: filepath.Join(t.TempDir(), "deployments.git")}
	var err error
	if w.db, err = db.Open(t.Context(), c.database, db.Options{MaxConns: 6}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.store, w.dataStore, w.proposalStore = fleetdb.New(w.db), datadb.New(w.db), proposaldb.New(w.db)
	if err := git.InitBare(t.Context(), w.remote, "main"); err != nil {
		t.Fatal(err)
	}
	if w.repo, err = git.Open(t.Context(), git.Options{Dir: filepath.Join(t.TempDir(), "cache"), Remote: w.remote}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.repo.Close(); err != nil {
			t.Error(err)
		}
	})
	changed := func() {}
	w.makeDriver(func() { changed() })
	if !c.noLoop {
		w.startLoop()
		changed = w.loop.Notify
	}
	w.serve(c, changed)
	return w
}

func (w *world) serve(c *config, changed func()) {
	w.t.Helper()
	cat, err := catalog.New(catalog.Options{
		Sources: catalog.Sources{Roots: []string{sourceOf(w.t, "."), filepath.Dir(w.t.TempDir())}, Registries: []string{"registry.colony"}},
		Store:   w.store, Registry: shelf{}, CheckArchive: compiler.CheckArchive, CheckShared: compiler.CheckShared, Images: compiler.Images, TempDir: w.t.TempDir(),
		Export: func(context.Context, catalog.Remote, string, string) (string, error) {
			return "", errors.New("no git source here")
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	o := api.Options{
		Apps: w.store, Fleet: w.store, Deployments: w.store, Counts: w.store, Events: w.store, Repo: repo{w.repo}, Changed: changed, Version: "1.2.3",
		Sites: api.SiteActions{AcceptPosition: w.store.AcceptPosition, Ask: func(context.Context, protocol.SiteID) error { w.asked.Add(1); return w.ask() }},
		Rules: w.store, Data: w.dataStore, Proposals: w.proposalStore, Requests: w.store,
		Watch: func(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) sitedata.Watch {
			return w.hub.Subscribe(site, limit, want)
		},
		Catalog: api.CatalogActions{
			Import: func(ctx context.Context, source string) ([]api.ImportResult, error) {
				results, err := cat.Import(ctx, source)
				return shown(results), err
			},
			Images: w.images(),
		},
		Ready: func(ctx context.Context) map[string]error {
			_, err := w.repo.Sync(ctx)
			return map[string]error{"postgres": w.db.Ready(ctx), "deployments repo": err}
		},
	}
	commands := commandlive.New(func(context.Context, protocol.SiteID, command.ID, []byte) error { return nil }, nil)
	o.Sites.Commands = commandsapi.Options{
		Store: commandsdb.New(w.db), Fleet: w.store, Changed: func(protocol.SiteID) {}, AnswerWait: time.Second,
		Open: func(site protocol.SiteID, id command.ID, nodes int) (commandsapi.Reader, error) {
			return commands.Open(site, id, nodes)
		},
	}
	sessions := session.NewCarrier(sessionsdb.New(w.db), nil, slog.New(slog.DiscardHandler))
	o.Sites.Commands.Sessions = commandsapi.Sessions{
		Store: sessionsdb.New(w.db), Carrier: sessions.Name(), Carry: sessions.Carry, Allowed: func(context.Context, protocol.SiteID) error { return nil },
		Input: func(context.Context, protocol.SiteID, command.ID, []byte) error { return nil },
	}
	o.Sites.Rollouts = w.rollouts(changed)
	record := auditdb.New(w.db)
	o.Access.Audit = auditapi.Options{
		Entries: record.Entries, Chain: record.Chain, At: record.At,
		Checkpoints: func() ([]audit.Checkpoint, int, error) { return nil, 0, nil },
	}
	for _, f := range c.change {
		f(&o)
	}
	a := api.New(o)
	w.endFeed = w.run(func(ctx context.Context) { a.Run(ctx, w.store.Listen(ctx)) })
	w.server = httptest.NewServer(a)
	w.url = w.server.URL
	w.t.Cleanup(func() {
		w.endFeed() // streams keep the server from closing
		w.server.Close()
	})
}

// images returns an empty registry, at w.registry.
func (w *world) images() images.Options {
	w.t.Helper()
	var err error
	if w.registry, err = registry.NewHandler(w.t.TempDir(), registry.Limits{}, nil); err != nil {
		w.t.Fatal(err)
	}
	finder := uses.New(uses.Options{
		Host: "registry.colony", Store: w.store, Archive: shelf{}.Archive, Check: compiler.CheckArchive,
		Files: func(ctx context.Context) (map[string][]byte, error) {
			s, err := w.repo.Read(ctx)
			return s.Files, err
		},
	})
	w.registry.SetGuard(finder.Guard)
	return images.Options{Registry: w.registry, Uses: finder.Of}
}

// makeDriver makes what spreads fleet deployments, and works while the loop does.
func (w *world) makeDriver(changed func()) {
	w.t.Helper()
	rollouts := rolloutdb.New(w.db)
	var err error
	w.driver, err = driver.New(driver.Options{
		Facts: w.store.Facts, Limits: proposal.DefaultLimits,
		Read: func(ctx context.Context) (desired.Snapshot, error) {
			s, err := w.repo.Read(ctx)
			return desired.Snapshot{Commit: s.Commit, Files: s.Files, Blobs: s.Blobs, Commits: s.Commits, Skipped: s.Skipped}, err
		},
		Watch: w.repo.Watch, Store: rollouts, Sites: rollouts.FleetSites, Changed: changed, Every: 20 * time.Millisecond,
		Groups: func(context.Context) (map[string]siteset.Set, error) { return map[string]siteset.Set{}, nil },
		App: func(ctx context.Context, id, version string) ([]byte, error) {
			v, err := w.store.AppVersion(ctx, id, version)
			return []byte(v.Document), err
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// rollouts are what the API has done for fleet deployments.
func (w *world) rollouts(changed func()) rolloutsapi.Options {
	return rolloutsapi.Options{
		Store: rolloutdb.New(w.db), Plan: w.driver.Plan, Staged: w.store.Staged, Changed: changed, Sync: w.repo.Sync, Sites: w.store,
		Groups: func(context.Context) (map[string]siteset.Set, error) { return map[string]siteset.Set{}, nil },
		Read: func(ctx context.Context) (rolloutsapi.Head, error) {
			s, err := w.repo.Read(ctx)
			return rolloutsapi.Head{Commit: s.Commit, Files: s.Files, Commits: s.Commits}, err
		},
		Commit: func(ctx context.Context, files map[string][]byte, expect map[string]string, message string) error {
			_, err := w.repo.Commit(ctx, git.Change{Message: message, Files: files, Expect: expect})
			return err
		},
	}
}

// admission judges deployments as the CO does.
func (w *world) admission() *admission.Admission {
	return admission.New(admission.Options{Apps: w.store, Repo: repo{w.repo}, Images: shelf{}, NotNamed: errors.New("not named")})
}

func (w *world) startLoop() {
	w.t.Helper()
	var err error
	w.loop, err = desired.New(desired.Options{
		Store: w.store, Watch: w.driver.Watch, Interval: time.Minute, Retry: retry.Policy{Min: 10 * time.Millisecond},
		Read: w.driver.Read,
		Judgement: desired.Judgement{Admit: w.admission().Admit, Compile: func(ctx context.Context, _, _ string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
			return compiler.Compile(ctx, d, shelf{})
		}},
		Outcomes:  desired.Outcomes{Publish: func(context.Context, protocol.SiteID, []byte) error { return nil }},
		Positions: w.store, Proposals: w.proposalStore, Limits: proposal.DefaultLimits, Nodes: w.store.PlacementNodes,
		History: history{w.repo},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.run(func(ctx context.Context) {
		if err := w.loop.Run(ctx); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
}

// run runs f until the test ends or the returned function, which waits, is called.
func (w *world) run(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	w.t.Cleanup(stop)
	return stop
}

func shown(results []catalog.Result) []api.ImportResult {
	var out []api.ImportResult
	for _, r := range results {
		v := api.ImportResult{Path: r.Path, App: r.App, Version: r.Version, Outcome: string(r.Outcome), Warnings: r.Warnings}
		for _, p := range r.Problems {
			v.Problems = append(v.Problems, api.Problem{Path: p.Path, Line: p.Line, Message: p.Message})
		}
		out = append(out, v)
	}
	return out
}

// history is that of the deployments repo as the wiring hands it to the loop.
type history struct{ *git.Repo }

func (h history) Removals(ctx context.Context, since string) (map[string]desired.Removal, error) {
	found, err := h.Repo.Removals(ctx, since)
	out := map[string]desired.Removal{}
	for path, r := range found {
		out[path] = desired.Removal(r)
	}
	return out, err
}

func (h history) Confirmations(ctx context.Context) ([]desired.Confirmation, error) {
	found, err := h.Trailers(ctx, proposal.Trailer)
	var out []desired.Confirmation
	for _, t := range found {
		out = append(out, desired.Confirmation{Proposal: t.Value, Commit: t.Commit, Author: t.Author})
	}
	return out, err
}

// repo is the deployments repo as the wiring hands it to the API.
type repo struct{ *git.Repo }

func (r repo) Revisions(ctx context.Context, path string) ([]fleet.Revision, error) {
	list, err := r.History(ctx, path)
	var out []fleet.Revision
	for _, v := range list {
		out = append(out, fleet.Revision{Commit: v.Commit, Time: v.Time, Author: v.Author, Message: v.Message})
	}
	return out, err
}

// shelf is a registry: the archives of the samples, and a digest for any image.
type shelf struct{}

func (shelf) Package(context.Context, string, string) (protocol.Digest, error) {
	return "", protocol.Errorf(protocol.NotFound, "no packages here")
}

func (s shelf) Compile(ctx context.Context, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	return compiler.Compile(ctx, d, s)
}

func (shelf) Pin(context.Context, string, string, protocol.Digest) error { return nil }

func (shelf) Tags(context.Context, string) ([]string, error) { return nil, nil }

func (shelf) Image(_ context.Context, ref string) (string, error) {
	name, _, _ := strings.Cut(ref, "@")
	return name + "@" + string(protocol.DigestOf([]byte(ref))), nil
}

func (shelf) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	compose, err := os.ReadFile("testdata/components/" + filepath.Base(repository) + "-" + revision + "/compose.yaml")
	if errors.Is(err, os.ErrNotExist) {
		compose = []byte("services:\n  " + filepath.Base(repository) + ":\n    image: registry.colony/samples/meter:1\n    restart: unless-stopped\n")
	} else if err != nil {
		return nil, "", err
	}
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	err = errors.Join(
		tw.WriteHeader(&tar.Header{Name: "package/compose.yaml", Mode: 0o644, Size: int64(len(compose))}),
		func() error { _, err := tw.Write(compose); return err }(), tw.Close(), zw.Close())
	return b.Bytes(), protocol.DigestOf(b.Bytes()), err
}

// An answer is what the API said.
type answer struct {
	t      *testing.T
	call   string
	status int
	header http.Header
	body   []byte
}

// do sends a request. body is sent as it is where it is a string, else as JSON;
// header are pairs.
func (w *world) do(method, path string, body any, header ...string) answer {
	w.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			w.t.Fatal(err)
		}
		r = bytes.NewReader(encoded)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, r)
	if err != nil {
		w.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{w.t, method + " " + path, resp.StatusCode, resp.Header, got}
}

func (w *world) get(path string) answer { w.t.Helper(); return w.do(http.MethodGet, path, nil) }

// into checks the status and decodes the body.
func (a answer) into(status int, out any) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: got %d, want %d: %s", a.call, a.status, status, a.body)
	}
	if out == nil {
		return a
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		a.t.Fatalf("%s: %v: %s", a.call, err, a.body)
	}
	return a
}

// A problem is an RFC 9457 answer.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
		Value    any    `json:"value"`
	} `json:"errors"`
}

// internals are what no answer of the API may hold.
var internals = []string{
	"SQLSTATE", "pgx", "pgconn", "dial tcp", "dial unix", "goroutine ", "panic", ".go:", "user=", "database=", "127.0.0.1", "select ", "insert ",
}

// fails checks that the answer is a problem with this status, that says text, in
// its detail or in an error whose location is at the text's front: "body.x: text".
func (a answer) fails(status int, texts ...string) problem {
	a.t.Helper()
	var p problem
	a.into(status, &p)
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		a.t.Errorf("%s: content type %q", a.call, ct)
	}
	if p.Status != status || p.Title != http.StatusText(status) || p.Detail == "" {
		a.t.Errorf("%s: not a whole problem: %s", a.call, a.body)
	}
	said := p.Detail
	for _, e := range p.Errors {
		said += "\n" + e.Location + ": " + e.Message
	}
	for _, text := range texts {
		if !strings.Contains(said, text) {
			a.t.Errorf("%s: got\n%s\nwant %q", a.call, said, text)
		}
	}
	a.leaksNothing()
	return p
}

func (a answer) leaksNothing() {
	a.t.Helper()
	for _, s := range internals {
		if strings.Contains(string(a.body), s) {
			a.t.Errorf("%s: the answer shows an internal (%q): %s", a.call, s, a.body)
		}
	}
}

// importApps brings the packages of testdata into the catalog.
func (w *world) importApps() {
	w.t.Helper()
	for _, p := range []string{"hello-1.0.0", "hello-1.1.0", "meter-1.0.0"} {
		var got api.ImportAnswer
		w.do(http.MethodPost, "/api/v1/apps", map[string]string{"source": sourceOf(w.t, p)}).into(http.StatusOK, &got)
		if len(got.Results) != 1 || got.Results[0].Outcome != "imported" {
			w.t.Fatalf("import %s: %+v", p, got)
		}
	}
}

func sourceOf(t *testing.T, pkg string) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/packages/" + pkg)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// fleet makes the site home with the nodes gw-1 and gw-2, and the empty site away.
func (w *world) fleet() {
	w.t.Helper()
	w.do(http.MethodPost, "/api/v1/sites", map[string]string{"id": "away"}).into(http.StatusCreated, nil)
	for i, hall := range []string{"7", "8"} {
		node := protocol.NodeID(fmt.Sprintf("gw-%d", i+1))
		w.report(protocol.NodeOnlineEvent, node, protocol.Presence{V: 1, Online: true, Version: "0.1"})
		w.report(protocol.InventoryChanged, node, protocol.Inventory{
			V: 1, Node: node, Labels: map[string]string{"hall": hall, "line": "a"}, Architecture: "amd64", Cores: 4,
		})
	}
}

// report commits one event of the journal of the site home.
func (w *world) report(kind protocol.EventKind, node protocol.NodeID, body any) {
	w.t.Helper()
	w.journal++
	e := protocol.Event{UnixMillis: 1_700_000_000_000, Kind: kind, Node: node, Body: protocol.Marshal(body)}
	b := protocol.Batch{V: 1, Epoch: "e", First: w.journal, Count: 1}
	if _, err := w.store.CommitBatch(w.t.Context(), "home", b, []protocol.Event{e}); err != nil {
		w.t.Fatal(err)
	}
}

// transitions reports that a deployment passed through states on gw-1.
func (w *world) transitions(name protocol.DeploymentName, states ...lifecycle.State) {
	w.t.Helper()
	d, err := w.store.Deployment(w.t.Context(), "home", name)
	if err != nil && protocol.KindOf(err) != protocol.NotFound {
		w.t.Fatal(err)
	}
	for _, s := range states {
		actor := lifecycle.LO
		if s == lifecycle.Installed || s == lifecycle.Failed {
			actor = lifecycle.EN
		}
		w.report(protocol.StatusEvent, "gw-1", protocol.DeploymentStatus{
			V: 1, Node: "gw-1", Deployment: name, State: s, Actor: actor, App: "hello", AppVersion: "1.0.0", Digest: d.Digest,
		})
	}
}

// deploy makes a deployment and waits until it is recorded.
func (w *world) deploy(d map[string]any) fleet.Deployment {
	w.t.Helper()
	var out fleet.Deployment
	w.do(http.MethodPost, "/api/v1/deployments", d).into(http.StatusCreated, &out)
	if w.loop != nil {
		w.recorded(out)
	}
	return out
}

// recorded waits until the record has followed the repo to a deployment's commit.
func (w *world) recorded(want fleet.Deployment) fleet.Deployment {
	w.t.Helper()
	var got fleet.Deployment
	w.eventually(func() bool {
		var err error
		got, err = w.store.Deployment(w.t.Context(), want.Site, want.Name)
		return err == nil && got.Commit == want.Commit && !got.Archived
	})
	return got
}

// eventually waits until cond is true. Each change of the record asks again.
func (w *world) eventually(cond func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	changed := w.store.Listen(ctx)
	again := time.NewTicker(100 * time.Millisecond) // not each change makes an event
	defer again.Stop()
	for !cond() {
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			w.t.Fatal("did not come true in time")
		}
	}
	cancel()
	for range changed { //nolint:revive // until the listener has ended
	}
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// Health says that every image has a check.
func (shelf) Health(context.Context, string) (*protocol.Health, error) {
	return &protocol.Health{Command: []string{"true"}, Retries: 7}, nil
}
