package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// volumesEvery is the time between two looks at the volumes without a reason. What a
// restart of the agent does not count of a volume's retention is less.
const volumesEvery = 15 * time.Minute

// A volumeState is what a Runner knows of the volumes that outlived their deployments.
// The Runner's mutex protects it.
type volumeState struct {
	volumes plan.Volumes
	// removing are the deployments whose volumes are being removed; closed at the end.
	removing map[protocol.DeploymentName]chan struct{}
}

// Volumes returns the volumes that outlived their deployments, at most
// protocol.MaxVolumes of them, and how many there are.
func (r *Runner) Volumes() (list []protocol.Volume, count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.volumes.Retained[:min(len(r.volumes.Retained), protocol.MaxVolumes)] {
		list = append(list, protocol.Volume{Deployment: v.Deployment, Name: v.Name, Bytes: v.Bytes, RemovedMillis: v.UnixMillis, Unsynced: v.Unsynced})
	}
	return list, len(r.volumes.Retained)
}

// volumesLoop retains, measures and removes volumes that no deployment uses.
func (r *Runner) volumesLoop() {
	tick := time.NewTicker(volumesEvery)
	defer tick.Stop()
	wait := upTo(5 * time.Minute)
	last := time.Now()
	for {
		now := time.Now()
		err := r.reconcileVolumes(now.Sub(last))
		if err == nil {
			last = now
			wait.Reset()
		} else if r.ctx.Err() == nil {
			r.log.WarnContext(r.ctx, "volumes not compared with the deployments, trying again", "err", err)
			_ = wait.Wait(r.ctx) // its end ends the loop, too
			if r.ctx.Err() == nil {
				continue
			}
		}
		select {
		case <-r.ctx.Done():
			return
		case <-r.retain.C():
		case <-tick.C:
		}
	}
}

// reconcileVolumes compares the volumes on the node with its deployments once. elapsed
// is the time since the last that succeeded.
func (r *Runner) reconcileVolumes(elapsed time.Duration) error {
	present, err := r.o.Host.Volumes(r.ctx)
	if err != nil {
		return err
	}
	observed, err := r.o.Engine.List(r.ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	held := r.volumes
	// What is begun from here on waits for r.retaining.
	next, remove := held.Update(plan.VolumesInput{
		Desired: r.volumesDesired(), Records: r.list(), Present: present, Observed: observed,
		Elapsed: elapsed, Retention: r.o.VolumeRetention, UnixMillis: r.o.Now().UnixMilli(), Unsynced: r.o.Unsynced(),
	})
	release := r.hold(remove)
	r.mu.Unlock()
	defer release()
	var errs []error
	for _, v := range remove {
		err := r.o.Host.RemoveVolume(r.ctx, v)
		if err == nil {
			r.log.InfoContext(r.ctx, "volume removed", "deployment_id", v.Deployment, "volume", v.Name)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err // with the next try nothing is counted twice, and no purge is done
	}
	for i := range next.Retained {
		r.measure(held, &next.Retained[i])
	}
	return r.retrySave(r.ctx, func() error {
		if err := r.o.Store.SaveVolumes(next); err != nil {
			return err
		}
		same := slices.EqualFunc(next.Retained, held.Retained, func(a, b plan.RetainedVolume) bool { return a.Deployment == b.Deployment && a.Name == b.Name })
		r.volumes = next
		if !same {
			r.o.Changed()
		}
		return nil
	})
}

// hold marks the deployments whose volumes are about to be removed, so that none of them
// is begun meanwhile, until release. The caller holds r.mu.
func (r *Runner) hold(remove []engine.Volume) (release func()) {
	if len(remove) == 0 {
		return func() {}
	}
	done := make(chan struct{})
	r.removing = map[protocol.DeploymentName]chan struct{}{}
	for _, v := range remove {
		r.removing[v.Deployment] = done
	}
	return func() {
		r.mu.Lock()
		r.removing = nil
		r.mu.Unlock()
		close(done)
	}
}

// afterRemoval waits until the volumes of a deployment are not being removed.
func (r *Runner) afterRemoval(ctx context.Context, name protocol.DeploymentName) error {
	r.mu.Lock()
	done := r.removing[name]
	r.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// measure fills in the size of a volume that was retained just now.
func (r *Runner) measure(before plan.Volumes, v *plan.RetainedVolume) {
	if slices.ContainsFunc(before.Retained, func(b plan.RetainedVolume) bool { return b.Deployment == v.Deployment && b.Name == v.Name }) {
		return
	}
	bytes, err := r.o.Host.VolumeBytes(r.ctx, engine.Volume{Deployment: v.Deployment, Name: v.Name})
	if err != nil {
		r.log.WarnContext(r.ctx, "size of a volume not known", "deployment_id", v.Deployment, "volume", v.Name, "err", err)
	}
	v.Bytes = bytes
}

// removeVolumes removes the volumes of a deployment whose removal includes them.
func (r *Runner) removeVolumes(ctx context.Context, name protocol.DeploymentName) error {
	present, err := r.o.Host.Volumes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range present {
		if v.Deployment == name {
			errs = append(errs, r.o.Host.RemoveVolume(ctx, v))
		}
	}
	return errors.Join(errs...)
}
