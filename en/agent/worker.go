package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// maxMessage bounds the message of a report, in bytes.
const maxMessage = 1024

// A worker does the work of one deployment, one operation at a time.
type worker struct {
	r      *Runner
	name   protocol.DeploymentName
	log    *slog.Logger
	notify notify.Signal // the engine has news
	// restarts carries requests to restart containers to the follower of the version.
	restarts chan restartRequest

	failed *plan.Watch             // the watch that has just failed its version; only run uses it
	cancel context.CancelCauseFunc // of the operation; nil between two; protected by r.mu
}

// interrupt ends the operation, so that the worker asks for its assignment again. The
// caller holds r.mu.
func (w *worker) interrupt() {
	if w.cancel != nil {
		w.cancel(errSuperseded)
	}
}

// run asks for the assignment and does what the record's state says, until the
// deployment is forgotten or the agent stops.
func (w *worker) run() {
	for {
		// The operation's context is there before the assignment is read: an interrupt
		// that comes in between ends the operation before it began.
		ctx, cancel := context.WithCancelCause(w.r.ctx)
		w.r.mu.Lock()
		w.cancel = cancel
		w.r.mu.Unlock()
		var rec plan.Record
		var known bool
		err := w.r.retrySave(w.r.ctx, func() (err error) {
			rec, known, err = w.advance()
			return err
		})
		if err == nil && known {
			err = w.perform(ctx, rec)
		}
		if err != nil && ctx.Err() == nil {
			w.log.ErrorContext(ctx, "operation ended", "state", rec.State, "err", err)
		}
		cancel(nil)
		if !known || w.r.ctx.Err() != nil {
			return
		}
	}
}

// advance brings the record up to the assignment and returns it; known is false where
// there is nothing left to do for ever. The caller holds r.mu.
func (w *worker) advance() (rec plan.Record, known bool, err error) {
	r := w.r
	held, have := r.records[w.name]
	var now *plan.Record
	if have {
		now = &held
	}
	if r.obeyed != nil {
		if a, ok := plan.Next(now, r.assignment(w.name)); ok {
			if a.Kind == plan.Forget {
				return plan.Record{}, false, w.forget()
			}
			if err := w.accept(a); err != nil {
				return plan.Record{}, true, err
			}
			return r.records[w.name], true, nil
		}
	}
	switch {
	case !have:
		delete(r.workers, w.name)
		return plan.Record{}, false, nil
	default:
		return held, true, nil
	}
}

// forget ends a record that has done its work, and with it the worker. The caller holds
// r.mu.
func (w *worker) forget() error {
	if err := w.r.drop(w.name); err != nil {
		return err
	}
	delete(w.r.workers, w.name)
	w.r.forgot(w.name)
	return nil
}

// drop removes a record, on disk first. The caller holds r.mu.
func (r *Runner) drop(name protocol.DeploymentName) error {
	if err := r.o.Store.RemoveRecord(name); err != nil {
		return err
	}
	delete(r.records, name)
	delete(r.shown, name)
	return nil
}

// accept writes down what an action says.
func (w *worker) accept(a plan.Action) error {
	if w.r.seen() {
		a.Record = a.Record.Seen(w.r.strays)
	}
	stands := a.Record.State == lifecycle.Installed || a.Record.State == lifecycle.Failed || a.Record.State == lifecycle.Deleted
	if stands { // a version refused unread, or an LO that has lost the report
		return w.r.report(a.Record, a.Record.Report(a.From))
	}
	return w.r.save(a.Record)
}

// perform does what the state of rec asks for. It returns when the record has
// moved on, or ctx has ended.
func (w *worker) perform(ctx context.Context, rec plan.Record) error {
	if rec.State != lifecycle.Failed {
		w.failed = nil
	}
	switch rec.State {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		return w.install(ctx, rec)
	case lifecycle.Installed:
		return w.supervise(ctx, rec)
	case lifecycle.Failed:
		return w.rest(ctx, rec)
	case lifecycle.Deleting:
		return w.remove(ctx, rec)
	case lifecycle.Deleted, lifecycle.Pending:
		<-ctx.Done()
		return context.Cause(ctx)
	default:
		return fmt.Errorf("record in unknown state %q", rec.State)
	}
}

// supervise keeps an installed version up until it fails or ctx ends.
func (w *worker) supervise(ctx context.Context, rec plan.Record) error {
	spec, err := plan.Decode(rec.Spec)
	if err != nil {
		return w.fail(ctx, rec, plan.Failure{Code: protocol.Incompatible, Message: err.Error()}, nil)
	}
	limits := w.r.o.Limits
	if rec.MinHealthyMillis > 0 {
		limits.MinHealthy = time.Duration(rec.MinHealthyMillis) * time.Millisecond
	}
	if rec.Proven == rec.Digest {
		limits.MinHealthy = 0 // it is known already
	}
	if err := w.r.volumes.Begin(ctx, w.name, rec.Site); err != nil { // it was installed by an agent of before, or desired anew since
		w.log.WarnContext(ctx, "position of a deployment not stored", "err", err)
	}
	watch := w.watch(spec, plan.Supervise, limits)
	failure, err := w.follow(ctx, watch, func(protocol.Phase) { w.r.reportContainers(rec, watch) })
	if err != nil {
		return err
	}
	if failure == nil {
		return w.proven(ctx, rec)
	}
	w.failed = watch
	return w.fail(ctx, rec, *failure, watch)
}

// proven notes that the version was up for the minimum time: the one before it is not
// needed any more.
func (w *worker) proven(ctx context.Context, rec plan.Record) error {
	return w.r.retrySave(ctx, func() error {
		if ctx.Err() != nil {
			return nil
		}
		if err := w.r.save(w.current(rec).HasProven()); err != nil {
			return err
		}
		w.r.sweep.Notify() // the images of the version before
		return nil
	})
}

// recover keeps what runs of a version that was proven, and restarts what does
// not, until all of it works again.
func (w *worker) recover(ctx context.Context, rec plan.Record) error {
	watch := w.failed
	w.failed = nil
	spec, err := plan.Decode(rec.Spec)
	if err != nil {
		return err
	}
	if watch == nil { // the agent was restarted, or it failed while it was installed again
		watch = w.watch(spec, plan.Recover, w.r.o.Limits)
	}
	watch.ToRecover()
	if err := w.persist(ctx, func() error { return w.clear(ctx, spec, slices.Concat(plan.Identities(spec)...)) }); err != nil {
		return err
	}
	if _, err := w.follow(ctx, watch, func(protocol.Phase) { w.r.reportContainers(rec, watch) }); err != nil {
		return err
	}
	return w.installed(ctx, rec, plan.Record.Recovered, watch)
}

// rest clears away what a failed version left. It keeps the version up that ran
// before if it never gave way, else what the two have in common.
func (w *worker) rest(ctx context.Context, rec plan.Record) error {
	if rec.Recovers() {
		return w.recover(ctx, rec)
	}
	if rec.Unseen { // what is there is not cleared away before it is known
		if err := w.r.firstLook.wait(ctx, 0); err != nil {
			return err
		}
	}
	failed, _ := plan.Decode(rec.Spec)
	up := rec.StaysUp()
	if failed == nil && len(up.Components) == 0 { // refused unread: what there is is of a version whose record was lost
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := w.persist(ctx, func() error { return w.clear(ctx, failed, slices.Concat(plan.Identities(up)...)) }); err != nil {
		return err
	}
	if len(up.Components) == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	_, err := w.follow(ctx, w.watch(up, plan.Tolerate, w.r.o.Limits), nil)
	return err
}

// remove takes the deployment off the node.
func (w *worker) remove(ctx context.Context, rec plan.Record) error {
	const patience = 5 // failures before they are reported
	if err := w.r.firstLook.wait(ctx, 0); err != nil {
		return err
	}
	spec, _ := plan.Decode(rec.Spec)
	wait := upTo(time.Minute)
	for failures := 1; ; failures++ {
		err := w.clear(ctx, spec, nil)
		if err == nil {
			err = w.r.sweepRemoved(ctx, w.name)
		}
		if err == nil && rec.Volumes {
			err = w.r.volumes.Remove(ctx, w.name)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.log.WarnContext(ctx, "deployment not removed, trying again", "err", err)
		if failures == patience && engine.CodeOf(err) != protocol.EngineUnavailable {
			if err := w.stuck(ctx, rec, err); err != nil {
				return err
			}
		}
		_ = wait.Wait(ctx) // where it has ended, what comes next fails
	}
	return w.r.retrySave(ctx, func() error {
		held := w.r.records[w.name]
		removed := held.Deleted()
		w.r.retain.Notify()
		return w.r.report(removed, removed.Report(lifecycle.Deleting))
	})
}

// stuck reports that a removal does not get on. The record stays DELETING, for
// the removal is tried again.
func (w *worker) stuck(ctx context.Context, rec plan.Record, why error) error {
	return w.r.retrySave(ctx, func() error {
		held := w.r.records[w.name].Clone()
		reported := rec.Failed(failureOf(why))
		return w.r.report(held, reported.Report(lifecycle.Deleting))
	})
}

// clear stops and removes the deployment's containers but those with an identity in
// keep, each after those that need it, and otherwise at once: ten that do not heed the signal to
// stop take the time of one. Spec, which may be nil, is their version.
func (w *worker) clear(ctx context.Context, spec *protocol.DeploymentSpec, keep []protocol.Digest) error {
	list, err := w.r.o.Engine.List(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(s engine.Status) bool { return s.ID.Deployment != w.name || slices.Contains(keep, s.Digest) })
	var errs []error
	for _, group := range plan.StopOrder(spec, list) {
		failed := make([]error, len(group))
		var stops sync.WaitGroup
		for i, s := range group {
			stops.Go(func() {
				if failed[i] = w.r.o.Engine.Stop(ctx, s.ID, grace(spec, s.ID)); failed[i] == nil {
					failed[i] = w.r.o.Engine.Remove(ctx, s.ID)
				}
			})
		}
		stops.Wait()
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}

// grace is how long a container may take to stop.
func grace(spec *protocol.DeploymentSpec, id engine.ID) time.Duration {
	if spec == nil {
		return plan.StopTimeout(nil)
	}
	for _, c := range spec.Components {
		for _, k := range c.Containers {
			if c.Name == id.Component && k.Name == id.Name {
				return plan.StopTimeout(&k)
			}
		}
	}
	return plan.StopTimeout(nil)
}

// persist calls step until it succeeds or ctx ends.
func (w *worker) persist(ctx context.Context, step func() error) error {
	wait := upTo(15 * time.Second)
	for {
		err := step()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.log.WarnContext(ctx, "step failed, trying again", "err", err)
		_ = wait.Wait(ctx) // where it has ended, what comes next fails
	}
}

// fail moves the record to FAILED. The containers are cleared away afterwards.
func (w *worker) fail(ctx context.Context, rec plan.Record, f plan.Failure, watch *plan.Watch) error {
	return w.r.retrySave(ctx, func() error {
		// An assignment that came meanwhile finds the record as it was.
		if ctx.Err() != nil {
			return nil
		}
		f.Message = clip(f.Message)
		from := rec.State
		next := w.current(rec).Failed(f)
		m := next.Report(from)
		if watch != nil {
			m.Components = watch.Statuses()
		}
		return w.r.report(next, m)
	})
}

// current returns rec with the reports that are pending now, and what a restart has noted: the outbox removes
// some of those while the worker works. The caller holds r.mu.
func (w *worker) current(rec plan.Record) plan.Record {
	now := w.r.records[w.name]
	rec.Reports, rec.Ending = now.Reports, now.Ending
	return rec
}

// watch returns a watch over a version, which knows of restarts that were interrupted.
func (w *worker) watch(spec *protocol.DeploymentSpec, mode plan.Mode, limits plan.Limits) *plan.Watch {
	watch := plan.NewWatch(spec, mode, limits)
	watch.Ending(w.record().Ending)
	return watch
}

// record returns the record as it stands.
func (w *worker) record() plan.Record {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.records[w.name]
}

func failureOf(err error) plan.Failure {
	return plan.Failure{Code: engine.CodeOf(err), Message: clip(err.Error())}
}

func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage
	for cut > 0 && s[cut]&0xC0 == 0x80 { // not within a character
		cut--
	}
	return s[:cut]
}
