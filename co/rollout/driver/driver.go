// Package driver spreads fleet deployments: it adds to what the deployments repo says of each site what fleet deployments
// expand to there, as far as the site is admitted, and it admits sites as package rollout decides. It works where the loop of
// the desired states does: Read and Watch are that loop's, so that one replica of the CO drives at a time.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	rolloutdb "github.com/colonyfleet/colony/co/db/fleet/rollouts"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/preview"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Store is the record of rollouts.
type Store interface {
	// Latest returns the latest rollout of each fleet deployment.
	Latest(ctx context.Context) ([]rollout.Rollout, error)
	// Source returns the files of a revision, and its commit.
	Source(ctx context.Context, name protocol.DeploymentName, revision int64) (source []byte, commit string, err error)
	// Members returns the sites of a fleet deployment.
	Members(ctx context.Context, name protocol.DeploymentName) ([]rollout.Member, error)
	Recorder
	Progress
}

// A Recorder records which revisions there are, and for which sites.
type Recorder interface {
	Members
	// Begin records a revision, which replaces an open rollout, and returns its number.
	Begin(ctx context.Context, v rolloutdb.Revision) (revision int64, err error)
	// Accept ends a refusal: the revision spreads.
	Accept(ctx context.Context, v rolloutdb.Revision, revision int64) error
	// Refuse renews the reason of a refused revision.
	Refuse(ctx context.Context, name protocol.DeploymentName, revision int64, reason string) error
	// Restate records that a revision spreads in another way, and reports whether anything changed.
	Restate(ctx context.Context, v rolloutdb.Revision, revision int64) (changed bool, err error)
	// SetProblem records why the sites of a fleet deployment cannot be found anew; "": they can.
	SetProblem(ctx context.Context, name protocol.DeploymentName, revision int64, problem string) error
	// Removed forgets a fleet deployment whose files were removed, once nothing of it runs.
	Removed(ctx context.Context, name protocol.DeploymentName) error
}

// Members records which sites a fleet deployment has.
type Members interface {
	// Join records the sites that are targets now, and reports whether any changed.
	Join(ctx context.Context, name protocol.DeploymentName, j rolloutdb.Join) (changed bool, err error)
	// Conflicts records the sites that have a deployment of their own under the name.
	Conflicts(ctx context.Context, name protocol.DeploymentName, sites []protocol.SiteID) error
	// Completed returns the last revision whose rollout is done; 0: there is none.
	Completed(ctx context.Context, name protocol.DeploymentName) (revision int64, err error)
}

// A Progress records how far rollouts have come.
type Progress interface {
	// Open returns the rollouts that are running or paused.
	Open(ctx context.Context) ([]rollout.Rollout, error)
	// Unfinished returns the rollouts that admit no sites any more, and have admitted some whose outcome is not known, or that failed.
	Unfinished(ctx context.Context) ([]rollout.Rollout, error)
	// Observe updates the sites of a rollout; it returns the counts of the waves of plan, how many sites were admitted in the last minute, and the time of the database.
	Observe(ctx context.Context, r *rollout.Rollout, plan *rollout.Plan, gap time.Duration) (counts []rollout.Counts, recent int, now time.Time, err error)
	// Advance carries out a decision, unless the rollout changed since r was read; it returns how many sites were admitted.
	Advance(ctx context.Context, r *rollout.Rollout, d rollout.Decision) (admitted int, err error)
	// EndSetBack ends what sites keep since the record was restored, where they have no reason to any more, and returns how many they are.
	EndSetBack(ctx context.Context) (sites int, err error)
	// TakeBack gives admitted sites that are offline back what they had before, and returns how many they are.
	TakeBack(ctx context.Context, r *rollout.Rollout) (sites int, err error)
}

// Gates ask the sources of gates, see package gates.
type Gates interface {
	// Check returns what is wrong with a gate, such as an unknown source.
	Check(g *rollout.Gate) error
	// Ask asks the source of a gate; the error of a source is in the answer.
	Ask(ctx context.Context, g *rollout.Gate, about rollout.About) rollout.Answer
}

// Options are what a Driver works with. All are needed but for Gates, AskEvery, Every and Logger.
type Options struct {
	// Read and Watch are those of the deployments repo.
	Read  func(ctx context.Context) (desired.Snapshot, error)
	Watch func(ctx context.Context, interval time.Duration, changed func(commit string)) error
	Store Store
	// Sites are all of the fleet, and Groups their groups by name.
	Sites  func(ctx context.Context) ([]protocol.SiteID, error)
	Groups func(ctx context.Context) (map[string]siteset.Set, error)
	// App returns the document of a version of an application; the error is of kind NotFound where the catalog has none.
	App func(ctx context.Context, id, version string) ([]byte, error)
	// Changed is called where Read will say something else.
	Changed func()
	// Facts returns what is known of sites for a plan of a deployment, with their nodes where that is asked for.
	Facts func(ctx context.Context, name protocol.DeploymentName, sites []protocol.SiteID, nodes bool) (map[protocol.SiteID]preview.Facts, error)
	// Limits are those of removals that wait for a person.
	Limits proposal.Limits
	// Gates ask the sources of gates. Nil: no fleet deployment may have one.
	Gates Gates
	// AskEvery is how long the answer of a gate counts. Default 15 s.
	AskEvery time.Duration
	// Every is how often open rollouts are looked at. Default 2 s.
	Every  time.Duration
	Logger *slog.Logger
}

// A Driver spreads fleet deployments. Read, Watch and Expanded may be called concurrently.
type Driver struct {
	o   Options
	log *slog.Logger

	mu      sync.Mutex
	drafts  map[protocol.DeploymentName]*draft
	sources map[revisionKey]*source
	fleets  map[protocol.DeploymentName]*fleetState
	// expanded are the paths that the last Read added.
	expanded map[string]bool
	// joins says that a revision has begun since the world was read: sites may have come before.
	joins bool
	// world is what the sites and groups were that the last Read saw.
	world world

	// open are the rollouts that the last Tick found open, without digests.
	open map[revisionKey]bool

	asks  sync.WaitGroup
	slots chan struct{} // of the goroutines that ask

	asking  sync.Mutex // protects answers; taken before mu
	answers map[question]*answer
}

// A revisionKey names a revision and its content.
type revisionKey struct {
	fleet    protocol.DeploymentName
	revision int64
	digest   string
}

// A fleetState is what is known of the sites of a fleet deployment.
type fleetState struct {
	stale   bool // members were changed since they were read
	members []rollout.Member
	files   map[protocol.SiteID]expansion
}

// An expansion is the file of a site.
type expansion struct {
	of      revisionKey
	groups  string
	content []byte
	blob    string
	problem string // why there is none
}

// New returns a Driver.
func New(o Options) (*Driver, error) {
	if o.Read == nil || o.Watch == nil || o.Store == nil || o.Sites == nil || o.Groups == nil || o.App == nil || o.Changed == nil || o.Facts == nil {
		return nil, errors.New("driver: Read, Watch, Store, Sites, Groups, App, Changed and Facts must be given")
	}
	if o.Every <= 0 {
		o.Every = 2 * time.Second
	}
	if o.AskEvery <= 0 {
		o.AskEvery = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Driver{
		o: o, log: o.Logger, drafts: map[protocol.DeploymentName]*draft{}, sources: map[revisionKey]*source{},
		fleets: map[protocol.DeploymentName]*fleetState{}, expanded: map[string]bool{},
		slots: make(chan struct{}, askAtOnce),
	}, nil
}

// Read returns the head of the deployments repo, with what fleet deployments expand to. New revisions are recorded on the way.
func (d *Driver) Read(ctx context.Context) (desired.Snapshot, error) {
	s, err := d.o.Read(ctx)
	if err != nil {
		return s, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.follow(ctx, &s); err != nil {
		return s, err
	}
	return d.expand(ctx, s)
}

// Expanded reports whether a path is one that Read adds to what the deployments repo has.
func (d *Driver) Expanded(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expanded[path]
}

// Watch is that of the deployments repo. Until it ends, sites are admitted.
func (d *Driver) Watch(ctx context.Context, interval time.Duration, changed func(commit string)) error {
	d.forget()
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	wg.Go(func() { d.run(ctx) })
	defer d.asks.Wait()
	defer wg.Wait()
	defer stop()
	return d.o.Watch(ctx, interval, changed)
}

// forget forgets what another replica may have changed.
func (d *Driver) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drafts = map[protocol.DeploymentName]*draft{}
	for _, f := range d.fleets {
		f.stale = true
	}
}

// lookEvery is how often it is looked whether sites and groups are others, and what became of sites of rollouts that have
// ended, in ticks.
const lookEvery = 5

func (d *Driver) run(ctx context.Context) {
	tries := retry.Backoff{Policy: retry.Policy{Min: d.o.Every, Max: time.Minute, Jitter: 0.5}}
	for n := 0; ; n++ {
		before := d.opened()
		err := d.Tick(ctx)
		if err == nil && (n%lookEvery == 0 || !subset(before, d.opened())) { // what an abort takes back is not to wait
			err = d.look(ctx)
		}
		wait := d.o.Every
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.log.WarnContext(ctx, "rollouts wait", "err", err)
			wait = tries.Next()
		default:
			tries.Reset()
		}
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

func (d *Driver) opened() map[revisionKey]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

func (d *Driver) setOpen(list []rollout.Rollout) {
	open := make(map[revisionKey]bool, len(list))
	for i := range list {
		open[revisionKey{fleet: list[i].Fleet, revision: list[i].Revision}] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = open
}

// subset reports whether each rollout of a is in b.
func subset(a, b map[revisionKey]bool) bool {
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}

// Tick looks at the open rollouts once, and admits sites.
func (d *Driver) Tick(ctx context.Context) error {
	open, err := d.o.Store.Open(ctx)
	if err != nil {
		return err
	}
	d.setOpen(open)
	plans := make([]rollout.Plan, len(open))
	for i := range open {
		src, err := d.sourceOf(ctx, revisionKey{open[i].Fleet, open[i].Revision, open[i].Digest})
		if err != nil {
			return err
		}
		plans[i] = src.file.Plan()
	}
	answers := d.ask(ctx, open, plans)
	changed := false
	for i := range open {
		r, plan := &open[i], plans[i]
		counts, recent, now, err := d.o.Store.Observe(ctx, r, &plan, d.gap())
		if err != nil {
			return err
		}
		r.Waves = counts
		if r.State == rollout.Paused {
			back, err := d.takeBack(ctx, r)
			if err != nil {
				return err
			}
			changed = changed || back
		}
		next := rollout.Decide(plan, r.Progress(recent, answers[i]), now)
		if r.State != rollout.Running || unchanged(r, next) {
			continue
		}
		admitted, err := d.o.Store.Advance(ctx, r, next)
		if err != nil {
			return err
		}
		d.log.InfoContext(ctx, "rollout goes on", "fleet", r.Fleet, "revision", r.Revision, "state", next.State, "wave", next.Wave+1, "admitted", admitted, "reason", next.Reason)
		if admitted > 0 {
			d.markStale(r.Fleet)
			changed = true
		}
	}
	if changed {
		d.o.Changed()
	}
	return nil
}

// takeBack has sites that are admitted and have not begun have what they had before, of a rollout that does not go on. It reports whether there are some.
func (d *Driver) takeBack(ctx context.Context, r *rollout.Rollout) (bool, error) {
	sites, err := d.o.Store.TakeBack(ctx, r)
	if err != nil || sites == 0 {
		return false, err
	}
	d.log.InfoContext(ctx, "sites that have not begun have what they had before", "fleet", r.Fleet, "revision", r.Revision, "state", r.State, "sites", sites)
	d.markStale(r.Fleet)
	return true, nil
}

// gap is how long a rollout may go unobserved before its waits begin anew.
func (d *Driver) gap() time.Duration { return max(15*d.o.Every, 2*time.Second) }

func unchanged(r *rollout.Rollout, d rollout.Decision) bool {
	settled := time.Time{}
	if r.Settled != nil {
		settled = *r.Settled
	}
	return d.Admit == 0 && d.State == r.State && d.Wave == r.Wave && d.Reason == r.Reason && d.Settled.Equal(settled)
}

func (d *Driver) markStale(name protocol.DeploymentName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.fleets[name]; f != nil {
		f.stale = true
	}
}

// look notices sites and groups that are others than at the last Read, and takes over what became of sites that were away.
func (d *Driver) look(ctx context.Context) error {
	unfinished, err := d.o.Store.Unfinished(ctx)
	if err != nil {
		return err
	}
	for i := range unfinished {
		if _, _, _, err := d.o.Store.Observe(ctx, &unfinished[i], &rollout.Plan{}, d.gap()); err != nil {
			return err
		}
		if unfinished[i].State != rollout.Aborted {
			continue
		}
		back, err := d.takeBack(ctx, &unfinished[i])
		if err != nil {
			return err
		}
		if back {
			d.o.Changed()
		}
	}
	d.mu.Lock()
	any := len(d.fleets) > 0 // since the repo was read
	d.mu.Unlock()
	if !any {
		return nil
	}
	released, err := d.o.Store.EndSetBack(ctx)
	if err != nil {
		return err
	}
	if released > 0 {
		d.o.Changed()
	}
	now, err := d.readWorld(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	same := now.equal(d.world)
	d.mu.Unlock()
	if !same {
		d.o.Changed()
	}
	return nil
}
