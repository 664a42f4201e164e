package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// A restartRequest asks the follower of a version to restart some of its containers.
type restartRequest struct {
	ctx    context.Context
	want   func(component, container string) bool
	exact  bool
	answer chan<- restarted // has room for one
}

// restarted is what became of a restartRequest.
type restarted struct {
	containers []engine.ID
	err        error
}

// Restart restarts the containers of a deployment that are wanted, and returns which they were. They are stopped in the order of a removal, and
// started in the opposite one; that they exit counts as no crash. A container that has done its work is started again where exact says that it
// is the one that was asked for.
func (r *Runner) Restart(ctx context.Context, name protocol.DeploymentName, want func(component, container string) bool, exact bool) ([]engine.ID, error) {
	r.mu.Lock()
	rec, known := r.records[name]
	w := r.workers[name]
	r.mu.Unlock()
	if !known || w == nil {
		return nil, protocol.Errorf(protocol.NotFound, "the node has no deployment %s", name)
	}
	if err := rec.Restartable(); err != nil {
		return nil, protocol.Errorf(protocol.Conflict, "%w", err)
	}
	answer := make(chan restarted, 1)
	select {
	case w.restarts <- restartRequest{ctx, want, exact, answer}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
	a := <-answer // it is there soon after ctx has ended
	return a.containers, a.err
}

// restart does what a request asks for. Nothing else looks at the containers of the deployment meanwhile.
func (f *follower) restart(ctx context.Context, q restartRequest) {
	f.look = true
	if f.watch.Mode() == plan.Install {
		q.answer <- restarted{err: protocol.Errorf(protocol.Conflict, "deployment %s is being installed: it starts its containers by itself", f.w.name)}
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(q.ctx, func() { cancel(context.Cause(q.ctx)) })()
	list, err := f.w.r.o.Engine.List(ctx)
	if err != nil {
		q.answer <- restarted{err: fmt.Errorf("the container engine does not answer: %w", err)}
		return
	}
	f.watch.Observe(list, time.Now())
	chosen := f.watch.Restart(q.want, q.exact)
	if err := f.note(f.watch.Runs(chosen)); err != nil {
		q.answer <- restarted{err: fmt.Errorf("nothing was restarted: what is to be stopped could not be written down: %w", err)}
		return
	}
	list = slices.DeleteFunc(list, func(s engine.Status) bool {
		return !slices.ContainsFunc(chosen, func(c engine.Container) bool { return c.ID == s.ID && c.Digest == s.Digest })
	})
	err = f.stopGroups(ctx, list)
	var done []engine.ID
	for _, c := range f.startOrder(chosen, list) {
		if ctx.Err() != nil { // the next follower starts what this one stopped
			err = errors.Join(err, context.Cause(ctx))
			break
		}
		if fault := f.w.start(ctx, c); fault != nil {
			err = errors.Join(err, fmt.Errorf("start container %s/%s: %w", c.ID.Component, c.ID.Name, fault))
			continue
		}
		done = append(done, c.ID)
	}
	if err == nil {
		if fault := f.note(nil); fault != nil { // it says nothing of the runs that follow
			f.w.log.WarnContext(ctx, "end of a restart not written down", "err", fault)
		}
	}
	q.answer <- restarted{done, err}
}

// note records on disk, before a restart, which runs of containers the restart ends: so their exit counts as no crash, even if the agent is
// killed meanwhile.
func (f *follower) note(runs []plan.Run) error {
	f.watch.Ending(runs)
	r := f.w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[f.w.name]
	rec.Ending = runs
	return r.save(rec)
}

// stopGroups stops containers, each after those that need it.
func (f *follower) stopGroups(ctx context.Context, list []engine.Status) error {
	var errs []error
	for _, group := range f.watch.StopGroups(list) {
		failed := make([]error, len(group))
		var stops sync.WaitGroup
		for i, s := range group {
			stops.Go(func() {
				if err := f.w.r.o.Engine.Stop(ctx, s.ID, 0); err != nil { // within its own grace
					failed[i] = fmt.Errorf("stop container %s/%s: %w", s.ID.Component, s.ID.Name, err)
				}
			})
		}
		stops.Wait()
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}

// startOrder returns the chosen containers so that each comes before those that need it.
func (f *follower) startOrder(chosen []engine.Container, stopped []engine.Status) []engine.Container {
	var out []engine.Container
	groups := f.watch.StopGroups(stopped)
	slices.Reverse(groups)
	for _, group := range groups {
		for _, s := range group {
			i := slices.IndexFunc(chosen, func(c engine.Container) bool { return c.ID == s.ID })
			out = append(out, chosen[i])
		}
	}
	for _, c := range chosen { // of which there was no container
		if !slices.ContainsFunc(out, func(o engine.Container) bool { return o.ID == c.ID }) {
			out = append(out, c)
		}
	}
	return out
}
