package agent

import (
	"context"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// install brings rec's version up, in the place of another one if that runs.
// Every step is idempotent: after a crash it begins again.
func (w *worker) install(ctx context.Context, rec plan.Record) error {
	spec, err := plan.Decode(rec.Spec)
	if err != nil {
		return w.fail(ctx, rec, plan.Failure{Code: protocol.Incompatible, Message: err.Error()}, nil)
	}
	if err := w.r.afterSweep(ctx); err != nil {
		return err
	}
	if err := w.r.volumes.Begin(ctx, w.name, rec.Site); err != nil {
		return w.giveUp(ctx, rec, err)
	}
	if err := w.pullBesideActive(ctx, rec); err != nil {
		return w.giveUp(ctx, rec, err)
	}
	if rec.Unseen { // its own containers would pass for those of before
		if err := w.r.firstLook.wait(ctx, w.r.o.EngineTimeout); err != nil {
			return w.giveUp(ctx, rec, err)
		}
	}
	if rec.Active != "" && rec.Active != rec.Digest { // what runs gives way only to what can start
		if err := w.r.o.Host.Vacant(ctx, w.name, plan.Ports(spec)); err != nil {
			return w.giveUp(ctx, rec, err)
		}
	}
	if rec, err = w.cutOver(ctx, rec, spec); err != nil {
		return w.giveUp(ctx, rec, err)
	}
	watch := w.watch(spec, plan.Install, w.r.o.Limits)
	failure, err := w.follow(ctx, watch, func(phase protocol.Phase) {
		m := rec.Report(rec.State)
		m.Phase, m.Components = phase, watch.Statuses()
		w.r.reportProgress(m)
	})
	if err != nil {
		return err
	}
	if failure != nil {
		return w.fail(ctx, rec, *failure, watch)
	}
	return w.installed(ctx, rec, plan.Record.Installed, watch)
}

// installed moves the record to INSTALLED; up makes the new record of the old one.
func (w *worker) installed(ctx context.Context, rec plan.Record, up func(plan.Record) plan.Record, watch *plan.Watch) error {
	return w.r.retrySave(ctx, func() error {
		if ctx.Err() != nil {
			return nil
		}
		from := rec.State
		next := up(w.current(rec))
		m := next.Report(from)
		m.Components = watch.Statuses()
		if err := w.r.report(next, m); err != nil {
			return err
		}
		w.r.sweep.Notify() // the images of the version before
		return nil
	})
}

// giveUp moves to FAILED because of err, unless the operation was ended.
func (w *worker) giveUp(ctx context.Context, rec plan.Record, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.fail(ctx, rec, failureOf(err), nil)
}

// pullBesideActive makes the new version's images present while the old version
// is kept up, however long it takes.
func (w *worker) pullBesideActive(ctx context.Context, rec plan.Record) error {
	old, err := plan.Decode(rec.ActiveSpec)
	if rec.Active == "" || rec.Active == rec.Digest || err != nil {
		return w.pull(ctx, rec)
	}
	beside, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with its context only.
		_, _ = w.follow(beside, w.watch(old, plan.Tolerate, w.r.o.Limits), nil)
	}()
	defer func() {
		stop()
		<-done
	}()
	return w.pull(ctx, rec)
}

func (w *worker) pull(ctx context.Context, rec plan.Record) error {
	m := rec.Report(rec.State)
	m.Phase = protocol.Pulling
	w.r.reportProgress(m)
	var before engine.Progress // of the images that are complete
	for _, ref := range plan.Images(rec.Spec) {
		var last engine.Progress
		err := w.patiently(ctx, w.tries(rec), func() error {
			return w.r.o.Engine.Pull(ctx, ref, func(p engine.Progress) {
				last = p
				m.PulledBytes, m.TotalBytes = before.Pulled+p.Pulled, before.Total+p.Total
				w.r.reportProgress(m)
			})
		})
		if err != nil {
			return err
		}
		before.Pulled += last.Pulled
		before.Total += max(last.Total, last.Pulled)
	}
	m.Phase = protocol.Creating
	w.r.reportProgress(m)
	return nil
}

// cutOver stops and removes what runs of other versions and is not as rec's version
// wants it, and returns the record as it is then.
func (w *worker) cutOver(ctx context.Context, rec plan.Record, spec *protocol.DeploymentSpec) (plan.Record, error) {
	gives := rec.ActiveSpec
	if rec.Active == "" {
		gives = rec.FormerSpec // it had begun to give way
	}
	old, _ := plan.Decode(gives) // unknown: any order will do
	if rec.Active != "" && rec.Active != rec.Digest {
		next := rec.CutOver()
		err := w.r.retrySave(ctx, func() error { return w.r.save(w.current(next)) })
		if err != nil {
			return rec, err
		}
		rec = next
	}
	return rec, w.patiently(ctx, clearTries, func() error { return w.clear(ctx, old, slices.Concat(plan.Identities(spec)...)) })
}

// clearTries is how often it is tried to clear a version away, or to do a step of
// a rollback, before that counts as a failure. What hinders a removal is not the
// new version's fault, and often gone a moment later.
const clearTries = 5

// tries returns how often a step of rec's operation may fail. A rollback that fails is not tried
// again, so it may fail more than once before it is given up.
func (w *worker) tries(rec plan.Record) int {
	if rec.State == lifecycle.RollingBack {
		return clearTries
	}
	return 1
}

// patiently calls step again for as long as it fails because the engine is away,
// up to the engine's timeout. With any other fault it is called up to tries times.
func (w *worker) patiently(ctx context.Context, tries int, step func() error) error {
	wait := upTo(5 * time.Second)
	for since := time.Now(); ; {
		err := step()
		if err == nil || ctx.Err() != nil {
			return err
		}
		early := w.notify.C()
		if engine.CodeOf(err) != protocol.EngineUnavailable {
			if tries--; tries <= 0 {
				return err
			}
			early = nil // the exits of what is being cleared are no reason to hurry
			w.log.WarnContext(ctx, "step failed, trying again", "err", err)
		} else if time.Since(since) >= w.r.o.EngineTimeout {
			return err
		}
		_ = wait.WaitOr(ctx, early) // where it has ended, what comes next fails
	}
}

// start makes one container run. A container of another version that is in the
// way is stopped and removed, an image that was removed is pulled again.
func (w *worker) start(ctx context.Context, c engine.Container) error {
	c.Site = w.record().Site
	err := w.r.o.Engine.Start(ctx, c)
	switch {
	case err == nil:
		return nil
	case protocol.KindOf(err) == protocol.Conflict:
		// It may be one that works, of an agent that made identities in another way.
		if err := w.r.o.Engine.Stop(ctx, c.ID, 0); err != nil { // within its own grace
			return err
		}
		if err := w.r.o.Engine.Remove(ctx, c.ID); err != nil {
			return err
		}
	case engine.CodeOf(err) == protocol.ImageNotFound:
		if err := w.r.o.Engine.Pull(ctx, c.Spec.Image, nil); err != nil {
			return err
		}
	default:
		return err
	}
	return w.r.o.Engine.Start(ctx, c)
}
