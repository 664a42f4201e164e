// Package volumes keeps the volumes of a node that outlived their deployments: it retains them
// for their time, measures them, and removes them, while nothing that needs them is begun.
package volumes

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// volumesEvery is the time between two looks at the volumes without a reason. What a
// restart of the agent does not count of a volume's retention is less.
const volumesEvery = 15 * time.Minute

// A Host has the volumes of the node.
type Host interface {
	// Volumes returns the volumes on the node.
	Volumes(ctx context.Context) ([]engine.Volume, error)
	// VolumeBytes returns the size of a volume, in bytes.
	VolumeBytes(ctx context.Context, v engine.Volume) (uint64, error)
	// RemoveVolume removes a volume with its data.
	RemoveVolume(ctx context.Context, v engine.Volume) error
	// Followed returns up to which position deployments were followed, as it says beside the volumes.
	Followed(ctx context.Context) (map[protocol.DeploymentName]protocol.Position, error)
	// Follow stores such a position, where it is later than what is stored.
	Follow(ctx context.Context, d protocol.DeploymentName, at protocol.Position) error
	// Forget removes that of a deployment of which the node has nothing.
	Forget(ctx context.Context, d protocol.DeploymentName) error
}

// Options are what a Keeper needs. All are required.
type Options struct {
	// Lock is that of the agent: what State returns and what is held of it are of one moment.
	Lock sync.Locker
	// State returns the desired state as it counts for volumes, and the records. The caller holds Lock.
	State func() (*protocol.NodeDesired, []plan.Record)
	// Observed lists the containers.
	Observed func(ctx context.Context) ([]engine.Status, error)
	// Save calls write, with Lock held, until it succeeds or ctx ends.
	Save func(ctx context.Context, write func() error) error
	// Store keeps which volumes are retained; it returns when they are durable.
	Store func(v plan.Volumes) error
	// Changed is called with Lock held when List may answer something else. It must not wait.
	Changed func()
	// Retain notifies that a deployment was removed, or a volume is to be.
	Retain notify.Signal
	Host   Host
	// Followed is plan.VolumesInput.Followed.
	Followed func(d protocol.DeploymentName) protocol.Position
	// Retention is how long a volume outlives its deployment. 0: for ever.
	Retention time.Duration
	// Now and Unsynced are those of the agent's clock.
	Now      func() time.Time
	Unsynced func() bool
	Logger   *slog.Logger
	// Stored is what Store had before.
	Stored plan.Volumes
}

// A Keeper retains, measures and removes the volumes that no deployment uses. Its methods may
// be called concurrently.
type Keeper struct {
	o   Options
	log *slog.Logger

	// Of what outlived its deployment; protected by the lock of the options.
	volumes plan.Volumes
	// removing are the deployments whose volumes are being removed; closed at the end.
	removing map[protocol.DeploymentName]chan struct{}
}

// New returns a Keeper, which looks at nothing before Run.
func New(o Options) *Keeper { return &Keeper{o: o, log: o.Logger, volumes: o.Stored} }

// List returns the volumes that outlived their deployments, at most
// protocol.MaxVolumes of them, and how many there are.
func (k *Keeper) List() (list []protocol.Volume, count int) {
	k.o.Lock.Lock()
	defer k.o.Lock.Unlock()
	for _, v := range k.volumes.Retained[:min(len(k.volumes.Retained), protocol.MaxVolumes)] {
		list = append(list, protocol.Volume{Deployment: v.Deployment, Name: v.Name, Bytes: v.Bytes, RemovedMillis: v.UnixMillis, Unsynced: v.Unsynced})
	}
	return list, len(k.volumes.Retained)
}

// Run retains, measures and removes volumes that no deployment uses, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(volumesEvery)
	defer tick.Stop()
	wait := retry.Backoff{Policy: retry.Policy{Min: time.Second, Max: 5 * time.Minute}}
	last := time.Now()
	for {
		now := time.Now()
		counted, err := k.reconcile(ctx, now.Sub(last))
		if counted {
			last = now
		}
		if err == nil {
			wait.Reset()
		} else if ctx.Err() == nil {
			k.log.WarnContext(ctx, "volumes not compared with the deployments, trying again", "err", err)
			_ = wait.WaitOr(ctx, k.o.Retain.C()) // its end ends the loop, too
			if ctx.Err() == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-k.o.Retain.C():
		case <-tick.C:
		}
	}
}

// reconcile compares the volumes on the node with its deployments once. elapsed is the time since
// the last time that was counted: it is once what is retained is stored, also where a volume could not be removed.
func (k *Keeper) reconcile(ctx context.Context, elapsed time.Duration) (counted bool, err error) {
	present, err := k.o.Host.Volumes(ctx)
	if err != nil {
		return false, err
	}
	observed, err := k.o.Observed(ctx)
	if err != nil {
		return false, err
	}
	followed, err := k.o.Host.Followed(ctx)
	if err != nil {
		return false, err
	}
	k.o.Lock.Lock()
	held := k.volumes
	desired, records := k.o.State()
	// What is begun from here on waits for k.removing.
	in := plan.VolumesInput{
		Desired: desired, Records: records, Present: present, Observed: observed, Followed: k.o.Followed,
		Elapsed: elapsed, Retention: k.o.Retention, UnixMillis: k.o.Now().UnixMilli(), Unsynced: k.o.Unsynced(),
	}
	next, remove := held.Update(in)
	unused := in.Unused(slices.Sorted(maps.Keys(followed)))
	release := k.hold(remove, unused)
	k.o.Lock.Unlock()
	failed, err := k.removeRetained(ctx, remove)
	for _, name := range unused {
		err = errors.Join(err, k.o.Host.Forget(ctx, name))
	}
	release()
	next = held.Keep(in, next, failed)
	if saved := k.save(ctx, next); saved != nil {
		return false, errors.Join(err, saved)
	}
	return true, errors.Join(err, k.measure(ctx, held, next))
}

// removeRetained removes volumes, and returns those that it could not remove.
func (k *Keeper) removeRetained(ctx context.Context, remove []plan.RetainedVolume) (failed []plan.RetainedVolume, err error) {
	var errs []error
	for _, v := range remove {
		if err := k.o.Host.RemoveVolume(ctx, v.Volume()); err != nil {
			failed, errs = append(failed, v), append(errs, err)
			continue
		}
		k.log.InfoContext(ctx, "volume removed", "deployment_id", v.Deployment, "volume", v.Name)
	}
	return failed, errors.Join(errs...)
}

// save stores which volumes are retained, and says so where others are.
func (k *Keeper) save(ctx context.Context, next plan.Volumes) error {
	return k.o.Save(ctx, func() error {
		if err := k.o.Store(next); err != nil {
			return err
		}
		same := slices.EqualFunc(next.Retained, k.volumes.Retained, func(a, b plan.RetainedVolume) bool { return a.Volume() == b.Volume() && a.Bytes == b.Bytes })
		k.volumes = next
		if !same {
			k.o.Changed()
		}
		return nil
	})
}

// hold marks the deployments whose volumes are about to be removed, or of which nothing is left, so that
// none of them is begun meanwhile, until release. The caller holds the lock.
func (k *Keeper) hold(remove []plan.RetainedVolume, unused []protocol.DeploymentName) (release func()) {
	if len(remove)+len(unused) == 0 {
		return func() {}
	}
	done := make(chan struct{})
	k.removing = map[protocol.DeploymentName]chan struct{}{}
	for _, v := range remove {
		k.removing[v.Deployment] = done
	}
	for _, name := range unused {
		k.removing[name] = done
	}
	return func() {
		k.o.Lock.Lock()
		k.removing = nil
		k.o.Lock.Unlock()
		close(done)
	}
}

// Begin waits until the volumes of a deployment are not being removed, and stores beside them that it is followed up to a position, or the later
// one that is known: the files of the agent may be set back to before that, and a removal of then is about other data.
func (k *Keeper) Begin(ctx context.Context, name protocol.DeploymentName, at protocol.Position) error {
	k.o.Lock.Lock()
	done := k.removing[name]
	if known := k.o.Followed(name); known.After(at) {
		at = known
	}
	k.o.Lock.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if at.IsZero() {
		return nil
	}
	return k.o.Host.Follow(ctx, name, at)
}

// measure stores the sizes of the volumes that were retained just now. That may take minutes.
func (k *Keeper) measure(ctx context.Context, before, now plan.Volumes) error {
	measured := now
	measured.Retained = slices.Clone(now.Retained)
	for i := range measured.Retained {
		v := &measured.Retained[i]
		if slices.ContainsFunc(before.Retained, func(b plan.RetainedVolume) bool { return b.Volume() == v.Volume() }) {
			continue
		}
		bytes, err := k.o.Host.VolumeBytes(ctx, v.Volume())
		if err != nil {
			k.log.WarnContext(ctx, "size of a volume not known", "deployment_id", v.Deployment, "volume", v.Name, "err", err)
		}
		v.Bytes = bytes
	}
	if slices.Equal(measured.Retained, now.Retained) {
		return nil
	}
	return k.save(ctx, measured)
}

// Remove removes the volumes of a deployment whose removal includes them.
func (k *Keeper) Remove(ctx context.Context, name protocol.DeploymentName) error {
	present, err := k.o.Host.Volumes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range present {
		if v.Deployment == name {
			errs = append(errs, k.o.Host.RemoveVolume(ctx, v))
		}
	}
	return errors.Join(errs...)
}
