package driver_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	rolloutdb "github.com/colonyfleet/colony/co/db/fleet/rollouts"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/driver"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patience is how long a test waits for what should come at once.
const patience = 2 * time.Minute

// world is a fleet of sites that do what they are given, and a CO without brokers that drives rollouts over them.
type world struct {
	t         *testing.T
	db        *db.DB
	store     *fleetdb.Store
	proposals *proposaldb.Store
	rollouts  *rolloutdb.Store
	stop      func()
	driver    *driver.Driver

	mu      sync.Mutex // protects what follows
	commits int
	files   map[string][]byte
	changed map[string]string // path to its last commit
	removed map[string]desired.Removal
	groups  map[string]siteset.Set
	sites   map[protocol.SiteID]*site
	// gate is what gates say; asked is how often they were.
	gate  rollout.Answer
	asked int
	// judge, unless nil, says why a question does not pass.
	judge func(rollout.About) string
	looks atomic.Int64 // how often it was looked which sites there are
	// outcome says what becomes of a version at a site.
	outcome func(site protocol.SiteID, version string) lifecycle.State
	notify  func()
}

// A site is what a simulated site has.
type site struct {
	seq     uint64
	states  map[protocol.DeploymentName]lifecycle.State
	digests map[protocol.DeploymentName]protocol.Digest
	// versions are those that it was given, in their sequence.
	versions []string
	values   string
}

func newWorld(t *testing.T, sites int) *world {
	t.Helper()
	w := &world{
		t: t, files: map[string][]byte{}, changed: map[string]string{}, removed: map[string]desired.Removal{}, groups: map[string]siteset.Set{},
		sites: map[protocol.SiteID]*site{}, notify: func() {},
		outcome: func(protocol.SiteID, string) lifecycle.State { return lifecycle.Installed },
	}
	var err error
	if w.db, err = db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.store, w.proposals, w.rollouts = fleetdb.New(w.db), proposaldb.New(w.db), rolloutdb.New(w.db)
	for i := range sites {
		w.addSite(i)
	}
	w.start()
	return w
}

func siteName(i int) protocol.SiteID { return protocol.SiteID(fmt.Sprintf("site-%03d", i)) }

func (w *world) addSite(i int) {
	w.t.Helper()
	id := siteName(i)
	w.mu.Lock()
	w.sites[id] = &site{states: map[protocol.DeploymentName]lifecycle.State{}, digests: map[protocol.DeploymentName]protocol.Digest{}}
	w.mu.Unlock()
	w.online(id, true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(w.t.Context(), id, w.sites[id], protocol.NodeOnlineEvent, "gw", protocol.Presence{V: 1, Online: true})
}

func (w *world) online(id protocol.SiteID, online bool) {
	w.t.Helper()
	if err := w.store.SetSitePresence(w.t.Context(), id, protocol.Presence{V: 1, Online: online, Session: "1"}); err != nil {
		w.t.Fatal(err)
	}
}

// start starts the CO; it ends with the test, or by stop.
func (w *world) start() {
	w.t.Helper()
	var loop *desired.Loop
	var err error
	w.driver, err = driver.New(driver.Options{
		Facts: w.store.Facts, Limits: proposal.DefaultLimits,
		Read: w.read, Store: w.rollouts, Every: 20 * time.Millisecond,
		Sites: func(ctx context.Context) ([]protocol.SiteID, error) {
			w.looks.Add(1)
			return w.rollouts.FleetSites(ctx)
		},
		Watch: func(ctx context.Context, _ time.Duration, _ func(string)) error { <-ctx.Done(); return nil },
		Groups: func(context.Context) (map[string]siteset.Set, error) {
			return w.locked(func() map[string]siteset.Set { return maps.Clone(w.groups) }), nil
		},
		App: func(_ context.Context, id, version string) ([]byte, error) {
			if id != "meter" || !strings.HasPrefix(version, "1.") {
				return nil, protocol.Errorf(protocol.NotFound, "no application %s %s", id, version)
			}
			return []byte(strings.ReplaceAll(app, "1.0.0", version)), nil
		},
		Changed: func() { loop.Notify() }, Gates: w, AskEvery: 30 * time.Millisecond,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	loop, err = desired.New(desired.Options{
		Store: w.store, Read: w.driver.Read, Watch: w.driver.Watch, Retry: retry.Policy{Min: 10 * time.Millisecond}, MessageLimit: 1 << 20,
		Judgement: desired.Judgement{Compile: compile}, Outcomes: desired.Outcomes{Publish: w.publish},
		Positions: w.store, Proposals: w.proposals, Limits: proposal.DefaultLimits, Nodes: w.store.PlacementNodes, History: w,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.notify = loop.Notify
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := loop.Run(ctx); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	}()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(w.stop)
}

// Check implements driver.Gates.
func (w *world) Check(g *rollout.Gate) error {
	if g.Source != "prom" {
		return fmt.Errorf("source %q: there is none", g.Source)
	}
	return nil
}

// Ask implements driver.Gates.
func (w *world) Ask(_ context.Context, g *rollout.Gate, about rollout.About) rollout.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked++; about.Fleet != "meter" || about.App != "meter" || about.Gate != g.Name || about.Commit == "" {
		w.t.Errorf("asked about %+v", about)
	}
	a := w.gate
	a.Gate = g.Name
	if judge := w.judge; judge != nil {
		w.mu.Unlock()
		a.Reason = judge(about)
		w.mu.Lock()
	}
	return a
}

func (w *world) say(reason string, unknown bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = rollout.Answer{Reason: reason, Unknown: unknown}
}

func (w *world) locked(f func() map[string]siteset.Set) map[string]siteset.Set {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

func (w *world) read(context.Context) (desired.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := desired.Snapshot{Commit: commitName(w.commits), Files: maps.Clone(w.files), Commits: maps.Clone(w.changed), Blobs: map[string]string{}, Skipped: map[string]string{}}
	for p, content := range s.Files {
		sum := sha256.Sum256(content)
		s.Blobs[p] = hex.EncodeToString(sum[:])
	}
	return s, nil
}

func commitName(n int) string { return fmt.Sprintf("%040x", n) }

// commit changes files; nil content removes one.
func (w *world) commit(files map[string]string, trailers ...string) {
	w.mu.Lock()
	w.commits++
	for p, content := range files {
		if content == "" {
			delete(w.files, p)
			delete(w.changed, p)
			w.removed[p] = desired.Removal{Commit: commitName(w.commits), Trailers: trailers}
			continue
		}
		w.files[p], w.changed[p] = []byte(content), commitName(w.commits)
		delete(w.removed, p)
	}
	notify := w.notify
	w.mu.Unlock()
	notify()
}

func (w *world) Removals(context.Context, string) (map[string]desired.Removal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.removed), nil
}

func (w *world) Line(context.Context) (line []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := w.commits; n >= 0; n-- {
		line = append(line, commitName(n))
	}
	return line, nil
}

func (w *world) Ancestors(_ context.Context, commit string) (list []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.commits + 1 {
		if list = append(list, commitName(n)); commitName(n) == commit {
			break
		}
	}
	return list, nil
}

func (w *world) Confirmations(context.Context) ([]desired.Confirmation, error) { return nil, nil }

func compile(_ context.Context, _, _ string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	spec := &protocol.DeploymentSpec{
		App: d.Spec.ApplicationID, AppVersion: d.Spec.Colony.ApplicationVersion, Profile: d.Spec.Colony.Profile,
		Components: []protocol.Component{{Name: "app", Containers: []protocol.Container{{
			Name: "app", Image: "registry.colony/app@" + string(protocol.DigestOf(nil)), Env: []string{"PORT=" + fmt.Sprint(d.Spec.Parameters["port"].Value)},
		}}}},
	}
	raw := protocol.Marshal(spec)
	return protocol.SiteEntry{Deployment: protocol.DeploymentName(d.Metadata.Name), Digest: protocol.DigestOf(raw), Spec: raw}, spec, nil
}

// publish is a site that gets its desired state: it reports that it has it, and what becomes of it.
func (w *world) publish(ctx context.Context, id protocol.SiteID, payload []byte) error {
	if payload == nil {
		return nil
	}
	var m protocol.SiteDesired
	if err := protocol.Unmarshal(payload, &m); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sites[id]
	w.report(ctx, id, s, protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: m.Position})
	for i := range m.Deployments {
		e := &m.Deployments[i]
		if s.digests[e.Deployment] == e.Digest {
			continue
		}
		var spec protocol.DeploymentSpec
		if err := protocol.Unmarshal(e.Spec, &spec); err != nil {
			return err
		}
		first := s.digests[e.Deployment] == ""
		s.digests[e.Deployment], s.values = e.Digest, spec.Components[0].Containers[0].Env[0]
		s.versions = append(s.versions, spec.AppVersion)
		outcome := w.outcome(id, spec.AppVersion)
		if outcome == waiting {
			continue
		}
		states := []lifecycle.State{lifecycle.Pending, lifecycle.Installing}
		if !first {
			states = []lifecycle.State{lifecycle.Updating}
		}
		for _, state := range append(states, outcome) {
			if state == "" {
				break // it is silent
			}
			w.status(ctx, id, s, e, &spec, state)
		}
	}
	for _, r := range m.Removals {
		if s.digests[r.Deployment] != "" {
			s.digests[r.Deployment] = ""
			w.status(ctx, id, s, &protocol.SiteEntry{Deployment: r.Deployment}, &protocol.DeploymentSpec{}, lifecycle.Deleting)
			w.status(ctx, id, s, &protocol.SiteEntry{Deployment: r.Deployment}, &protocol.DeploymentSpec{}, lifecycle.Deleted)
		}
	}
	return nil
}

func (w *world) status(ctx context.Context, id protocol.SiteID, s *site, e *protocol.SiteEntry, spec *protocol.DeploymentSpec, state lifecycle.State) {
	actor := lifecycle.LO
	if state == lifecycle.Installed || state == lifecycle.Failed || state == lifecycle.Deleted {
		actor = lifecycle.EN
	}
	body := protocol.DeploymentStatus{V: 1, Node: "gw", Deployment: e.Deployment, State: state, Actor: actor, App: spec.App, AppVersion: spec.AppVersion, Digest: e.Digest}
	if state == lifecycle.Failed {
		body.Code, body.Message, body.Refused = "CrashLoop", "exited with 1", e.Digest
	}
	w.report(ctx, id, s, protocol.StatusEvent, "gw", body)
}

func (w *world) report(ctx context.Context, id protocol.SiteID, s *site, kind protocol.EventKind, node protocol.NodeID, body any) {
	s.seq++
	e := protocol.Event{UnixMillis: 1_700_000_000_000, Kind: kind, Node: node, Body: protocol.Marshal(body)}
	if _, err := w.store.CommitBatch(ctx, id, protocol.Batch{V: 1, Epoch: "e", First: s.seq, Count: 1}, []protocol.Event{e}); err != nil && ctx.Err() == nil {
		w.t.Error(err)
	}
}

// given returns the versions that sites were given last, with how many have each.
func (w *world) given() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for _, s := range w.sites {
		if len(s.versions) > 0 {
			out[s.versions[len(s.versions)-1]]++
		}
	}
	return out
}

func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		if time.Now().After(end) {
			r, err := w.rollouts.Rollout(w.t.Context(), "meter")
			w.t.Fatalf("%s did not come true in time; %+v, %v; sites have %v", what, r, err, w.given())
		}
		if err := retry.Sleep(w.t.Context(), 10*time.Millisecond); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) rollout() rollout.Rollout {
	w.t.Helper()
	r, err := w.rollouts.Rollout(w.t.Context(), "meter")
	if err != nil && protocol.KindOf(err) != protocol.NotFound {
		w.t.Fatal(err)
	}
	return r
}

// reaches waits until the rollout of a revision is in a state.
func (w *world) reaches(revision int64, state rollout.State, reason string) rollout.Rollout {
	w.t.Helper()
	var r rollout.Rollout
	w.eventually(fmt.Sprintf("revision %d is %s (%q)", revision, state, reason), func() bool {
		r = w.rollout()
		return r.Revision == revision && r.State == state && strings.Contains(r.Reason, reason)
	})
	return r
}

func (w *world) act(a rollout.Action) {
	w.t.Helper()
	if _, err := w.rollouts.Act(w.t.Context(), "meter", a, rollout.Seen{}, "test"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantGiven(want map[string]int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("sites have %v", want), func() bool { return maps.Equal(w.given(), want) })
}

const (
	id  = "6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d"
	app = `apiVersion: v1
id: meter
metadata:
  name: Meter
  description: Reads meters
  version: "1.0.0"
  catalog:
    organization:
      - name: Colony
deploymentProfiles:
  - type: compose
    id: small
    components:
      - name: meter
        properties: {repository: oci://r.example/compose/meter, revision: 1.0.0}
parameters:
  port:
    value: 502
    targets:
      - {pointer: PORT, components: [meter]}
configuration:
  sections:
    - name: General
      settings:
        - {parameter: port, name: Port, schema: port}
  schema:
    - {name: port, dataType: integer, minValue: 1, maxValue: 65535}
`
	// threeWaves admits a first site, then a fifth of all, then the rest; a person lets each pass.
	threeWaves = `    waves:
      - {percent: 5, approval: true}
      - {percent: 20, approval: true}
      - {percent: 100}
`
)

func file(version, targets, strategy string) string {
	text := "apiVersion: colony/v1\nkind: FleetDeployment\nmetadata: {name: meter, id: " + id + "}\nspec:\n  application: {id: meter, version: " + version + "}\n  targets: " + targets + "\n"
	if strategy != "" {
		text += "  strategy:\n" + strategy
	}
	return text
}

const all = `{sites: ["*"]}`

func (w *world) set(content string) { w.commit(map[string]string{fleetfile.Path("meter"): content}) }

func TestARolloutGoesWaveByWave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, threeWaves))
	w.reaches(1, rollout.Running, "promote to begin")
	w.wantGiven(map[string]int{"1.0.0": 1})
	w.act(rollout.Promote)
	w.reaches(1, rollout.Running, "wave 2 of 3 works: promote")
	w.wantGiven(map[string]int{"1.0.0": 4})
	w.act(rollout.Promote)
	w.reaches(1, rollout.Done, "all waves are through")
	w.wantGiven(map[string]int{"1.0.0": 20})
	for i := range 20 {
		d, err := w.store.Deployment(t.Context(), siteName(i), "meter")
		if err != nil || d.State != lifecycle.Installed || d.ID != (&fleetfile.File{ID: id}).IDAt(siteName(i)) {
			t.Errorf("%s: %+v, %v", siteName(i), d, err)
		}
	}
}

// TestAFailureStopsBeforeTheOthersSeeIt updates a fleet to a version that fails at its first site.
func TestAFailureStopsBeforeTheOthersSeeIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	w.outcome = func(_ protocol.SiteID, version string) lifecycle.State {
		if version == "1.1.0" {
			return lifecycle.Failed
		}
		return lifecycle.Installed
	}
	w.mu.Unlock()
	w.set(file("1.1.0", all, threeWaves))
	r := w.reaches(2, rollout.Paused, "1 site failed, and 0 may")
	w.wantGiven(map[string]int{"1.0.0": 19, "1.1.0": 1})
	if total := rollout.Total(r.Waves); total.Failed != 1 || total.Waiting != 19 {
		t.Errorf("counts %+v", total)
	}
	failed, _, err := w.rollouts.Sites(t.Context(), "meter", rollout.SiteFailed, pageOf(10))
	if err != nil || len(failed) != 1 || !strings.Contains(failed[0].Reason, "CrashLoop: exited with 1") {
		t.Errorf("failed sites %+v, %v", failed, err)
	}
	// The former content is a new revision, and needs no wave where it ran healthily.
	w.set(file("1.0.0", all, ""))
	w.reaches(3, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 20})
	// So does a return to waves that a person had to let pass.
	w.set(file("1.2.0", all, threeWaves))
	for range 2 {
		w.reaches(4, rollout.Running, "promote to begin")
		w.act(rollout.Promote)
		w.eventually("the wave passes", func() bool { return !strings.Contains(w.rollout().Reason, "promote to begin") })
	}
	w.reaches(4, rollout.Done, "")
	w.set(file("1.0.0", all, ""))
	w.reaches(5, rollout.Done, "")
	w.set(file("1.2.0", all, threeWaves))
	w.reaches(6, rollout.Done, "")
	w.wantGiven(map[string]int{"1.2.0": 20})
}

func TestACOThatIsStoppedGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 12)
	w.set(file("1.0.0", all, threeWaves))
	for wave := range 2 {
		w.reaches(1, rollout.Running, "promote to begin")
		w.stop()
		before := w.given()
		w.start()
		w.act(rollout.Promote)
		w.eventually("the next wave begins", func() bool { return w.rollout().Wave > wave })
		if w.given()["1.0.0"] < before["1.0.0"] {
			t.Errorf("sites have %v after the start, before %v", w.given(), before)
		}
	}
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.sites {
		if len(s.versions) != 1 {
			t.Errorf("%s was given %v", id, s.versions)
		}
	}
}

func TestSitesThatJoinAndLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", `{sites: ["*"], except: [site-003]}`, ""))
	w.reaches(1, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 3})
	w.addSite(4)
	w.wantGiven(map[string]int{"1.0.0": 4})
	if r := w.rollout(); r.Revision != 1 {
		t.Errorf("a site that joins makes revision %d", r.Revision)
	}
	// One site of four is not meant any more: it is one removal, and done.
	w.set(file("1.0.0", `{sites: ["*"], except: [site-003, site-000]}`, ""))
	w.reaches(2, rollout.Done, "")
	w.eventually("site-000 runs nothing", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.sites["site-000"].digests["meter"] == ""
	})
	// All others at once are many, and wait for a person.
	w.set(file("1.0.0", `{sites: [site-001]}`, ""))
	w.eventually("a proposal waits", func() bool {
		list, _, err := w.proposals.Proposals(t.Context(), proposal.Open, pageOf(10))
		return err == nil && len(list) == 1 && list[0].Deployments == 2
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range []protocol.SiteID{"site-001", "site-002", "site-004"} {
		if w.sites[id].digests["meter"] == "" {
			t.Errorf("%s was removed without anybody's confirmation", id)
		}
	}
}

func TestARemovedFleetDeploymentIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.commit(map[string]string{fleetfile.Path("meter"): ""}, proposal.Trailer+": */meter")
	w.eventually("no site runs it", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !slices.ContainsFunc(slices.Collect(maps.Values(w.sites)), func(s *site) bool { return s.digests["meter"] != "" })
	})
	w.commit(map[string]string{"README.md": "x"})
	w.eventually("it is forgotten", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && len(list) == 0
	})
}

// TestAFileThatVanishesRemovesNothing is a removal that no commit names, and of many sites.
func TestAFileThatVanishesRemovesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.commit(map[string]string{fleetfile.Path("meter"): ""})
	w.eventually("a proposal waits", func() bool {
		list, _, err := w.proposals.Proposals(t.Context(), proposal.Open, pageOf(10))
		return err == nil && len(list) == 1 && list[0].Deployments == 5
	})
	if got := w.given(); got["1.0.0"] != 5 {
		t.Errorf("sites have %v", got)
	}
}

func TestASitesOwnDeploymentStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	own := strings.ReplaceAll(ownDeployment, "SITE", "site-001")
	w.commit(map[string]string{"deployments/site-001/meter/deployment.yaml": own})
	w.eventually("site-001 runs its own", func() bool { return w.given()["1.9.0"] == 1 })
	w.set(file("1.0.0", all, ""))
	r := w.reaches(1, rollout.Done, "1 site with a deployment of their own")
	if total := rollout.Total(r.Waves); total.Conflict != 1 || total.Healthy != 2 {
		t.Errorf("counts %+v", total)
	}
	w.wantGiven(map[string]int{"1.0.0": 2, "1.9.0": 1})
	// The next revision goes past it, too; without its own deployment it gets what all others have.
	w.set(file("1.1.0", all, ""))
	w.reaches(2, rollout.Done, "")
	w.wantGiven(map[string]int{"1.1.0": 2, "1.9.0": 1})
	w.commit(map[string]string{"deployments/site-001/meter/deployment.yaml": ""})
	w.wantGiven(map[string]int{"1.1.0": 3})
	w.eventually("site-001 is healthy", func() bool { return rollout.Total(w.rollout().Waves).Healthy == 3 })
}

const ownDeployment = `id: 11111111-1111-4111-8111-111111111111
metadata: {name: meter, namespace: colony, deviceId: SITE/*}
spec:
  applicationId: meter
  deploymentProfile:
    type: compose
    components:
      - name: meter
        properties: {repository: oci://r.example/compose/meter, revision: 1.0.0}
  x-colony-extensions: {applicationVersion: 1.9.0, profile: small}
`

func TestValuesOfASiteThatAreNotValidPublishNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	exception := func(port string) string {
		return "apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: site-002}\nspec: {parameters: {port: " + port + "}}\n"
	}
	w.commit(map[string]string{fleetfile.ExceptionPath("meter", "site-002"): exception("70000")})
	w.eventually("the revision is refused", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && len(list) == 1 && list[0].State == rollout.Refused && strings.Contains(list[0].Reason, "at site site-002") && strings.Contains(list[0].Reason, "maxValue 65535")
	})
	w.wantGiven(map[string]int{"1.0.0": 4})
	w.commit(map[string]string{fleetfile.ExceptionPath("meter", "site-002"): exception("503")})
	w.reaches(3, rollout.Done, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.sites["site-002"]; got.values != "PORT=503" || len(got.versions) != 2 {
		t.Errorf("site-002 has %s after %v", got.values, got.versions)
	}
	if got := w.sites["site-001"]; got.values != "PORT=502" || len(got.versions) != 1 {
		t.Errorf("site-001 has %s after %v: what nothing changes for restarts nothing", got.values, got.versions)
	}
}

func TestAnOfflineSiteGetsItWhenItIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.mu.Lock()
	w.outcome = func(id protocol.SiteID, _ string) lifecycle.State {
		if id == "site-001" {
			return ""
		}
		return lifecycle.Installed
	}
	w.mu.Unlock()
	w.online("site-001", false)
	w.set(file("1.0.0", all, ""))
	r := w.reaches(1, rollout.Done, "1 site offline")
	if total := rollout.Total(r.Waves); total.Away != 1 || total.Healthy != 2 {
		t.Errorf("counts %+v", total)
	}
	w.mu.Lock()
	s := w.sites["site-001"]
	spec := &protocol.DeploymentSpec{App: "meter", AppVersion: "1.0.0"}
	e := &protocol.SiteEntry{Deployment: "meter", Digest: s.digests["meter"]}
	w.status(t.Context(), "site-001", s, e, spec, lifecycle.Installed)
	w.mu.Unlock()
	w.online("site-001", true)
	w.eventually("site-001 is healthy", func() bool { return rollout.Total(w.rollout().Waves).Healthy == 3 })
}

func TestPauseAndAbort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote")
	w.act(rollout.Pause)
	if _, err := w.rollouts.Act(t.Context(), "meter", rollout.Promote, rollout.Seen{}, ""); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("promoting a paused rollout: %v", err)
	}
	w.act(rollout.Resume)
	w.act(rollout.Promote)
	w.reaches(2, rollout.Running, "wave 2 of 3 works: promote")
	w.act(rollout.Abort)
	w.act(rollout.Abort)
	if r := w.rollout(); r.State != rollout.Aborted {
		t.Errorf("state %s", r.State)
	}
	if err := w.driver.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantGiven(map[string]int{"1.0.0": 16, "1.1.0": 4})
	if _, err := w.rollouts.Act(t.Context(), "meter", rollout.Resume, rollout.Seen{}, ""); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("resuming an aborted rollout: %v", err)
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	canary, err := siteset.Parse([]string{"site-004"})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.groups["canary"] = canary
	w.mu.Unlock()
	w.set(file("1.0.0", all, "    waves: [{group: canary, approval: true}, {percent: 100}]\n"))
	w.reaches(1, rollout.Running, "promote")
	w.mu.Lock()
	if got := w.sites["site-004"].versions; len(got) != 1 {
		t.Errorf("the canary was given %v", got)
	}
	w.mu.Unlock()
	w.wantGiven(map[string]int{"1.0.0": 1})
	w.set(file("1.1.0", `{groups: [nobody]}`, ""))
	w.eventually("the revision is refused", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && list[0].State == rollout.Refused && strings.Contains(list[0].Reason, `no group of sites "nobody"`)
	})
	if r := w.rollout(); r.Revision != 1 || r.State != rollout.Running {
		t.Errorf("the rollout before is %s, revision %d", r.State, r.Revision)
	}
}

// TestASiteThatJoinsWhileARevisionSpreads has a site that is added in the middle of a rollout get what the others had, and then the new revision with the last
// wave.
func TestASiteThatJoinsWhileARevisionSpreads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote to begin")
	w.addSite(4)
	w.wantGiven(map[string]int{"1.0.0": 4, "1.1.0": 1})
	w.act(rollout.Promote)
	w.reaches(2, rollout.Running, "wave 2 of 3 has no site") // a fifth of 5 sites is the one of the first wave
	w.act(rollout.Promote)
	w.reaches(2, rollout.Done, "")
	w.wantGiven(map[string]int{"1.1.0": 5})
}

// TestAFileThatIsPutBackGoesOnAsItWas has a paused rollout, a change by hand that is refused, and the file as it was before: nothing more spreads.
func TestAFileThatIsPutBackGoesOnAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote to begin")
	w.act(rollout.Pause)
	before := w.rollout()
	w.set(file("9.9.9", all, threeWaves))
	w.eventually("the revision is refused", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && len(list) == 1 && list[0].State == rollout.Refused
	})
	w.set(file("1.1.0", all, threeWaves))
	w.eventually("the revision is the latest once more", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && len(list) == 1 && list[0].Revision == 4
	})
	if r := w.rollout(); r.State != rollout.Paused || r.Wave != before.Wave || r.Created != before.Created {
		t.Errorf("after it was put back: %+v", r)
	}
	w.wantGiven(map[string]int{"1.0.0": 19, "1.1.0": 1})
	w.act(rollout.Resume)
	w.reaches(4, rollout.Running, "promote to begin")
}

// TestAnAcceptedFailureThatHealsLeavesNoRoom accepts a failure. Once that site works, the failure of another one is one too many.
func TestAnAcceptedFailureThatHealsLeavesNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	var mu sync.Mutex
	failed := protocol.SiteID("")
	w.mu.Lock()
	w.outcome = func(site protocol.SiteID, _ string) lifecycle.State {
		mu.Lock()
		defer mu.Unlock()
		if failed == "" {
			failed = site
			return lifecycle.Failed
		}
		return lifecycle.Installed
	}
	w.mu.Unlock()
	w.set(file("1.1.0", all, "    waves: [{percent: 10, approval: true}, {percent: 100}]\n"))
	w.reaches(2, rollout.Paused, "1 site failed, and 0 may")
	w.act(rollout.Resume)
	if r := w.reaches(2, rollout.Running, "promote to begin"); r.Waves[0].Accepted != 1 {
		t.Errorf("counts %+v, want one that is accepted", r.Waves[0])
	}
	report := func(id protocol.SiteID, state lifecycle.State) {
		w.mu.Lock()
		defer w.mu.Unlock()
		s := w.sites[id]
		w.status(t.Context(), id, s, &protocol.SiteEntry{Deployment: "meter", Digest: s.digests["meter"]}, &protocol.DeploymentSpec{App: "meter", AppVersion: "1.1.0"}, state)
	}
	report(failed, lifecycle.Installed)
	w.eventually("it works", func() bool { r := w.rollout(); return r.Waves[0].Healthy == 2 && r.Waves[0].Accepted == 0 })
	other := protocol.SiteID("")
	list, err := w.rollouts.Members(t.Context(), "meter")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Revision == 2 && m.Site != failed {
			other = m.Site
		}
	}
	report(other, lifecycle.Failed)
	w.reaches(2, rollout.Paused, "1 site failed, and 0 may")
}

// TestGates has a rollout that a gate holds before it begins, and in the middle, and that a person has go on.
func TestGates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	gated := func(source string) string {
		return "    gates: [{name: errors, source: " + source + ", query: errors, max: 0.5}]\n    waves: [{percent: 10, approval: true}, {percent: 100}]\n"
	}
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.say("there is no answer", true)
	w.set(file("1.1.0", all, gated("prom")))
	w.reaches(2, rollout.Running, "held by gate errors: there is no answer (wave 1 of 2)")
	w.wantGiven(map[string]int{"1.0.0": 20})
	w.say("", false)
	w.reaches(2, rollout.Running, "promote to begin")
	w.say("it is 0.7, and at most 0.5 passes", false)
	w.reaches(2, rollout.Running, "held by gate errors: it is 0.7")
	w.wantGiven(map[string]int{"1.0.0": 18, "1.1.0": 2})
	w.act(rollout.Promote) // of this wave, whatever gates say
	w.reaches(2, rollout.Running, "held by gate errors: it is 0.7, and at most 0.5 passes (wave 2 of 2)")
	w.wantGiven(map[string]int{"1.0.0": 18, "1.1.0": 2})
	w.stop()
	w.say("", false)
	w.start()
	w.reaches(2, rollout.Done, "")
	w.wantGiven(map[string]int{"1.1.0": 20})
	held := 0
	if err := w.db.QueryRow(t.Context(), `select count(*) from event_outbox where 'rollout_held' = any (kind)`).Scan(&held); err != nil || held != 3 {
		t.Errorf("%d events say that a gate holds it, %v; want one before it began, one in the middle, and one in the next wave", held, err)
	}
	w.set(file("1.2.0", all, gated("other")))
	w.eventually("the revision is refused", func() bool {
		list, err := w.rollouts.Latest(t.Context())
		return err == nil && len(list) == 1 && list[0].State == rollout.Refused && strings.Contains(list[0].Reason, `spec.strategy.gates[0]: source "other": there is none`)
	})
}

func (w *world) group(name string, sites ...string) {
	w.t.Helper()
	s, err := siteset.Parse(sites)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.groups[name] = s
	w.mu.Unlock()
}

// refused waits until the latest revision is refused for a reason.
func (w *world) refused(why string) {
	w.t.Helper()
	w.eventually("the revision is refused: "+why, func() bool {
		list, err := w.rollouts.Latest(w.t.Context())
		return err == nil && len(list) > 0 && list[0].State == rollout.Refused && strings.Contains(list[0].Reason, why)
	})
}

const canaryFirst = "    waves: [{group: canary, bake: 30m, approval: true}, {percent: 100}]\n"

// TestCanaryThatIsNobody has a first wave without sites: from the beginning, and because its site leaves before it has run the revision.
func TestCanaryThatIsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.group("canary", "plant-1")
	w.group("all", "site-*")
	w.set(file("1.0.0", "{groups: [all]}", ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", "{groups: [all]}", canaryFirst))
	w.refused(`spec.strategy.waves[0].group: none of the targets is in the group "canary"`)
	w.mu.Lock()
	w.outcome = func(id protocol.SiteID, v string) lifecycle.State {
		if v == "1.1.0" && id == "site-001" {
			return "" // it is silent
		}
		return lifecycle.Installed
	}
	w.mu.Unlock()
	w.group("canary", "site-001")
	w.reaches(2, rollout.Running, "1 site on the way")
	w.group("all", "site-000", "site-002", "site-003", "site-004", "site-005", "site-006", "site-007", "site-008", "site-009")
	w.reaches(2, rollout.Running, "wave 1 of 2 has no site that says how the revision works: promote to begin the next one")
	w.wantGiven(map[string]int{"1.0.0": 9, "1.1.0": 1})
	w.act(rollout.Promote)
	w.reaches(2, rollout.Done, "")
}

// TestRemovedAndPutBack removes the file of a rollout that is open, and puts it back: it begins anew.
func TestRemovedAndPutBack(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"the first revision": false, "a later one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 20)
			if before {
				w.set(file("1.0.0", all, ""))
				w.reaches(1, rollout.Done, "")
			}
			w.set(file("1.1.0", all, threeWaves))
			first := w.rolloutOf("promote").Revision
			w.commit(map[string]string{fleetfile.Path("meter"): ""})
			w.eventually("it is aborted", func() bool { return w.rollout().State == rollout.Aborted })
			w.set(file("1.1.0", all, threeWaves))
			w.reaches(first+1, rollout.Running, "promote")
			w.act(rollout.Promote)
			w.reaches(first+1, rollout.Running, "wave 2 of 3 works")
			w.act(rollout.Promote)
			w.reaches(first+1, rollout.Done, "")
			w.wantGiven(map[string]int{"1.1.0": 20})
		})
	}
}

// rolloutOf waits until the latest rollout runs, for a reason.
func (w *world) rolloutOf(reason string) (r rollout.Rollout) {
	w.t.Helper()
	w.eventually("a rollout waits: "+reason, func() bool {
		r = w.rollout()
		return r.State == rollout.Running && strings.Contains(r.Reason, reason)
	})
	return r
}

// TestConflictOfAnEarlierWave ends a conflict at a site whose wave is through.
func TestConflictOfAnEarlierWave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	w.group("canary", "site-001", "site-002")
	w.commit(map[string]string{"deployments/site-001/meter/deployment.yaml": strings.ReplaceAll(ownDeployment, "SITE", "site-001")})
	w.eventually("the site has its own", func() bool { return w.given()["1.9.0"] == 1 })
	w.set(file("1.0.0", all, "    waves: [{group: canary}, {percent: 60, approval: true}, {percent: 100}]\n"))
	w.reaches(1, rollout.Running, "wave 2 of 3 works: promote")
	w.commit(map[string]string{"deployments/site-001/meter/deployment.yaml": ""})
	w.eventually("its turn has come", func() bool { return w.given()["1.0.0"] == 4 })
	w.reaches(1, rollout.Running, "wave 2 of 3 works: promote")
	w.act(rollout.Promote)
	w.reaches(1, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 6})
}

// TestSitesThatComeMeanwhile has sites join while the latest revision is refused, and after an abort.
func TestSitesThatComeMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("9.9.9", all, ""))
	w.refused("no version 9.9.9")
	w.addSite(4)
	w.eventually("it is a site of the fleet", func() bool {
		list, err := w.rollouts.FleetSites(t.Context())
		return err == nil && len(list) == 5
	})
	w.set(file("1.0.0", all, ""))
	w.eventually("it has the revision that was put back", func() bool { return w.given()["1.0.0"] == 5 })
	w.set(file("1.1.0", all, threeWaves))
	w.rolloutOf("promote")
	w.act(rollout.Abort)
	w.addSite(5)
	w.eventually("the new site has the last complete revision, and runs it", func() bool {
		list, err := w.rollouts.Members(t.Context(), "meter")
		return err == nil && len(list) == 6 && list[5].State == rollout.SiteHealthy && w.given()["1.0.0"] == 5
	})
}

// TestActions has two people act on a rollout, and one while a later revision is refused.
func TestActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote")
	first := 0
	if _, err := w.rollouts.Act(t.Context(), "meter", rollout.Promote, rollout.Seen{Revision: 2, Wave: &first}, "anna"); err != nil {
		t.Fatal(err)
	}
	w.reaches(2, rollout.Running, "wave 2 of 3 works: promote")
	for _, seen := range []rollout.Seen{{Wave: &first}, {Revision: 1}} {
		if _, err := w.rollouts.Act(t.Context(), "meter", rollout.Promote, seen, "bert"); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), "look at it once more") {
			t.Errorf("%+v, which is over: %v", seen, err)
		}
	}
	w.set(file("9.9.9", all, ""))
	w.refused("no version 9.9.9")
	for range 2 {
		if r, err := w.rollouts.Act(t.Context(), "meter", rollout.Abort, rollout.Seen{}, "anna"); err != nil || r.Revision != 2 || r.State != rollout.Aborted || r.By != "anna" {
			t.Errorf("an abort: %+v, %v", r, err)
		}
	}
	w.wantGiven(map[string]int{"1.0.0": 16, "1.1.0": 4})
}

// TestClockThatWasAhead sets the clock of the database back a day after sites were admitted.
func TestClockThatWasAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, "    sitesPerMinute: 2\n"))
	w.eventually("two are admitted", func() bool { return w.given()["1.0.0"] == 2 })
	if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = admitted_at + interval '1 day' where admitted_at is not null`); err != nil {
		t.Fatal(err)
	}
	w.reaches(1, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 4})
}

// TestOneIDTwice copies a file without a new id.
func TestOneIDTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.commit(map[string]string{fleetfile.Path("other"): strings.ReplaceAll(file("1.0.0", all, ""), "name: meter, id", "name: other, id")})
	w.eventually("the copy is refused", func() bool {
		r, err := w.rollouts.Rollout(t.Context(), "other")
		return err == nil && r.State == rollout.Refused && strings.Contains(r.Reason, "metadata.id: fleet deployment meter has this id")
	})
	w.wantGiven(map[string]int{"1.0.0": 3})
}

// TestGateOfEachWave has a gate that says yes of the first wave and no of the next, and one that is asked for ever, which holds its own rollout alone.
func TestGateOfEachWave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.mu.Lock()
	w.judge = func(about rollout.About) string {
		if about.Wave > 0 {
			return "not so many"
		}
		return ""
	}
	w.mu.Unlock()
	w.set(file("1.0.0", all, "    gates: [{name: tests, source: prom}]\n    waves: [{percent: 10}, {percent: 100}]\n"))
	w.reaches(1, rollout.Running, "held by gate tests: not so many (wave 2 of 2)")
	w.wantGiven(map[string]int{"1.0.0": 2})
	hang := make(chan struct{})
	defer close(hang)
	w.mu.Lock()
	w.judge = func(rollout.About) string { <-hang; return "" }
	w.mu.Unlock()
	other := strings.ReplaceAll(file("1.0.0", all, "    waves: [{percent: 10}, {percent: 100}]\n"), "name: meter, id: 6", "name: other, id: 7")
	w.commit(map[string]string{fleetfile.Path("other"): other})
	w.eventually("another rollout goes on meanwhile", func() bool {
		r, err := w.rollouts.Rollout(t.Context(), "other")
		return err == nil && r.State == rollout.Done
	})
	w.wantGiven(map[string]int{"1.0.0": 20})
	if r := w.rollout(); r.State != rollout.Running || !strings.Contains(r.Reason, "held by gate tests") {
		t.Errorf("the rollout with the gate: %s, %q", r.State, r.Reason)
	}
}

// TestRevisionThatTakesSitesAway has a revision with which sites go offline: it stops, and they are named. One that was offline before delays no other.
func TestRevisionThatTakesSitesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	w.outcome = func(id protocol.SiteID, v string) lifecycle.State {
		if v == "1.1.0" {
			return ""
		}
		return lifecycle.Installed
	}
	w.mu.Unlock()
	w.set(file("1.1.0", all, "    waves: [{percent: 10}, {percent: 100}]\n"))
	w.reaches(2, rollout.Running, "2 sites on the way")
	list, err := w.rollouts.Members(t.Context(), "meter")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Revision == 2 {
			w.online(m.Site, false)
		}
	}
	w.reaches(2, rollout.Running, "2 sites on the way") // it may be for a moment
	if _, err := w.db.Exec(t.Context(), `update sites set changed_at = changed_at - interval '11 minutes' where not online`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = admitted_at - interval '12 minutes' where revision = 2`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), `update rollouts set watched_since = watched_since - interval '12 minutes' where revision = 2`); err != nil {
		t.Fatal(err)
	}
	w.reaches(2, rollout.Paused, "2 sites failed, and 0 may")
	list, err = w.rollouts.Members(t.Context(), "meter")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Revision == 2 && (m.State != rollout.SiteFailed || !strings.Contains(m.Reason, ", after it was admitted")) {
			t.Errorf("site %s is %s: %q", m.Site, m.State, m.Reason)
		}
	}
	w.wantGiven(map[string]int{"1.0.0": 18, "1.1.0": 2})
}

// TestAcceptedThatIsTriedAgain accepts a failure: a further try that fails, too, is the same failure.
func TestAcceptedThatIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	w.outcome = func(protocol.SiteID, string) lifecycle.State { return lifecycle.Failed }
	w.mu.Unlock()
	w.set(file("1.1.0", all, "    waves: [{percent: 10, approval: true}, {percent: 100}]\n"))
	w.reaches(2, rollout.Paused, "1 site failed")
	w.act(rollout.Resume)
	w.reaches(2, rollout.Running, "promote to begin")
	list, err := w.rollouts.Members(t.Context(), "meter")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Revision != 2 {
			continue
		}
		for _, state := range []lifecycle.State{lifecycle.Updating, lifecycle.Failed} {
			w.mu.Lock()
			s := w.sites[m.Site]
			w.status(t.Context(), m.Site, s, &protocol.SiteEntry{Deployment: "meter", Digest: s.digests["meter"]}, &protocol.DeploymentSpec{App: "meter", AppVersion: "1.1.0"}, state)
			w.mu.Unlock()
			if err := w.driver.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.reaches(2, rollout.Running, "promote to begin")
}

// TestRemovalWhileRefused has a site whose removal was asked for leave while the latest revision is refused.
func TestRemovalWhileRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("9.9.9", all, ""))
	w.refused("no version 9.9.9")
	w.eventually("it has left", func() bool {
		// A pass that had read the files before the request came refuses it: then it is asked for once more.
		if err := w.store.Request(t.Context(), fleet.Request{Site: "site-001", Kind: fleet.RequestSite}); err != nil {
			return false
		}
		list, err := w.rollouts.Members(t.Context(), "meter")
		return err == nil && len(list) >= 3 && !slices.ContainsFunc(list, func(m rollout.Member) bool { return m.Site == "site-001" && m.State != rollout.SiteLeft })
	})
}

// TestRevisionNumberThatMeansAnother has one replica know a revision of a number whose content is another one when the lease is its own once more.
func TestRevisionNumberThatMeansAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	// What another replica would do: the fleet deployment is removed, and made anew.
	raw, _, err := w.rollouts.Source(t.Context(), "meter", 1)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fleetfile.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	files.File, files.App = strings.ReplaceAll(files.File, "1.0.0", "1.1.0"), strings.ReplaceAll(files.App, "1.0.0", "1.1.0")
	source, err := files.Encode()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := fleetfile.Parse("meter", []byte(files.File))
	if err != nil {
		t.Fatal(err)
	}
	digests, err := files.Digests(parsed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), `update rollouts set digest = $1, asks = $4, source = $2, commit = $3, app_version = '1.1.0' where fleet = 'meter'`, digests.Content, source, commitName(2), digests.Asks); err != nil {
		t.Fatal(err)
	}
	w.commit(map[string]string{fleetfile.Path("meter"): files.File})
	w.addSite(4) // sites and their revisions are read anew
	w.eventually("all have what the record says", func() bool { return maps.Equal(w.given(), map[string]int{"1.1.0": 5}) })
}

// TestExceptionOfASiteThatMayCome has an exception that cannot be, of a site that is not there yet: it is refused before that comes.
func TestExceptionOfASiteThatMayCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.commit(map[string]string{fleetfile.ExceptionPath("meter", "site-009"): "apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: site-009}\nspec: {parameters: {port: 70000}}\n"})
	w.refused("site-009")
	w.wantGiven(map[string]int{"1.0.0": 3})
}

// TestWhatWasStoppedStaysSo changes a fleet deployment whose rollout a person has paused, or aborted.
func TestWhatWasStoppedStaysSo(t *testing.T) {
	t.Parallel()
	for _, action := range []rollout.Action{rollout.Pause, rollout.Abort} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 20)
			w.set(file("1.0.0", all, ""))
			w.reaches(1, rollout.Done, "")
			w.set(file("1.1.0", all, threeWaves))
			w.reaches(2, rollout.Running, "promote")
			w.act(action)
			w.set(file("1.1.0", all, ""))
			if action == rollout.Abort {
				w.reaches(3, rollout.Paused, "resume to")
			}
			if err := w.driver.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wantGiven(map[string]int{"1.0.0": 19, "1.1.0": 1})
			w.set(file("1.2.0", all, ""))
			if action == rollout.Pause { // no person has resumed it
				w.reaches(3, rollout.Paused, "paused by a person, before this revision")
				w.act(rollout.Resume)
			}
			w.eventually("another version spreads", func() bool { return w.given()["1.2.0"] == 20 })
		})
	}
}

// TestAStrategyIsNoRevision changes how a revision spreads, and how its file is written, while it spreads: it goes on where it was, by the new strategy.
func TestAStrategyIsNoRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, threeWaves))
	w.reaches(1, rollout.Running, "wave 1 of 3 works: promote")
	w.set("# a remark\n" + file("1.0.0", `{"sites": ["*"]}`, "    waves:\n      - {percent: 5}\n      - {percent: 50, approval: true}\n      - {percent: 100}\n"))
	w.reaches(1, rollout.Running, "wave 2 of 3 works: promote")
	w.wantGiven(map[string]int{"1.0.0": 10})
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 20})
	w.set(file("1.0.0", all, threeWaves))
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "wave 1 of 3 works: promote")
	if n := len(w.events(fleet.RolloutStarted)); n != 2 {
		t.Errorf("%d rollouts have begun, want 2", n)
	}
}

// TestWiderTargets has sites come by another target: those that run the revision are not tried anew, and the others get it in waves.
func TestWiderTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", `{sites: [site-000, site-001]}`, ""))
	w.reaches(1, rollout.Done, "")
	w.wantGiven(map[string]int{"1.0.0": 2})
	w.set(file("1.0.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote")
	if n := w.given()["1.0.0"]; n < 2 || n > 4 {
		t.Errorf("%d sites have it after the first wave, want the two that had it, and at most two more", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range []protocol.SiteID{"site-000", "site-001"} {
		if got := w.sites[id].versions; len(got) != 1 {
			t.Errorf("%s was given %v", id, got)
		}
	}
}

// events returns the messages of the events of a kind.
func (w *world) events(kind string) (list []string) {
	w.t.Helper()
	w.eventually("events are there", func() bool {
		found, err := w.store.Events(w.t.Context(), fleet.EventFilter{Newest: true, Kinds: []string{kind}})
		if err != nil {
			w.t.Fatal(err)
		}
		list = nil
		for i := range found {
			list = append(list, found[i].Message)
		}
		return len(list) > 0
	})
	return list
}

// TestAGroupThatLosesASiteForAMoment takes the canary out of its group, and puts it back: it has the revision that it ran.
func TestAGroupThatLosesASiteForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	group := func(sites ...string) {
		set, err := siteset.Parse(sites)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.groups["canary"] = set
		w.mu.Unlock()
	}
	group("site-004", "site-005")
	targets := `{sites: [site-000, site-001], groups: [canary]}`
	w.set(file("1.0.0", targets, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", targets, "    waves: [{group: canary, approval: true}, {percent: 100}]\n"))
	w.reaches(2, rollout.Running, "promote")
	w.wantGiven(map[string]int{"1.0.0": 2, "1.1.0": 2})
	group("site-005")
	w.eventually("it has left", func() bool {
		list, err := w.rollouts.Members(t.Context(), "meter")
		return err == nil && slices.ContainsFunc(list, func(m rollout.Member) bool { return m.Site == "site-004" && m.State == rollout.SiteLeft })
	})
	group("site-004", "site-005")
	w.eventually("it is healthy", func() bool {
		list, err := w.rollouts.Members(t.Context(), "meter")
		return err == nil && slices.ContainsFunc(list, func(m rollout.Member) bool {
			return m.Site == "site-004" && m.State == rollout.SiteHealthy && m.Revision == 2
		})
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.sites["site-004"].versions; slices.Contains(got[1:], "1.0.0") {
		t.Errorf("it was sent back: %v", got)
	}
}

// TestASiteThatSaysNothing is online, and never reports the revision: after the deadline of the strategy it has failed.
func TestASiteThatSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.outcome = func(id protocol.SiteID, version string) lifecycle.State {
		if id == "site-001" && version == "1.1.0" {
			return ""
		}
		return lifecycle.Installed
	}
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, "    deadline: 1s\n"))
	w.reaches(2, rollout.Paused, "1 site failed")
	list, _, err := w.rollouts.Sites(t.Context(), "meter", rollout.SiteFailed, fleet.Page{})
	if err != nil || len(list) != 1 || list[0].Site != "site-001" || !strings.Contains(list[0].Reason, "not running the revision 1s after it could") {
		t.Errorf("failed are %+v, %v", list, err)
	}
	w.act(rollout.Resume)
	w.reaches(2, rollout.Done, "1 site failed")
	w.mu.Lock() // it has taken its time
	s := w.sites["site-001"]
	e := protocol.SiteEntry{Deployment: "meter", Digest: s.digests["meter"]}
	w.status(t.Context(), "site-001", s, &e, &protocol.DeploymentSpec{App: "meter", AppVersion: "1.1.0"}, lifecycle.Installed)
	w.mu.Unlock()
	w.eventually("it is healthy after all", func() bool { return rollout.Total(w.rollout().Waves).Healthy == 3 })
}

// TestAFailureWhileItIsPaused comes after a person has paused the rollout: to resume it does not accept what the person has not seen.
func TestAFailureWhileItIsPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, "    waves: [{percent: 20, bake: 1h}, {percent: 100}]\n"))
	w.reaches(2, rollout.Running, "watched")
	w.act(rollout.Pause)
	w.mu.Lock()
	var failed protocol.SiteID
	for id, s := range w.sites {
		if s.versions[len(s.versions)-1] == "1.1.0" {
			failed = id
			e := protocol.SiteEntry{Deployment: "meter", Digest: s.digests["meter"]}
			w.status(t.Context(), id, s, &e, &protocol.DeploymentSpec{App: "meter", AppVersion: "1.1.0"}, lifecycle.Failed)
			break
		}
	}
	w.mu.Unlock()
	w.eventually("it failed", func() bool { return rollout.Total(w.rollout().Waves).Failed == 1 })
	w.act(rollout.Resume)
	r := w.reaches(2, rollout.Paused, "1 site failed, and 0 may")
	if total := rollout.Total(r.Waves); total.Accepted != 0 {
		t.Errorf("%s failed, and is accepted: %+v", failed, total)
	}
}

// TestAnOwnDeploymentThatComesLater is committed by hand where the fleet deployment runs: it is reported, and what runs stays until one of both
// is removed.
func TestAnOwnDeploymentThatComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	const path = "deployments/site-001/meter/deployment.yaml"
	w.commit(map[string]string{path: strings.ReplaceAll(ownDeployment, "SITE", "site-001")})
	if got := w.events(fleet.RolloutConflict); len(got) != 1 || !strings.Contains(got[0], "site-001 (what runs there is that of the fleet deployment)") {
		t.Errorf("events %q", got)
	}
	w.set(file("1.1.0", all, ""))
	w.reaches(2, rollout.Done, "1 site with a deployment of their own")
	w.wantGiven(map[string]int{"1.0.0": 1, "1.1.0": 2})
	w.commit(map[string]string{path: ""})
	w.wantGiven(map[string]int{"1.1.0": 3})
	// Where the site is excepted, its own deployment takes over.
	w.commit(map[string]string{path: strings.ReplaceAll(ownDeployment, "SITE", "site-001")})
	w.eventually("it is a conflict", func() bool { return rollout.Total(w.rollout().Waves).Conflict == 1 })
	w.set(file("1.1.0", `{sites: ["*"], except: [site-001]}`, ""))
	w.wantGiven(map[string]int{"1.9.0": 1, "1.1.0": 2})
}

// TestAGroupThatIsNotThere is deleted while a fleet deployment names it: no site leaves, and the rollout says what is
// wrong.
func TestAGroupThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	set, err := siteset.Parse([]string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.groups["north"] = set
	w.mu.Unlock()
	w.set(file("1.0.0", `{groups: [north]}`, ""))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	delete(w.groups, "north")
	w.mu.Unlock()
	w.eventually("it says so", func() bool { return strings.Contains(w.rollout().Problem, `no group of sites "north"`) })
	if got := w.events(fleet.RolloutRefused); len(got) != 1 || !strings.Contains(got[0], "cannot be found anew") {
		t.Errorf("events %q", got)
	}
	w.wantGiven(map[string]int{"1.0.0": 3})
	w.mu.Lock()
	w.groups["north"] = set
	w.mu.Unlock()
	w.eventually("all is well", func() bool { return w.rollout().Problem == "" })
}

// TestASiteThatComesAtTheEnd joins between the decision that a rollout is done and its record: it is admitted before that.
func TestASiteThatComesAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.set(file("1.0.0", all, "    waves: [{percent: 50, approval: true}, {percent: 100}]\n"))
	r := w.reaches(1, rollout.Running, "promote")
	w.stop()
	if _, err := w.rollouts.Join(t.Context(), "meter", rolloutdb.Join{Sites: []rollout.Placed{{Site: "site-000"}, {Site: "site-001"}, {Site: "site-002"}, {Site: "site-009"}}, Open: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.rollouts.Advance(t.Context(), &r, rollout.Decision{State: rollout.Done, Wave: 1, Reason: "all waves are through"}); err != nil {
		t.Fatal(err)
	}
	if now := w.rollout(); now.State != rollout.Running {
		t.Errorf("it is %s, and a site waits", now.State)
	}
}

// TestARefusedRevisionThatIsAccepted has another commit than what ran before: sites get it, and are not taken for ones that have it.
func TestARefusedRevisionThatIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.group("canary", "site-003")
	w.set(file("1.1.0", all, "    waves: [{group: canary}, {percent: 100}]\n"))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	delete(w.groups, "canary")
	w.mu.Unlock()
	exceptions := map[string]string{}
	for i := range 4 {
		exceptions[fleetfile.ExceptionPath("meter", siteName(i))] = fmt.Sprintf("apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: %s}\nspec: {parameters: {port: 99}}\n", siteName(i))
	}
	w.commit(exceptions)
	w.reaches(2, rollout.Refused, "")
	w.group("canary", "site-003")
	w.reaches(2, rollout.Done, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.sites {
		if !strings.Contains(s.values, "99") {
			t.Errorf("site %s has %s after all waves are through", id, s.values)
		}
	}
}

// TestAnAbortedVersionStaysSo until a person resumes it, also after more commits; what ran everywhere before is no such version.
func TestAnAbortedVersionStaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, threeWaves))
	w.reaches(2, rollout.Running, "promote")
	w.act(rollout.Abort)
	w.set(file("1.1.0", `{sites: ["*", nobody]}`, ""))
	w.reaches(3, rollout.Paused, "resume to")
	w.set(file("1.1.0", `{sites: ["*", nobody-else]}`, ""))
	w.reaches(4, rollout.Paused, "resume to")
	w.set(file("1.0.0", all, ""))
	w.reaches(5, rollout.Done, "")
	w.set(file("1.1.0", all, ""))
	w.reaches(6, rollout.Paused, "resume to")
	w.act(rollout.Resume)
	w.reaches(6, rollout.Done, "")
	w.set(file("1.1.0", `{sites: ["*", nobody]}`, ""))
	w.reaches(7, rollout.Done, "")
}

// TestSitesThatAreAwayWhenItStops have what they had before when they are back, until the rollout goes on.
func TestSitesThatAreAwayWhenItStops(t *testing.T) {
	t.Parallel()
	for _, action := range []rollout.Action{rollout.Pause, rollout.Abort} {
		w := newWorld(t, 4)
		w.set(file("1.0.0", all, ""))
		w.reaches(1, rollout.Done, "")
		w.mu.Lock()
		w.outcome = func(id protocol.SiteID, _ string) lifecycle.State {
			if id != siteName(3) {
				return "" // nothing reaches it
			}
			return lifecycle.Installed
		}
		w.mu.Unlock()
		for i := range 3 {
			w.online(siteName(i), false)
		}
		w.set(file("1.1.0", all, "    waves: [{percent: 100, bake: 1h}]\n"))
		w.reaches(2, rollout.Running, "watched until")
		w.eventually("three are away", func() bool { return rollout.Total(w.rollout().Waves).Away == 3 })
		w.act(action)
		w.eventually("they wait", func() bool { return rollout.Total(w.rollout().Waves).Waiting == 3 })
		list, err := w.rollouts.Members(t.Context(), "meter")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if want := map[bool]int64{true: 2, false: 1}[m.Site == siteName(3)]; m.Revision != want {
				t.Errorf("%s: site %s may have revision %d (%s), want %d", action, m.Site, m.Revision, m.Reason, want)
			}
		}
		w.mu.Lock()
		w.outcome = func(protocol.SiteID, string) lifecycle.State { return lifecycle.Installed }
		w.mu.Unlock()
		for i := range 3 {
			w.online(siteName(i), true)
		}
		if action == rollout.Pause {
			w.act(rollout.Resume)
			w.eventually("all have it", func() bool { return rollout.Total(w.rollout().Waves).Healthy == 4 })
		}
	}
}

// TestACOThatWasAway counts neither the time of a wave nor that of a site while it does not watch.
func TestACOThatWasAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, "    waves: [{percent: 10, bake: 1h}, {percent: 100}]\n"))
	w.reaches(2, rollout.Running, "watched until")
	ago := func() {
		w.stop()
		if _, err := w.db.Exec(t.Context(), `update rollouts set settled_at = settled_at - interval '2 hours', observed_at = now() - interval '2 hours', watched_since = watched_since - interval '3 hours'`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = admitted_at - interval '2 hours', changed_at = changed_at - interval '2 hours'`); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.eventually("somebody watches", func() bool {
			var watched bool
			err := w.db.QueryRow(t.Context(), `select watched_since > now() - interval '1 hour' from rollouts where revision = (select max(revision) from rollouts)`).Scan(&watched)
			return err == nil && watched
		})
		for range 3 {
			if err := w.driver.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ago()
	w.reaches(2, rollout.Running, "watched until")
	w.mu.Lock()
	w.outcome = func(protocol.SiteID, string) lifecycle.State { return "" }
	w.mu.Unlock()
	w.set(file("1.2.0", all, "    waves: [{percent: 10}, {percent: 100}]\n"))
	w.reaches(3, rollout.Running, "on the way")
	ago()
	w.reaches(3, rollout.Running, "on the way")
	// It has had its time, in which it was offline for a moment.
	id := protocol.SiteID("")
	list, err := w.rollouts.Members(t.Context(), "meter")
	for _, m := range list {
		if m.State == rollout.SiteMoving {
			id = m.Site
		}
	}
	if err != nil || id == "" {
		t.Fatalf("no site is on the way: %+v, %v", list, err)
	}
	if _, err := w.db.Exec(t.Context(), `update rollouts set watched_since = watched_since - interval '3 hours'`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = now() - interval '59 minutes 58 seconds', changed_at = now() - interval '59 minutes 58 seconds' where site = $1`, id); err != nil {
		t.Fatal(err)
	}
	w.online(id, false)
	w.online(id, true)
	w.reaches(3, rollout.Paused, "1 site failed")
}
