package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// An answer is what a probe said.
type answer struct {
	id      engine.ID
	ok      bool
	message string
	err     error
}

// A follower does what a watch decides.
type follower struct {
	w        *worker
	watch    *plan.Watch
	progress func(protocol.Phase) // may be nil
	answers  chan answer
	probes   sync.WaitGroup

	away time.Time // since when the engine is away; zero: it is there
	wait *retry.Backoff
	look bool // the engine has news
}

// follow does what watch decides until the version is up (in the modes Install and
// Recover) or proven (in Supervise): both results are nil; or it has failed; or ctx
// has ended, which is the error.
func (w *worker) follow(ctx context.Context, watch *plan.Watch, progress func(protocol.Phase)) (*plan.Failure, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &follower{w: w, watch: watch, progress: progress, answers: make(chan answer), wait: upTo(5 * time.Second), look: true}
	defer func() {
		stop()
		f.probes.Wait()
	}()
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		d, failure := f.turn(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if failure != nil || f.reached(d) {
			return failure, nil
		}
		if !f.look {
			f.sleep(ctx, d.Next)
		}
	}
}

// reached reports whether the watch has come to its end.
func (f *follower) reached(d plan.Decision) bool {
	switch f.watch.Mode() {
	case plan.Install, plan.Recover:
		return d.Ready
	case plan.Supervise:
		return d.Proven
	default:
		return false
	}
}

// turn looks, decides and acts once. After it started something, f.look is set.
func (f *follower) turn(ctx context.Context) (plan.Decision, *plan.Failure) {
	if f.look {
		f.look = false
		list, err := f.w.r.o.Engine.List(ctx)
		if err != nil {
			return plan.Decision{}, f.outage(ctx, err)
		}
		f.back()
		f.watch.Observe(list, time.Now())
	}
	d := f.watch.Decide(time.Now())
	if d.Failure != nil || f.reached(d) {
		return d, d.Failure
	}
	for _, t := range d.Probe {
		f.probes.Go(func() { f.probe(ctx, t) })
	}
	f.report()
	for _, c := range d.Recover {
		f.recoverNetwork(ctx, c)
	}
	for _, c := range d.Start {
		if failure := f.start(ctx, c); failure != nil || ctx.Err() != nil || f.look && !f.away.IsZero() {
			return d, failure
		}
	}
	return d, nil
}

// recoverNetwork has the engine make the record of the network of a container that runs anew.
// The container goes on where that does not succeed.
func (f *follower) recoverNetwork(ctx context.Context, c engine.Container) {
	if err := f.w.r.o.Engine.Start(ctx, c); err != nil {
		f.w.log.WarnContext(ctx, "record of the network of a container not made anew, trying again", "container", c.ID.String(), "err", err)
		return
	}
	f.look = true
}

func (f *follower) report() {
	if f.progress == nil {
		return
	}
	phase := protocol.Starting
	if f.watch.AllStarted() {
		phase = protocol.Probing
	}
	f.progress(phase)
}

func (f *follower) start(ctx context.Context, c engine.Container) *plan.Failure {
	f.look = true
	err := f.w.start(ctx, c)
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case engine.CodeOf(err) == protocol.EngineUnavailable:
		return f.outage(ctx, err)
	}
	failure := failureOf(fmt.Errorf("start container %s/%s: %w", c.ID.Component, c.ID.Name, err))
	if f.watch.Mode() == plan.Install && f.w.tries(f.w.record()) == 1 {
		return &failure
	}
	f.w.log.WarnContext(ctx, "container not started, trying again", "container", c.ID.String(), "err", err)
	f.watch.NotStarted(c.ID, failure, time.Now())
	return nil
}

// outage waits a moment for an engine that is away. An installation ends when
// that takes too long; what is installed stays so.
func (f *follower) outage(ctx context.Context, err error) *plan.Failure {
	if ctx.Err() != nil {
		return nil
	}
	if f.away.IsZero() {
		f.away = time.Now()
		f.w.log.WarnContext(ctx, "container engine not reachable, trying again", "err", err)
	}
	if f.watch.Mode() == plan.Install && time.Since(f.away) >= f.w.r.o.EngineTimeout {
		return &plan.Failure{Code: protocol.EngineUnavailable, Message: clip(fmt.Sprintf(
			"the container engine did not answer for %s, see that it runs on the node: %v", f.w.r.o.EngineTimeout, err))}
	}
	f.look = true
	_ = f.wait.WaitOr(ctx, f.w.notify.C()) // the caller looks for its end
	return nil
}

func (f *follower) back() {
	if !f.away.IsZero() {
		f.watch.Postpone(time.Since(f.away))
		f.away = time.Time{}
		f.wait.Reset()
	}
}

// sleep waits for news, for the answer of a probe, or until next.
func (f *follower) sleep(ctx context.Context, next time.Time) {
	var due <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
	case <-due:
	case <-f.w.notify.C():
		f.look = true
	case a := <-f.answers:
		if a.err != nil {
			f.w.log.DebugContext(ctx, "container not probed", "container", a.id.String(), "err", a.err)
			f.watch.Unprobed(a.id, time.Now())
			return
		}
		if !a.ok {
			f.w.log.DebugContext(ctx, "container unhealthy", "container", a.id.String(), "answer", a.message)
		}
		f.watch.Probed(a.id, a.ok, a.message, time.Now())
	case q := <-f.w.restarts:
		f.restart(ctx, q)
	}
}

func (f *follower) probe(ctx context.Context, t plan.Target) {
	a := answer{id: t.ID}
	call, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	a.ok, a.message, a.err = f.w.r.o.Probe(call, t)
	select {
	case f.answers <- a:
	case <-ctx.Done():
	}
}
