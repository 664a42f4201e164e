package lo

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// again is the wait after something could not be written or published.
	again = time.Second
	// reasons bounds the rejected nodes of one placement report.
	reasons = 64
	// checkpointEvery is how many events the journal may be ahead of the checkpoint,
	// which is what a start has to read.
	checkpointEvery = 16384
)

// A loop decides for the whole site: it is the only one that gives orders. Its
// fields belong to the goroutine of run.
type loop struct {
	site    *site
	desired *desired.Store
	state   store.Site
	publish func(ctx context.Context, m broker.Message) error
	lost    time.Duration
	expires time.Time // when silent nodes become offline; zero: done
	jitter  *rand.Rand

	placement  placement.Placement
	unreported bool // the journal has not got the placement
	wakes      map[protocol.NodeID]time.Time
}

// run decides whenever something changed or is due, until ctx ends.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.site.due.C():
		case <-timer.C:
		}
		if next := l.reconcile(ctx, time.Now()); !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// reconcile decides once about everything that changed or is due, and returns when
// the next pass is due.
func (l *loop) reconcile(ctx context.Context, now time.Time) (next time.Time) {
	log := l.site.log
	retry := l.expire(ctx, now)
	want, ok := l.desired.Current()
	if !ok {
		// Without a desired state nothing is decided: an empty order would tell the
		// nodes to remove everything.
		l.tidy(ctx)
		return earliest(retry, l.expires)
	}
	all, dirty := l.site.pending()
	if all || l.placement == nil || l.unreported {
		if err := l.placeWork(ctx, want, now); err != nil {
			log.ErrorContext(ctx, "placement could not be reported", "err", err)
			next = now.Add(again)
		}
		dirty = nil
		for _, n := range l.site.sorted() {
			dirty = append(dirty, n.id)
		}
	}
	for id, at := range l.wakes {
		if !now.Before(at) {
			dirty = append(dirty, id)
		}
	}
	entries := make(map[protocol.DeploymentName]protocol.SiteEntry, len(want.Deployments))
	for _, e := range want.Deployments {
		entries[e.Deployment] = e
	}
	for _, id := range dirty {
		delete(l.wakes, id)
		if at := l.step(ctx, l.site.node(id), entries, now); !at.IsZero() {
			l.wakes[id] = at
		}
	}
	// Last, so that who hears of the adoption has heard of what it led to.
	if err := l.adopt(ctx, want, now); err != nil {
		log.ErrorContext(ctx, "adoption of the desired state could not be reported", "err", err)
		next = now.Add(again)
	}
	if err := l.refuse(ctx, now); err != nil {
		log.ErrorContext(ctx, "a fault of the data rules could not be reported", "err", err)
		next = now.Add(again)
	}
	l.tidy(ctx)
	next = earliest(earliest(next, retry), l.expires)
	for _, at := range l.wakes {
		next = earliest(next, at)
	}
	return next
}

// expire records what nodes are gone that no message says so of, and returns when
// to try again what could not be recorded.
func (l *loop) expire(ctx context.Context, now time.Time) (retry time.Time) {
	silent := !l.expires.IsZero() && !now.Before(l.expires)
	missed := l.site.acceptMissed()
	if !silent && !missed {
		return time.Time{}
	}
	if silent {
		l.expires = time.Time{}
	}
	err := l.site.expire(ctx, now, silent)
	if err == nil {
		return time.Time{}
	}
	l.site.log.ErrorContext(ctx, "silent nodes could not be recorded as offline", "err", err)
	if silent {
		l.expires = now.Add(again)
	}
	l.site.missed()
	return now.Add(again)
}

// earliest returns the earlier of two times, of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// adopt reports the desired state in force, once.
func (l *loop) adopt(ctx context.Context, want protocol.SiteDesired, now time.Time) error {
	if l.state.AdoptedEpoch == want.Epoch && l.state.AdoptedGeneration == want.Generation {
		return nil
	}
	f := siteFact(protocol.DesiredAdopted, &protocol.Adopted{V: protocol.Version, Generation: want.Generation, Commit: want.Commit}, now)
	f.Key = "adopted"
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.state.AdoptedEpoch, l.state.AdoptedGeneration = want.Epoch, want.Generation
	l.site.log.InfoContext(ctx, "desired state adopted", "generation", want.Generation, "commit", want.Commit, "deployments", len(want.Deployments))
	l.collect(ctx)
	return l.site.store.SaveSite(l.state)
}

// collect removes the specs that nobody needs any more.
func (l *loop) collect(ctx context.Context) {
	var keep []protocol.Digest
	for _, n := range l.site.sorted() {
		n.mu.Lock()
		keep = append(keep, n.rec.Digests()...)
		n.mu.Unlock()
	}
	if err := l.desired.Keep(keep); err != nil {
		l.site.log.WarnContext(ctx, "old specs could not be removed", "err", err)
	}
}

// placeWork decides where everything runs, and reports what changed in that.
func (l *loop) placeWork(ctx context.Context, want protocol.SiteDesired, now time.Time) error {
	l.unreported = true
	var view []placement.Node
	for _, n := range l.site.sorted() {
		n.mu.Lock()
		rec := n.rec
		n.mu.Unlock()
		v := placement.Node{ID: rec.Node, Online: rec.Online(), Inventory: rec.Inventory}
		for _, name := range rec.Names() {
			if rec.Runs(name) {
				v.Runs = append(v.Runs, name)
			}
		}
		view = append(view, v)
	}
	l.placement = placement.Place(want.Deployments, view)
	reported := make(map[protocol.DeploymentName]protocol.Digest, len(l.placement))
	var facts []nodes.Fact
	for name, r := range l.placement {
		report := r.Report(name, reasons)
		digest := protocol.DigestOf(protocol.Marshal(&report))
		reported[name] = digest
		if l.state.Reported[name] == digest {
			continue
		}
		f := siteFact(protocol.PlacementEvent, &report, now)
		f.Key = "placement/" + string(name)
		facts = append(facts, f)
		if r.Problem != "" {
			l.site.log.WarnContext(ctx, "deployment not placed as wanted", "deployment_id", name, "problem", r.Problem)
		}
	}
	if len(facts) > 0 {
		if _, err := l.site.append(ctx, facts); err != nil {
			return err
		}
	}
	l.unreported = false
	if maps.Equal(reported, l.state.Reported) {
		return nil
	}
	l.state.Reported = reported
	return l.site.store.SaveSite(l.state)
}

// step decides about one node and carries it out: journal, record, order. It
// returns when to step again; zero: when something happens.
func (l *loop) step(ctx context.Context, n *node, entries map[protocol.DeploymentName]protocol.SiteEntry, now time.Time) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rec.Inventory == nil {
		return time.Time{} // it is not known yet what may run there
	}
	here := map[protocol.DeploymentName]protocol.SiteEntry{}
	for name := range l.placement.On(n.id) {
		if e, ok := entries[name]; ok {
			here[name] = e
		}
	}
	rec := n.rec.Clone()
	out := reconciler.Step(rec, reconciler.Input{
		Now: now, Epoch: l.state.Epoch, Desired: here, Specs: l.spec, LostAfter: l.lost, Jitter: l.jitter,
	})
	if len(out.Faults) > 0 {
		for _, err := range out.Faults {
			l.site.log.ErrorContext(ctx, "decision could not be carried out", "node_id", n.id, "err", err)
		}
		return now.Add(time.Minute)
	}
	if out.Changed || n.unsaved {
		if err := l.site.commit(ctx, n, rec, out.Facts, true); err != nil {
			l.site.log.ErrorContext(ctx, "decision could not be recorded", "node_id", n.id, "err", err)
			return now.Add(again)
		}
		for _, m := range out.Transitions {
			l.site.logTransition(ctx, m, m.From)
		}
	}
	n.unsent = n.unsent || out.Ordered
	if n.unsent {
		err := l.publish(ctx, broker.Message{
			Topic:   topic.ForNode(topic.NodeDesired, l.site.id, n.id),
			Payload: protocol.Marshal(&out.Desired), QoS: 1, Retain: true, ContentType: protocol.ContentType,
		})
		if err != nil {
			l.site.log.ErrorContext(ctx, "order could not be published", "node_id", n.id, "err", err)
			return earliest(now.Add(again), out.NextAt)
		}
		n.unsent = false
	}
	return out.NextAt
}

func (l *loop) spec(d protocol.Digest) (reconciler.Spec, bool) {
	s, ok := l.desired.Spec(d)
	return reconciler.Spec{Bytes: s.Bytes, Signature: s.Signature, App: s.Decoded.App, AppVersion: s.Decoded.AppVersion}, ok
}

// tidy moves the checkpoint forward now and then.
func (l *loop) tidy(ctx context.Context) {
	if l.state.JournalEpoch == l.site.journal.Epoch() && l.site.journal.Last() < l.state.Checkpoint+checkpointEvery {
		return
	}
	if err := l.checkpoint(); err != nil {
		l.site.log.ErrorContext(ctx, "checkpoint could not be stored", "err", err)
	}
}

func (l *loop) checkpoint() error {
	epoch := l.site.journal.Epoch()
	last, err := l.site.checkpoint()
	if err != nil {
		return err
	}
	l.state.JournalEpoch, l.state.Checkpoint = epoch, last
	return l.site.store.SaveSite(l.state)
}

func siteFact(kind protocol.EventKind, body any, now time.Time) nodes.Fact {
	return nodes.Fact{Event: protocol.Event{UnixMillis: now.UnixMilli(), Kind: kind, Body: protocol.Marshal(body)}}
}
