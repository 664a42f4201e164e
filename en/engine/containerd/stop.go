package containerd

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/protocol"
)

// killTimeout is how long a killed process may take to be gone. One that takes
// longer hangs in the kernel, for instance on a disk that does not answer.
const killTimeout = 10 * time.Second

// Stop ends a container.
func (e *Engine) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	ctx, k := e.in(ctx), marks.Key(id)
	unlock, err := e.locks.Lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := e.client.LoadContainer(ctx, k)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return e.fault(err, protocol.InternalError, "stop "+id.String())
	}
	labels, err := c.Labels(ctx)
	if err != nil {
		return e.fault(err, protocol.InternalError, "stop "+id.String())
	}
	name, own := parseStop(labels[marks.Stop])
	if grace == 0 {
		grace = own
	}
	sig, err := signal.ParseSignal(name)
	if err != nil {
		sig = syscall.SIGTERM
	}
	return e.end(ctx, c, sig, grace)
}

// end signals a container's process, kills it after grace, and clears its task.
// A grace of 0 kills at once. The caller holds the lock.
func (e *Engine) end(ctx context.Context, c client.Container, sig syscall.Signal, grace time.Duration) error {
	running, err := e.clearTask(ctx, c)
	if err != nil || !running {
		return err
	}
	t, err := c.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return e.fault(err, protocol.InternalError, "stop "+c.ID())
	}
	// Wait's stream ends with this context, so that no goroutine outlives us.
	wctx, cancel := context.WithCancel(ctx)
	exited, err := t.Wait(wctx)
	if err != nil {
		cancel()
		return e.fault(err, protocol.InternalError, "stop "+c.ID())
	}
	defer func() { cancel(); <-exited }()
	ended := false
	if grace > 0 {
		ended, err = e.kill(ctx, t, exited, sig, grace)
		if err != nil {
			return err
		}
	}
	if !ended {
		if ended, err = e.kill(ctx, t, exited, syscall.SIGKILL, killTimeout); err != nil {
			return err
		}
	}
	if !ended {
		return engine.Errorf(protocol.InternalError, "stop %s: its process does not end %s after it was killed: it may hang on a device", c.ID(), killTimeout)
	}
	_, err = e.clearTask(ctx, c)
	return err
}

// kill signals a task and reports whether it exited within grace.
func (e *Engine) kill(ctx context.Context, t client.Task, exited <-chan client.ExitStatus, sig syscall.Signal, grace time.Duration) (bool, error) {
	if err := t.Kill(ctx, sig); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		return false, e.fault(err, protocol.InternalError, "signal "+t.ID())
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case st, open := <-exited:
		if open && st.Error() != nil {
			return false, e.fault(st.Error(), protocol.InternalError, "wait for the end of "+t.ID())
		}
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Remove removes a container and all that belongs to it alone.
func (e *Engine) Remove(ctx context.Context, id engine.ID) error {
	ctx, k := e.in(ctx), marks.Key(id)
	unlock, err := e.locks.Lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	return e.remove(ctx, k, id)
}

// remove does not stop at the record: each part may be there without the
// others. The record goes last but for our own files, so that a remove that was
// cut off is seen and done again. The caller holds the lock.
func (e *Engine) remove(ctx context.Context, k string, id engine.ID) error {
	what := "remove " + id.String()
	c, err := e.client.LoadContainer(ctx, k)
	found := err == nil
	if err != nil && !errdefs.IsNotFound(err) {
		return e.fault(err, protocol.InternalError, what)
	}
	if found {
		if err := e.end(ctx, c, syscall.SIGKILL, 0); err != nil {
			return err
		}
	}
	// From here on each step leaves something behind where it is cut short.
	ctx, cancel := e.toTheEnd(ctx)
	defer cancel()
	if !found {
		if err := e.clearLeftovers(ctx, k); err != nil {
			return err
		}
	}
	e.names.Forget(k)
	e.forward.Remove(k)
	if err := e.net.Detach(ctx, k); err != nil {
		return e.fault(err, protocol.InternalError, what)
	}
	if found {
		if err := c.Delete(ctx, client.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
			return e.fault(err, protocol.InternalError, what)
		}
	} else if err := e.removeSnapshots(ctx, k); err != nil {
		return e.fault(err, protocol.InternalError, what)
	}
	if err := e.logs.Keep(k); err != nil {
		e.log.WarnContext(ctx, "log of a removed container not kept", "container", id.String(), "err", err)
	}
	if err := os.RemoveAll(e.dir(k)); err != nil {
		return e.fault(err, protocol.InternalError, what)
	}
	if err := e.names.Refresh(ctx, string(id.Deployment)); err != nil {
		return e.fault(err, protocol.InternalError, what)
	}
	return nil
}

// removeSnapshots removes what a creation that was cut off left.
func (e *Engine) removeSnapshots(ctx context.Context, k string) error {
	snapshotter, err := e.snapshots(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{k, k + "-view"} {
		if err := e.client.SnapshotService(snapshotter).Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}
