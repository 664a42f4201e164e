package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const (
	seqBlock = 1024 // report numbers reserved by one write to disk

	// An agent sends at most one progress report of a deployment in each of these times: while it
	// brings the version up; while the version is INSTALLED and not proven; once it is proven; and
	// while it has failed and recovers.
	progressEvery = 500 * time.Millisecond
	unprovenEvery = 2 * time.Second
	provenEvery   = time.Minute
	recoverEvery  = 10 * time.Minute
)

// nextSeq returns a number above that of every report before, over crashes as
// well: a block of numbers is reserved on disk before the first of them is used.
// The caller holds r.mu.
func (r *Runner) nextSeq() (uint64, error) {
	if r.seq == r.reserved {
		if err := r.o.Store.SaveCounter(r.reserved + seqBlock); err != nil {
			return 0, err
		}
		r.reserved += seqBlock
	}
	r.seq++
	return r.seq, nil
}

// report writes a record together with the report of it, and drops what progress
// was to be reported before. The caller holds r.mu.
func (r *Runner) report(rec plan.Record, m protocol.DeploymentStatus) error {
	seq, err := r.nextSeq()
	if err != nil {
		return err
	}
	m.Seq = seq
	r.stamp(&m)
	rec = rec.Clone()
	rec.Reports = append(rec.Reports, m)
	if err := r.save(rec); err != nil {
		return err
	}
	delete(r.progress, rec.Deployment)
	if m.Components != nil {
		r.shown[rec.Deployment] = m
	}
	r.outbox.Notify()
	return nil
}

// save writes a record without a report. The caller holds r.mu.
func (r *Runner) save(rec plan.Record) error {
	if err := r.o.Store.SaveRecord(rec); err != nil {
		return err
	}
	if from := r.records[rec.Deployment].State; from != rec.State {
		r.log.Info("deployment moved", "deployment_id", rec.Deployment, "from", from, "to", rec.State,
			"digest", rec.Digest.Short(), "attempt", rec.Attempt, "code", rec.Code, "err", rec.Message)
	}
	r.records[rec.Deployment] = rec
	return nil
}

func (r *Runner) stamp(m *protocol.DeploymentStatus) {
	m.Node, m.Agent, m.Boot = r.o.Node, r.o.Agent, r.o.Boot
	m.UnixMillis, m.Unsynced = r.o.Now().UnixMilli(), r.o.Unsynced()
}

// reportProgress keeps the latest progress of a deployment for sending; it is not kept on disk.
func (r *Runner) reportProgress(m protocol.DeploymentStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records[m.Deployment].State == m.State { // else it came too late
		r.progress[m.Deployment] = m
		r.outbox.Notify()
	}
}

// reportContainers has the containers of a version reported that is INSTALLED, or recovers,
// where they are not as they were reported last: one was restarted, say.
func (r *Runner) reportContainers(rec plan.Record, watch *plan.Watch) {
	statuses := watch.Statuses()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.records[rec.Deployment]
	if now.State != rec.State || now.Digest != rec.Digest || !watch.Telling(statuses, r.shown[rec.Deployment].Components) {
		return
	}
	m := now.Report(now.State)
	m.Components = statuses
	r.progress[rec.Deployment], r.shown[rec.Deployment] = m, m
	r.outbox.Notify()
}

// showAgain has the containers of all deployments reported once more, as the last report of
// them may have been lost with the link. The caller holds r.mu.
func (r *Runner) showAgain() {
	for name, m := range r.shown {
		if rec := r.records[name]; rec.State == m.State && rec.Digest == m.Digest && (m.State == lifecycle.Installed || m.Recovering) {
			repeated := rec.Report(rec.State)
			repeated.Components = m.Components
			r.progress[name] = repeated
		}
	}
}

// spacing is the least time between two progress reports of a deployment. The caller holds r.mu.
func (r *Runner) spacing(m protocol.DeploymentStatus) time.Duration {
	rec := r.records[m.Deployment]
	switch {
	case m.State == lifecycle.Failed:
		return recoverEvery
	case m.State == lifecycle.Installed && rec.Proven == rec.Digest:
		return provenEvery
	case m.State == lifecycle.Installed:
		return unprovenEvery
	default:
		return progressEvery
	}
}

// outboxLoop sends the reports one after another, in order, each until it is
// acknowledged; when none is left, the progress there is.
func (r *Runner) outboxLoop() {
	wait := upTo(30 * time.Second)
	sent := map[protocol.DeploymentName]time.Time{}
	for r.ctx.Err() == nil {
		m, durable, due := r.nextReport(sent)
		if !durable {
			done, err := r.sendWhole(r.ctx)
			if err != nil && r.ctx.Err() == nil {
				r.log.WarnContext(r.ctx, "report of everything not acknowledged, trying again", "err", err)
				_ = wait.WaitOr(r.ctx, r.linked.C())
				continue
			}
			if done {
				wait.Reset()
				continue // what comes next has a later number
			}
		}
		if m == nil {
			r.idle(due)
			continue
		}
		err := r.o.Uplink.Report(r.ctx, *m, durable)
		switch {
		case r.ctx.Err() != nil:
			return
		case err != nil && durable && protocol.KindOf(err) == protocol.Invalid:
			// It would hold up all that follow for ever.
			r.log.ErrorContext(r.ctx, "report refused permanently and dropped", "deployment_id", m.Deployment, "seq", m.Seq, "err", err)
		case err != nil && durable:
			r.log.WarnContext(r.ctx, "report not acknowledged, trying again", "deployment_id", m.Deployment, "seq", m.Seq, "err", err)
			_ = wait.WaitOr(r.ctx, r.linked.C()) // progress is no reason to hurry
			continue
		case !durable:
			sent[m.Deployment] = time.Now()
			continue
		}
		if err := r.acknowledged(m); err != nil {
			r.log.ErrorContext(r.ctx, "acknowledged report not removed, it will be sent again", "deployment_id", m.Deployment, "err", err)
			_ = wait.Wait(r.ctx)
			continue
		}
		delete(sent, m.Deployment)
		wait.Reset()
	}
}

// idle waits for something to send, or for due.
func (r *Runner) idle(due time.Time) {
	if due.IsZero() {
		_ = r.outbox.Wait(r.ctx)
		return
	}
	_, _ = retry.SleepOr(r.ctx, time.Until(due), r.outbox.C())
}

// nextReport returns the oldest report, or else progress that is due. With
// neither, due is when to ask again.
func (r *Runner) nextReport(sent map[protocol.DeploymentName]time.Time) (m *protocol.DeploymentStatus, durable bool, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.up {
		return nil, false, time.Time{}
	}
	for _, rec := range r.records {
		if len(rec.Reports) > 0 && (m == nil || rec.Reports[0].Seq < m.Seq) {
			first := rec.Reports[0]
			m = &first
		}
	}
	if m != nil || r.wholeDue {
		return m, m != nil, time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(r.progress)) {
		p := r.progress[name]
		at := sent[name].Add(r.spacing(p))
		if time.Now().Before(at) {
			if due.IsZero() || at.Before(due) {
				due = at
			}
			continue
		}
		seq, err := r.nextSeq()
		if err != nil {
			return nil, false, time.Now().Add(progressEvery) // the disk is full: progress can wait
		}
		p.Seq = seq
		r.stamp(&p)
		delete(r.progress, name)
		return &p, false, time.Time{}
	}
	return nil, false, due
}

// acknowledged removes a report that the LO has.
func (r *Runner) acknowledged(m *protocol.DeploymentStatus) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.records[m.Deployment]
	if !ok || len(rec.Reports) == 0 || rec.Reports[0].Seq != m.Seq {
		return nil
	}
	rec.Reports = append([]protocol.DeploymentStatus(nil), rec.Reports[1:]...)
	if err := r.save(rec); err != nil {
		return err
	}
	if (rec.State == lifecycle.Deleted || rec.Stranger()) && len(rec.Reports) == 0 {
		r.work(rec.Deployment).interrupt() // the record is no longer needed
	}
	return nil
}

// retrySave calls write, which needs r.mu, until it succeeds or ctx ends.
func (r *Runner) retrySave(ctx context.Context, write func() error) error {
	wait := upTo(15 * time.Second)
	for {
		r.mu.Lock()
		err := write()
		r.mu.Unlock()
		if err == nil {
			return nil
		}
		r.log.ErrorContext(ctx, "state not written, work waits for the disk", "err", err)
		_ = wait.Wait(ctx) // where it has ended, what comes next fails
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
