// Package desired owns the desired states of the sites: it follows the deployments repo, compiles
// what changed, records it, and publishes what each site should run.
//
// It is level-triggered: each reconcile compares the whole repo with what is recorded, and applies
// the difference. A file that was compiled stays compiled, also over a restart: its images are
// pinned in the record, and nothing is resolved anew until the file changes. Removals that may be
// an accident are held until a person confirms them, as package proposal decides. A bad file leaves
// its deployment as it was, and affects no other one. The file of a site, with the rules of its
// machine data, is followed in the same way: a bad one keeps the last good rules.
package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// A Snapshot is the content of one commit of the deployments repo.
type Snapshot struct {
	// Commit is the head of the branch.
	Commit string
	// Files maps the path of each regular file to its content.
	Files map[string][]byte
	// Blobs maps each path of Files to the id of its content in git: equal content has an equal id.
	Blobs map[string]string
	// Commits maps each path of Files to the last commit that changed it.
	Commits map[string]string
	// Skipped maps the path of what is not in Files to the reason.
	Skipped map[string]string
	// Origins maps the path of each file that another one expands to, to that other one: also where it no longer does.
	Origins map[string]string
}

// A Store is the CO's record. Errors of kind Unavailable are tried again.
type Store interface {
	// Connected returns all sites, and for each whether its LO was online at least once.
	Connected(ctx context.Context) (map[protocol.SiteID]bool, error)
	// Recorded returns what SaveAll was given last for each of some sites, in their order: the
	// zero value, and a message of generation 0, for one that has none.
	Recorded(ctx context.Context, sites []protocol.SiteID) ([]fleet.SiteRecord, error)
	// SaveAll records the whole desired states of some sites, with an event for each
	// deployment that is new, changed or removed, or has a new Problem, and for the
	// rules of machine data in the same way. It returns the outcome for each, in their order.
	SaveAll(ctx context.Context, commit string, list []fleet.SiteWant) []fleet.SiteSaved
	// Notice records an event, unless one of its kind and message is recorded.
	Notice(ctx context.Context, e fleet.Event) error
	// SaveBodies makes each what its site finds under its digest.
	SaveBodies(ctx context.Context, list []fleet.SiteBody) error
}

// Options are what a Loop works with. The functions and the stores are needed, but
// for Lock, Resolve and Admit.
type Options struct {
	Store Store
	// Read returns the head of the deployments repo, as far as it is known.
	Read func(ctx context.Context) (Snapshot, error)
	// Watch calls changed each time that the head changes, until ctx ends.
	Watch func(ctx context.Context, interval time.Duration, changed func(commit string)) error
	Judgement
	Outcomes
	// Sign fills in the signatures of a message before it is published, outside of each
	// transaction; those of the site's last message are in earlier, and then those of this one. It is
	// called for several sites at once. Nil: nothing is signed.
	Sign func(m *protocol.SiteDesired, earlier *sign.Signatures) error
	// Positions is the record of what sites report to hold.
	Positions PositionStore
	// Proposals is the record of what is held.
	Proposals ProposalStore
	// Limits say how many removals of one commit are obeyed without being confirmed. The
	// zero value holds each that its commit does not confirm itself.
	Limits proposal.Limits
	// History is that of the deployments repo.
	History History
	// Nodes returns the nodes of a site and what runs on them.
	Nodes func(ctx context.Context, site protocol.SiteID) ([]placement.Node, error)
	// Lock waits until this is the only active Loop of the fleet. The context that it
	// returns ends when the lock is lost; release gives it back. Nil: there is no other.
	Lock func(ctx context.Context) (held context.Context, release func(), err error)

	// Audit is how often the whole record is read anew and compared with the repo and with the
	// holdings of the sites, so that manual changes in the record are corrected. Default 1 hour.
	Audit time.Duration
	// Interval is how often the remote is asked. 0 means the Watch's own.
	Interval time.Duration
	// MessageLimit is the size in bytes up to which the message to a site holds the whole
	// state; it arrives again with each connection. Above it the message
	// names the state by digest, and the site fetches what it does not hold. Default
	// 2 KiB.
	MessageLimit int
	// CompileTimeout bounds the compilation of one file. Default 2 minutes.
	CompileTimeout time.Duration
	// HoldFirst bounds how long the first message of a site waits for a registry that
	// is away. Default 5 minutes.
	HoldFirst time.Duration
	// Retry bounds the wait after a part was away: by default 1 s, 1 min.
	Retry  retry.Policy
	Logger *slog.Logger
}

// A Judgement says what becomes of a deployment.
type Judgement struct {
	// Resolve says what is wrong with the values of a deployment, whose file is at path as
	// commit has it, and fills in those that it leaves out. Nil: each is compiled as it is.
	Resolve func(ctx context.Context, path, commit string, d *v1rc3.Deployment) (*v1rc3.Deployment, error)
	// Compile turns a deployment, whose file is at path as commit has it, into its entry in the
	// desired state of the site.
	Compile func(ctx context.Context, path, commit string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error)
	// Admit says why the version of a deployment may not be deployed at a site. It is not asked about the version that is recorded
	// there. Nil: each may be.
	Admit func(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, d *v1rc3.Deployment) error
}

// Outcomes are called by a Loop about a site, for several sites at once. Those but Publish may be
// nil, and must not wait.
type Outcomes struct {
	// Publish replaces the retained message of a site; payload nil: there is none any more.
	Publish func(ctx context.Context, site protocol.SiteID, payload []byte) error
	// RulesChanged is called before each Publish: the data rules may be other ones.
	RulesChanged func(site protocol.SiteID)
	// Removed is called once the record has forgotten a site.
	Removed func(site protocol.SiteID)
}

// publish replaces the retained message of a site.
func (o Outcomes) publish(ctx context.Context, site protocol.SiteID, payload []byte) error {
	if o.RulesChanged != nil {
		o.RulesChanged(site)
	}
	return o.Publish(ctx, site, payload)
}

// A Loop is the one owner of the desired states. Create it with New, then call Run.
type Loop struct {
	opts  Options
	log   *slog.Logger
	due   notify.Signal // a reconcile
	asked notify.Signal // by Reported

	// mu guards republish, reread and reported.
	mu        sync.Mutex
	republish bool
	reread    bool
	reported  map[protocol.SiteID]bool // since they were compared last

	awaits atomic.Bool // some site is awaited, or was

	// What follows belongs to the goroutine of Run.

	// sites is what is recorded of each site, as far as it was looked at.
	sites map[protocol.SiteID]*siteState
	// former has what was known of sites before the record is read anew.
	former map[protocol.SiteID]*siteState
	// parsed holds the files of the last reconcile by path, and parsedSites those of the
	// sites.
	parsed      map[string]file
	parsedSites map[string]siteFile
	// head is the commit of the last reconcile that was complete.
	head string
	// noticed has the kinds and messages of Notice that are recorded.
	noticed map[string]bool
}

// A siteState is what this process knows of a site.
type siteState struct {
	desired   []fleet.Desired // as recorded, sorted by name
	data      fleet.SiteData  // as recorded
	message   protocol.SiteDesired
	connected bool                   // its LO was online at least once
	digest    protocol.Digest        // the ContentDigest of message; empty: not computed yet
	running   []protocol.NodeRunning // what the next message says of a site that lost what it held; nil: nothing
	published bool                   // in this session
	signed    sign.Signatures        // those of the last message
	followed  string                 // the commit with which the record was compared in this session; empty: with none
	overdue   bool                   // it is to be recorded also where nothing changed
	// awaited: the record was restored from a backup and the site has not reported since. A state sent before that report could be older
	// than the site's and still count as later.
	awaited bool
	// unknown is what its LO holds, or has lost, and the record does not know, until the site was followed.
	unknown   *protocol.Held
	heldSince time.Time // when its first message began to wait; zero: it does not
}

// New returns a Loop.
func New(o Options) (*Loop, error) {
	if o.Store == nil || o.Read == nil || o.Watch == nil || o.Compile == nil || o.Publish == nil {
		return nil, errors.New("desired: Store, Read, Watch, Compile and Publish must be given")
	}
	if o.Positions == nil || o.Proposals == nil || o.History == nil || o.Nodes == nil {
		return nil, errors.New("desired: Positions, Proposals, History and Nodes must be given")
	}
	if o.MessageLimit <= 0 {
		o.MessageLimit = 2 << 10
	}
	if o.CompileTimeout <= 0 {
		o.CompileTimeout = 2 * time.Minute
	}
	if o.HoldFirst <= 0 {
		o.HoldFirst = 5 * time.Minute
	}
	if o.Audit <= 0 {
		o.Audit = time.Hour
	}
	if o.Retry.Min <= 0 {
		o.Retry.Min = time.Second
	}
	if o.Retry.Max <= 0 {
		o.Retry.Max = time.Minute
	}
	o.Retry.Jitter = 0.5
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Lock == nil {
		o.Lock = func(ctx context.Context) (context.Context, func(), error) { return ctx, func() {}, nil }
	}
	return &Loop{opts: o, log: o.Logger, due: notify.New(), asked: notify.New(), reported: map[protocol.SiteID]bool{}}, nil
}

// Notify asks for a reconcile now. It never blocks.
func (l *Loop) Notify() {
	l.due.Notify()
}

// Reread asks for the record to be read anew and compared with the repo. It never blocks.
func (l *Loop) Reread() {
	l.mu.Lock()
	l.reread = true
	l.mu.Unlock()
	l.Notify()
}

// Republish asks for all sites to be published again, as after the loss of a broker's
// retained messages. It never blocks.
func (l *Loop) Republish() {
	l.mu.Lock()
	l.republish = true
	l.mu.Unlock()
	l.Notify()
}

// Run works until ctx ends, and then returns nil. It waits for the lock, publishes
// what is recorded, also while git is away, and follows the repo; whenever the lock
// is lost it begins again.
func (l *Loop) Run(ctx context.Context) error {
	tries := l.tries()
	for ctx.Err() == nil {
		held, release, err := l.opts.Lock(ctx)
		if err != nil {
			if ctx.Err() == nil {
				l.log.WarnContext(ctx, "desired state waits for its lock", "err", err)
				_ = tries.Wait(ctx) // its end ends the loop, too
			}
			continue
		}
		tries.Reset()
		l.session(held)
		release()
	}
	return nil
}

// session works while ctx lasts, from a state of its own: another instance may have
// written since the last one.
func (l *Loop) session(ctx context.Context) {
	l.former = nil
	l.sites, l.parsed, l.parsedSites = map[protocol.SiteID]*siteState{}, map[string]file{}, map[string]siteFile{}
	l.noticed, l.head = map[string]bool{}, ""
	l.Republish()
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.opts.Watch(watching, l.opts.Interval, func(string) { l.Notify() }); err != nil {
			l.log.ErrorContext(ctx, "watching the deployments repo ended", "err", err)
		}
	})
	defer wg.Wait()
	defer stop()
	tries := l.tries()
	var retry <-chan time.Time
	audit := time.NewTicker(l.opts.Audit)
	defer audit.Stop()
	for {
		run := l.reconcile
		select {
		case <-ctx.Done():
			return
		case <-l.due.C():
		case <-retry:
		case <-audit.C:
			l.Reread()
			continue
		case <-l.asked.C():
			if retry == nil { // else the whole is tried soon
				run = l.compareReported
			}
		}
		retry = nil
		switch outcome := run(ctx); {
		case ctx.Err() != nil:
			return
		case outcome.away != nil:
			l.log.WarnContext(ctx, "desired state is not complete, trying again", "err", outcome.away)
			retry = time.After(tries.Next())
		case outcome.missing:
			tries.Reset()
			retry = time.After(l.opts.Retry.Max)
		default:
			tries.Reset()
		}
	}
}

// An outcome says when the next reconcile is due.
type outcome struct {
	away    error // a part was away: try again soon
	missing bool  // something that a file names is not there, and may come
	repeat  bool  // the same commit is to be compared once more
}

func (o *outcome) add(err error) {
	if err != nil && o.away == nil {
		o.away = err
	}
}

// reconcile brings the record and the sites up to the repo.
func (l *Loop) reconcile(ctx context.Context) outcome {
	var out outcome
	// First what is recorded: a site that just connected does not wait for git, nor
	// for another site's registry.
	known, err := l.load(ctx, &out)
	if err != nil {
		out.add(err)
		return out
	}
	// Before the repo is read: what is asked for after a commit must not be compared with the files of before it.
	requested, err := l.opts.Positions.Requested(ctx)
	if err != nil {
		out.add(fmt.Errorf("read what was asked for by name: %w", err))
		return out
	}
	snapshot, err := l.opts.Read(ctx)
	if err != nil {
		out.add(err)
		return out
	}
	if err := l.compareFresh(ctx, known); err != nil {
		out.add(err)
		return out
	}
	l.follow(ctx, comparison{snapshot: snapshot, requested: requested, out: &out}, known)
	if out.away == nil && !out.repeat && ctx.Err() == nil {
		l.head = snapshot.Commit
	}
	return out
}
