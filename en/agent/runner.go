// Package agent does what package plan decides: one goroutine per
// deployment pulls, starts, probes and removes through the container engine, and
// an outbox carries the reports up. Each move is on disk before its side effect.
//
// Three contexts end work for three reasons: that of Stop ends the agent and
// leaves the containers running; that of one operation ends when a later desired
// state takes its place; that of a call bounds the call.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/agent/volumes"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Store keeps what must survive a crash. Its methods return when the content
// is durable.
type Store interface {
	// SaveRecord stores the record of a deployment.
	SaveRecord(r plan.Record) error
	// RemoveRecord removes the record of a deployment.
	RemoveRecord(name protocol.DeploymentName) error
	// SaveDesired stores the encoded NodeDesired that was adopted.
	SaveDesired(b []byte) error
	// SaveCounter stores the counter of reports.
	SaveCounter(n uint64) error
	// SaveVolumes stores which volumes are retained.
	SaveVolumes(v plan.Volumes) error
	// SaveTrust stores the floors and what else package trust must remember.
	SaveTrust(s trust.State) error
}

// A Host is what the agent needs of the engine's node.
type Host interface {
	// Vacant returns an error if a port that the deployment is to publish is in use.
	Vacant(ctx context.Context, d protocol.DeploymentName, ports []protocol.Port) error
	// Sweep removes what the engine holds of removed deployments, and images that are not in use.
	Sweep(ctx context.Context, o engine.SweepOptions) error
	volumes.Host
}

// An Uplink carries a report to the LO. Of a durable report it returns nil only
// once the LO has acknowledged it; another one may get lost.
type Uplink interface {
	// Report sends a report; durable waits for the acknowledgement.
	Report(ctx context.Context, m protocol.DeploymentStatus, durable bool) error
	// ReportAll carries everything that the node holds; nil: the LO has it.
	ReportAll(ctx context.Context, m protocol.NodeReport) error
}

// A Clock is what the node takes for the time of day.
type Clock struct {
	// Now may be wrong: reports are stamped with it. Nil: time.Now. Durations are measured by
	// package time.
	Now func() time.Time
	// Unsynced reports whether nothing keeps Now in step. Nil: it is in step.
	Unsynced func() bool
}

// Options configure a Runner. All fields without a default are required.
type Options struct {
	Node   protocol.NodeID
	Boot   string // the kernel's boot id
	Engine engine.Engine
	Host   Host
	Store  Store
	Uplink Uplink
	// Probe asks a container for its health. An error means that the question
	// could not be put, which says nothing about the container.
	Probe  func(ctx context.Context, t plan.Target) (ok bool, message string, err error)
	Logger *slog.Logger
	// Changed is called when Volumes or Unknown may have a new answer. It must not wait. Nil: it is
	// not called.
	Changed func()
	Clock

	// What the Store held.
	Agent   string
	Desired []byte // the encoded NodeDesired; nil: none
	Records []plan.Record
	Counter uint64 // of reports
	Volumes plan.Volumes
	// Check says what of a desired state is obeyed, with what the Store held.
	Check *trust.Checker
	// Incomplete says that some of what the Store had held is lost. Until a desired state
	// is adopted no image is removed then: it may be needed.
	Incomplete bool

	// VolumeRetention is how long a volume outlives its deployment, counted while the agent
	// runs. 0: for ever.
	VolumeRetention time.Duration

	Limits plan.Limits // zero: agent.DefaultLimits
	// EngineTimeout is how long an operation waits for an engine that is away
	// before it fails. Default 5 minutes.
	EngineTimeout time.Duration
}

// resync is how often the engine is asked without a reason.
const resync = 30 * time.Second

var (
	errSuperseded = errors.New("another desired state took the place of this one")
	errStopped    = errors.New("the agent stops")
)

// A Runner runs the deployments of one node. Its methods may be called concurrently.
type Runner struct {
	o   Options
	log *slog.Logger

	signals

	sweeping chan struct{} // holds a token while a sweep is under way
	wg       sync.WaitGroup
	ctx      context.Context // of the agent; set by Start, ends with Stop
	stop     context.CancelCauseFunc

	mu              sync.Mutex // protects what follows, and orders the writes to the store
	records         map[protocol.DeploymentName]plan.Record
	workers         map[protocol.DeploymentName]*worker
	progress, shown map[protocol.DeploymentName]protocol.DeploymentStatus // to be sent; the last that has containers
	seq             uint64                                                // of the last report
	reserved        uint64                                                // the highest seq that needs no new reservation on disk
	up              bool
	unknown         []protocol.DeploymentName // deployments with containers and without a record
	// incomplete is that of the Options, until a desired state is adopted.
	incomplete bool
	wholeState
	volumes *volumes.Keeper // of what outlived its deployment; it works under mu
	desiredState
}

// signals are what wakes the loops of a Runner.
type signals struct {
	newDesired notify.Signal // there is a new desired state
	look       notify.Signal // the engine may have changed unseen
	sweep      notify.Signal // there may be something unused
	outbox     notify.Signal // something to send, or the link is up
	linked     notify.Signal // the link came up or went down
	retain     notify.Signal // a deployment was removed, or a volume is to be
}

func newSignals() signals {
	return signals{
		newDesired: notify.New(), look: notify.New(), sweep: notify.New(), outbox: notify.New(), linked: notify.New(), retain: notify.New(),
	}
}

// New returns a runner that is not started.
func New(o Options) (*Runner, error) {
	if o.Limits == (plan.Limits{}) {
		o.Limits = plan.DefaultLimits()
	}
	if o.EngineTimeout <= 0 {
		o.EngineTimeout = 5 * time.Minute
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Unsynced == nil {
		o.Unsynced = func() bool { return false }
	}
	r := &Runner{
		o: o, log: o.Logger.With("component", "agent"),
		signals: newSignals(), incomplete: o.Incomplete,
		sweeping: make(chan struct{}, 1),
		records:  map[protocol.DeploymentName]plan.Record{}, workers: map[protocol.DeploymentName]*worker{},
		progress: map[protocol.DeploymentName]protocol.DeploymentStatus{}, shown: map[protocol.DeploymentName]protocol.DeploymentStatus{},
		seq: o.Counter, reserved: o.Counter, desiredState: desiredState{firstLook: firstLook{looked: make(chan struct{}), forgotten: map[protocol.DeploymentName]bool{}}},
	}
	r.volumes = volumes.New(volumes.Options{
		Lock: &r.mu, State: func() (*protocol.NodeDesired, []plan.Record) { return r.volumesDesired(), r.list() },
		Observed: o.Engine.List, Save: r.retrySave, Store: r.saveVolumes, Changed: o.Changed, Retain: r.retain,
		Host: o.Host, Followed: o.Check.FollowedOf, Retention: o.VolumeRetention, Now: o.Now, Unsynced: o.Unsynced,
		Logger: r.log, Stored: o.Volumes,
	})
	for _, rec := range o.Records {
		r.records[rec.Deployment] = rec
	}
	o.Check.Retain(o.Volumes.Retained)
	if o.Desired != nil {
		var d protocol.NodeDesired
		if err := protocol.Unmarshal(o.Desired, &d); err != nil {
			return nil, fmt.Errorf("read desired state from disk: %w", err)
		}
		r.desired, r.raw = &d, o.Desired
		o.Check.Settle(&d)
		v := r.judge(&d)
		o.Check.Adopt(v.State) // of what is on disk
		r.obey(context.Background(), v)
	}
	return r, nil
}

// saveVolumes stores which volumes are retained. The caller holds mu.
func (r *Runner) saveVolumes(v plan.Volumes) error {
	err := r.o.Store.SaveVolumes(v)
	if err == nil {
		r.o.Check.Retain(v.Retained)
	}
	return err
}

// Start takes up the work where it was left, with or without a link to the LO,
// and returns at once. ctx does not end it; Stop does.
func (r *Runner) Start(ctx context.Context) {
	r.ctx, r.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	r.mu.Lock()
	for _, rec := range r.list() {
		r.work(rec.Deployment)
	}
	r.mu.Unlock()
	r.sweep.Notify() // an earlier agent may have been killed before it did
	r.wg.Go(r.reconcileLoop)
	r.wg.Go(r.eventLoop)
	r.wg.Go(r.sweepLoop)
	r.wg.Go(r.outboxLoop)
	r.wg.Go(func() { r.volumes.Run(r.ctx) })
}

// Stop ends all work and waits for it. The containers go on.
func (r *Runner) Stop(ctx context.Context) error {
	if r.stop == nil {
		return nil
	}
	r.stop(errStopped)
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop agent: %w", ctx.Err())
	}
}

// Connected says whether reports can be sent.
func (r *Runner) Connected(up bool) {
	r.mu.Lock()
	r.up, r.wholeDue = up, up
	if up {
		r.showAgain()
	}
	r.mu.Unlock()
	r.linked.Notify()
	r.outbox.Notify()
}

// ReportAgain has everything that the node holds reported once more: the LO then publishes
// again what the node could not store, as its disk was full.
func (r *Runner) ReportAgain() {
	r.mu.Lock()
	r.wholeDue = r.wholeDue || r.up
	r.mu.Unlock()
	r.outbox.Notify()
}

// StatusDigest sums up the state of all deployments, for the heartbeat.
func (r *Runner) StatusDigest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return plan.StatusDigest(r.list())
}

// Records returns a copy of what the node knows of its deployments, sorted by name.
func (r *Runner) Records() []plan.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list()
}

func (r *Runner) list() []plan.Record {
	out := make([]plan.Record, 0, len(r.records))
	for _, name := range slices.Sorted(maps.Keys(r.records)) {
		out = append(out, r.records[name].Clone())
	}
	return out
}

// work returns the worker of a deployment, and starts it if there is none. The
// caller holds r.mu.
func (r *Runner) work(name protocol.DeploymentName) *worker {
	w := r.workers[name]
	if w == nil {
		w = &worker{r: r, name: name, log: r.log.With("deployment_id", name), notify: notify.New(), restarts: make(chan restartRequest)}
		r.workers[name] = w
		r.wg.Go(w.run)
	}
	return w
}

// reconcileLoop compares desired state, records and containers whenever one of
// them changed, and now and then without a reason.
func (r *Runner) reconcileLoop() {
	tick := time.NewTicker(resync)
	defer tick.Stop()
	r.reconcile(nil)
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.newDesired.C():
			r.reconcile(nil)
			continue
		case <-r.look.C():
		case <-tick.C:
		}
		r.notifyAll()
		observed, err := r.listed()
		if err != nil {
			r.log.DebugContext(r.ctx, "containers not listed", "err", err)
		} else if observed == nil {
			observed = []engine.Status{} // there are none
		}
		r.reconcile(observed)
	}
}

// Unknown returns the deployments of which there are containers and no record, sorted.
func (r *Runner) Unknown() []protocol.DeploymentName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.unknown)
}

// reconcile hands out what is due. With an engine that was not asked, or is away,
// observed is nil; what is desired is done all the same.
func (r *Runner) reconcile(observed []engine.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if observed != nil {
		r.lookedAt(observed)
	}
	for _, a := range plan.Plan(r.obeyed, r.list(), observed) {
		if a.Kind == plan.Sweep {
			r.sweep.Notify()
			continue
		}
		// The worker asks for its assignment itself: what it does may have gone on meanwhile.
		r.work(a.Record.Deployment).interrupt()
	}
}

// sweepLoop removes unused containers and images when there may be some.
func (r *Runner) sweepLoop() {
	wait := upTo(time.Minute)
	for r.sweep.Wait(r.ctx) == nil {
		if err := r.sweepRemoved(r.ctx, ""); err != nil && r.ctx.Err() == nil {
			r.log.WarnContext(r.ctx, "unused containers and images not removed, trying again", "err", err)
			_ = wait.Wait(r.ctx) // its end ends the loop, too
			r.sweep.Notify()
			continue
		}
		wait.Reset()
	}
}

// sweepRemoved removes what the engine still holds of the deployments that are DELETED and of the
// deployment deleting, and the images that are not needed any more.
func (r *Runner) sweepRemoved(ctx context.Context, deleting protocol.DeploymentName) error {
	select {
	case r.sweeping <- struct{}{}:
		defer func() { <-r.sweeping }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.mu.Lock()
	if r.desired == nil || !r.seen() {
		r.mu.Unlock()
		return nil // a node that never received what to run, or has not seen what runs, removes nothing
	}
	o := engine.SweepOptions{KeepAllImages: r.incomplete}
	for _, rec := range r.list() {
		if name := rec.Deployment; name == deleting || rec.State == lifecycle.Deleted {
			o.Removed = append(o.Removed, name)
		} else {
			o.KeepImages = append(o.KeepImages, rec.ImagesInUse()...)
		}
	}
	for _, a := range r.desired.Assignments {
		if r.records[a.Deployment].Deployment == "" && a.Deployment != deleting {
			o.KeepImages = append(o.KeepImages, plan.Images(a.Spec)...)
		}
	}
	r.mu.Unlock()
	return r.o.Host.Sweep(ctx, o)
}

// afterSweep waits for the end of a sweep that is under way: it may have begun
// before the caller's record was there, and would remove what the caller makes.
func (r *Runner) afterSweep(ctx context.Context) error {
	select {
	case r.sweeping <- struct{}{}:
		<-r.sweeping
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Runner) notifyAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.workers)) {
		r.workers[name].notify.Notify()
	}
}

// eventLoop wakes the worker whose container exited. After each new subscription
// all of them look, for what was missed.
func (r *Runner) eventLoop() {
	wait := upTo(5 * time.Second)
	for r.ctx.Err() == nil {
		began := time.Now()
		events, err := r.o.Engine.Events(r.ctx)
		if err != nil {
			if wait.Failures() == 0 && r.ctx.Err() == nil {
				r.log.WarnContext(r.ctx, "container engine not reachable, trying again", "err", err)
			}
			_ = wait.Wait(r.ctx) // its end ends the loop, too
			continue
		}
		r.look.Notify()
		for e := range events {
			r.mu.Lock()
			if w := r.workers[e.ID.Deployment]; w != nil {
				w.notify.Notify()
			}
			r.mu.Unlock()
		}
		if time.Since(began) > wait.Max {
			wait.Reset() // it was no engine that comes and goes
		}
		_ = wait.Wait(r.ctx)
	}
}

// upTo returns waits that double, from a second to longest.
func upTo(longest time.Duration) *retry.Backoff {
	return &retry.Backoff{Policy: retry.Policy{Min: time.Second, Max: longest}}
}
