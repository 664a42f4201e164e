package control

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/lo/control/view"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// retryDelay is the wait after something could not be written or published.
	retryDelay = time.Second
	// faultDelay is the wait after a decision could not be carried out. Nothing but a
	// change of the desired state is likely to help.
	faultDelay = time.Minute
	// maxRejected bounds the rejected nodes that one placement report names.
	maxRejected = 64
	// checkpointEvery is how many events the journal may be ahead of the checkpoint:
	// a start has to read so many.
	checkpointEvery = 16384
)

// A Publish publishes a message of QoS 1, retained, at the site's broker.
type Publish func(ctx context.Context, topic string, payload []byte) error

// A Loop decides for the whole site. It alone publishes NodeDesired. Its methods are
// for one goroutine at a time, but for End.
type Loop struct {
	site    *Site
	publish Publish

	// running is held while Run runs: what follows is its own then.
	running sync.Mutex
	state   nodes.Site
	// graceEnds is when nodes count as offline that have not come back since the
	// start; zero: that has been done.
	graceEnds time.Time

	// settles is when the LO no longer waits for the nodes that have not reported.
	settles time.Time
	// waits says that the LO waited for them in the last Reconcile.
	waits bool
	// fresh says that the LO may not know all nodes of the site.
	fresh bool
	// adopted is the position of the desired state that was looked at last in this run.
	adopted protocol.Position

	placement  placement.Placement           // nil: not decided in this run
	known      placement.Known               // when placement was decided
	expires    time.Duration                 // since the boot: when a restriction may be over
	leaving    []protocol.NodeID             // nodes that are drained, and that something leaves
	closed     string                        // why updates and removals wait; "": they do not
	opens      time.Time                     // when a window begins; zero: one has, or it is not known
	timeless   bool                          // they wait as no clock says what time it is
	ahead      ahead                         // the nodes that follow a later desired state
	unreported bool                          // the journal does not have the placement
	due        map[protocol.NodeID]time.Time // when to reconcile a node though nothing happens
	last       time.Time                     // of the last Reconcile, by the machine's clock
}

// NewLoop returns the Loop of a Site, of which there must be one.
func NewLoop(s *Site, publish Publish) *Loop {
	return &Loop{
		site: s, publish: publish, state: s.restored, graceEnds: s.began.Add(s.opts.PresenceGrace), due: map[protocol.NodeID]time.Time{},
		settles: s.began.Add(s.opts.PresenceGrace), fresh: s.fresh, adopted: s.restored.Adopted,
	}
}

// Run reconciles whenever something changed or is due, until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	l.running.Lock()
	defer l.running.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var at time.Time // what timer waits for
	for {
		late := false
		select {
		case <-ctx.Done():
			return
		case <-l.site.due.C():
		case <-timer.C:
			late = true
		}
		begun, now := time.Now(), l.site.opts.Now()
		if late && now.Before(at) {
			now = at // the wait is over, even if the clock stands still or was set back
		}
		next := l.Reconcile(ctx, now)
		l.site.metrics.ReconcileSeconds.Observe(time.Since(begun).Seconds())
		if !next.IsZero() {
			at = next
			timer.Reset(max(0, next.Sub(now)-time.Since(begun)))
		}
	}
}

// Reconcile decides once about everything that changed or is due at now, and returns
// when it is to be called again though nothing happens; zero: never.
func (l *Loop) Reconcile(ctx context.Context, now time.Time) (next time.Time) {
	l.rebase(now)
	next = l.expire(ctx, now)
	next = earliest(next, l.expireRestrictions(ctx, now))
	settles, err := l.reportNames(ctx, now)
	if err != nil {
		l.site.log.ErrorContext(ctx, "gateways of one name could not be reported", "err", err)
		settles = now.Add(retryDelay)
	}
	next = earliest(next, settles)
	desired, ok := l.site.opts.Desired.Current()
	if !ok {
		// Without a desired state nothing is decided: an empty NodeDesired would mean
		// that nothing shall run.
		l.tidy(ctx)
		return earliest(next, l.graceEnds)
	}
	if err := l.decommission(ctx, desired, now); err != nil {
		l.site.log.ErrorContext(ctx, "nodes could not be decommissioned", "err", err)
		next = earliest(next, now.Add(retryDelay))
	}
	next = earliest(next, l.settle(ctx, desired, now))
	next = earliest(next, l.windows(ctx, desired.Maintenance, now))
	dirty, retry := l.dirty(ctx, desired, now)
	next = earliest(next, retry)
	// What leaves a node looks at the nodes that it comes to.
	slices.SortStableFunc(dirty, func(a, b protocol.NodeID) int { return l.rank(a) - l.rank(b) })
	work := view.WorkOf(desired)
	for _, id := range dirty {
		delete(l.due, id)
		n := l.site.known(id)
		if n == nil {
			continue
		}
		if at := l.reconcileNode(ctx, n, work, now); !at.IsZero() {
			l.due[id] = at
		}
	}
	// Last, so that the CO learns of the adoption after the events that it led to.
	if err := l.reportAdopted(ctx, desired, now); err != nil {
		l.site.log.ErrorContext(ctx, "adoption of the desired state could not be reported", "err", err)
		next = earliest(next, now.Add(retryDelay))
	}
	if err := l.reportRuleFault(ctx, now); err != nil {
		l.site.log.ErrorContext(ctx, "a fault of the data rules could not be reported", "err", err)
		next = earliest(next, now.Add(retryDelay))
	}
	if err := l.reportAhead(ctx, desired, now); err != nil {
		l.site.log.ErrorContext(ctx, "nodes that follow a later desired state could not be reported", "err", err)
		next = earliest(next, now.Add(retryDelay))
	}
	l.tidy(ctx)
	next = earliest(next, l.graceEnds)
	for _, at := range l.due {
		next = earliest(next, at)
	}
	return next
}

// rebase makes every node that waits for a time due, if the machine's clock was set back:
// those times were said by the clock before. The reconciler says new ones.
func (l *Loop) rebase(now time.Time) {
	wall := now.Round(0) // without the monotonic clock, which cannot be set
	if wall.Before(l.last) {
		for id := range l.due {
			l.due[id] = wall
		}
		if latest := wall.Add(l.site.opts.PresenceGrace); l.settles.After(latest) {
			l.settles = latest
		}
	}
	l.last = wall
}

// dirty returns the nodes to reconcile now, sorted, and places the deployments first
// where that may have changed. retry is when to place again what could not be reported.
func (l *Loop) dirty(ctx context.Context, desired protocol.SiteDesired, now time.Time) (ids []protocol.NodeID, retry time.Time) {
	all, changed := l.site.pending()
	if all || l.placement == nil || l.unreported {
		if err := l.place(ctx, desired, now); err != nil {
			l.site.log.ErrorContext(ctx, "placement could not be reported", "err", err)
			retry = now.Add(retryDelay)
		}
		for _, n := range l.site.sorted() {
			ids = append(ids, n.id)
		}
		return ids, retry
	}
	for id, at := range l.due {
		if !now.Before(at) {
			changed = append(changed, id)
		}
	}
	if len(changed) > 0 {
		changed = append(changed, l.leaving...)
	}
	slices.Sort(changed)
	return slices.Compact(changed), retry
}

// expire records which nodes are offline without a message that reported it, and returns when to
// retry what could not be recorded.
func (l *Loop) expire(ctx context.Context, now time.Time) (retry time.Time) {
	silent := !l.graceEnds.IsZero() && !now.Before(l.graceEnds)
	wills := l.site.willsUnsaved.Swap(false)
	if !silent && !wills {
		return time.Time{}
	}
	if silent {
		l.graceEnds = time.Time{}
	}
	err := l.site.expire(ctx, now, silent)
	if err == nil {
		return time.Time{}
	}
	l.site.log.ErrorContext(ctx, "silent nodes could not be recorded as offline", "err", err)
	if silent {
		l.graceEnds = now.Add(retryDelay)
	}
	l.site.willsUnsaved.Store(true)
	return now.Add(retryDelay)
}

// earliest returns the earlier of two times, of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// reconcileNode decides about one node and carries it out: journal, record,
// NodeDesired. It returns when to do so again though nothing happens; zero: never.
func (l *Loop) reconcileNode(ctx context.Context, n *node, w *view.Work, now time.Time) time.Time {
	moved, stays := l.moved(n.id), l.drainWaits(n.id)
	up, staysUntil := l.stays(n.id, w, now)
	n.mu.Lock()
	defer n.mu.Unlock()
	// Before the node has reported everything, or while it follows a later desired state
	// of the site than this LO has, each decision might remove what is to stay.
	if n.removed || n.rec.Inventory == nil || !n.rec.Complete {
		return time.Time{}
	}
	if n.follows.After(w.Position) {
		l.ahead.note(n.id, n.follows)
		return time.Time{}
	}
	rec := n.rec.Clone()
	out := reconciler.Step(rec, reconciler.Input{
		Now: now, Desired: l.here(n.id, w), Removals: w.Removals, Moved: moved, Entries: w.Entries, Purges: w.Purges[n.id], Follows: n.follows, KeySet: w.KeySet, Held: n.rec.HeldBy(),
		Windows: w.Windows, Closed: l.closed, Opens: l.opens,
		Stays:     func(name protocol.DeploymentName) bool { return up[name] },
		Specs:     l.site.opts.Desired.Spec,
		LostAfter: l.site.opts.NodeLostAfter, Jitter: l.site.opts.Jitter,
	})
	if len(out.Faults) > 0 {
		for _, err := range out.Faults {
			l.site.log.ErrorContext(ctx, "decision could not be carried out", "node_id", n.id, "err", err)
		}
		return now.Add(faultDelay)
	}
	if out.Reassigned { // once, and not at each Step
		for _, err := range out.Withheld {
			l.site.log.ErrorContext(ctx, "assignment left out", "node_id", n.id, "err", err)
		}
	}
	waits := rec.SetWaits(now, slices.Concat(out.Waits, stays))
	out.Facts, out.Changed = append(out.Facts, waits.Facts...), out.Changed || waits.Changed
	// Before the commit: where only the store fails, the record counts all the same, and the
	// next Step sees nothing reassigned.
	var key crypto.Signer
	out.Desired.Certificates, key = l.site.opts.Certificate()
	signed := view.Statements(&out.Desired)
	n.unpublished = n.unpublished || out.Reassigned || signed != n.statements
	if out.Changed || n.unsaved {
		if err := l.site.commit(ctx, n, rec, out.Facts, true); err != nil {
			l.site.log.ErrorContext(ctx, "decision could not be recorded", "node_id", n.id, "err", err)
			return now.Add(retryDelay)
		}
		for _, m := range out.Transitions {
			l.site.logTransition(ctx, m, m.From)
		}
	}
	if n.unpublished && n.reported {
		sent := time.Now()
		if err := l.publishDesired(ctx, &out.Desired, key); err != nil {
			l.site.log.ErrorContext(ctx, "desired state of the node could not be published", "node_id", n.id, "err", err)
			return earliest(now.Add(retryDelay), out.NextAt)
		}
		n.unpublished, n.statements = false, signed
		l.site.metrics.Asked(rec, out.Desired.Assignments, sent)
	}
	return earliest(out.NextAt, staysUntil)
}

// publishDesired signs a NodeDesired, where the LO has a key, and publishes it.
func (l *Loop) publishDesired(ctx context.Context, m *protocol.NodeDesired, key crypto.Signer) error {
	if key != nil {
		if err := sign.Node(key, l.site.opts.Site, m); err != nil {
			return fmt.Errorf("sign it: %w", err)
		}
	}
	return l.publish(ctx, topic.ForNode(topic.NodeDesired, l.site.opts.Site, m.Node), protocol.Marshal(m))
}

// tidy moves the checkpoint forward once the journal is far ahead of it.
func (l *Loop) tidy(ctx context.Context) {
	if l.state.JournalEpoch == l.site.journal.Epoch() && l.site.journal.Last() < l.state.Checkpoint+checkpointEvery {
		return
	}
	if err := l.checkpoint(); err != nil {
		l.site.log.ErrorContext(ctx, "checkpoint could not be stored", "err", err)
	}
}

// End stores every record once Run has ended, so that a start has nothing to replay. It does not
// wait for Run: where that still runs, the next start replays the journal.
func (l *Loop) End() error {
	if !l.running.TryLock() {
		return errors.New("the control loop has not ended: the next start replays the journal")
	}
	defer l.running.Unlock()
	return l.checkpoint()
}

// checkpoint stores every record.
func (l *Loop) checkpoint() error {
	epoch := l.site.journal.Epoch()
	last, err := l.site.checkpoint()
	if err != nil {
		return err
	}
	l.state.JournalEpoch, l.state.Checkpoint = epoch, last
	return l.site.store.SaveSite(l.state)
}
