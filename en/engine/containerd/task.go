package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/hostkernel"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// cleanupTimeout bounds what is done to its end although the caller's context
	// has ended.
	cleanupTimeout = 30 * time.Second
	// shimTimeout is how long a shim without a task may take to end by itself.
	shimTimeout = 5 * time.Second
)

// toTheEnd returns a context for steps that leave something behind where they are
// cut short: the end of ctx does not end it, a deadline of its own does.
func (e *Engine) toTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), e.cleanup)
}

// clearTask removes a task that has ended or never began, after noting how it
// ended, and what an earlier removal left that was cut short. It reports whether the
// task runs. The caller holds the lock.
func (e *Engine) clearTask(ctx context.Context, c client.Container) (running bool, err error) {
	t, err := c.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return false, e.clearLeftovers(ctx, c.ID())
	}
	if err != nil {
		return false, e.fault(err, protocol.InternalError, "look up the process of "+c.ID())
	}
	st, err := t.Status(ctx)
	if err != nil && !errdefs.IsNotFound(err) {
		return false, e.fault(err, protocol.InternalError, "look up the process of "+c.ID())
	}
	clean, cancel := e.toTheEnd(ctx)
	defer cancel()
	switch st.Status {
	case client.Running, client.Paused, client.Pausing:
		return true, nil
	case client.Stopped:
		return false, e.reap(clean, c, t, st)
	case client.Created, client.Unknown:
	}
	if _, err := t.Delete(clean, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
		return false, e.fault(err, protocol.InternalError, "clear the process of "+c.ID())
	}
	return false, e.clearLeftovers(clean, c.ID())
}

// reap writes down how a task ended, so that it is known after the task, and a
// reboot, and frees the task and its shim. The caller holds the lock.
func (e *Engine) reap(ctx context.Context, c client.Container, t client.Task, st client.Status) error {
	labels := map[string]string{marks.Exit: marks.FormatExit(st.ExitStatus, st.ExitTime), marks.OOM: ""}
	if e.outOfMemory(ctx, c.ID()) {
		labels[marks.OOM] = "true"
	}
	if _, err := c.SetLabels(ctx, labels); err != nil {
		return e.fault(err, protocol.InternalError, "note the exit of "+c.ID())
	}
	if _, err := t.Delete(ctx); err != nil {
		if !errdefs.IsNotFound(err) {
			return e.fault(err, protocol.InternalError, "clear the process of "+c.ID())
		}
		return e.clearLeftovers(ctx, c.ID())
	}
	return nil
}

// outOfMemory reports whether the kernel killed a process of an ended container for want of memory.
// The container's control group says so until its task is removed; shortly before that, the label
// of the container records it.
func (e *Engine) outOfMemory(ctx context.Context, k string) bool {
	if kills, known := hostkernel.OOMKills(e.cgroup() + "/" + k); known {
		return kills > 0
	}
	r, err := e.client.ContainerService().Get(ctx, k)
	return err == nil && r.Labels[marks.OOM] == "true"
}

// clearLeftovers removes what is left of a task that containerd shows no more: one
// whose removal was cut short stays in its table, unseen, and makes each later start
// fail with "already exists"; its shim runs on. The caller holds the lock.
func (e *Engine) clearLeftovers(ctx context.Context, k string) error {
	ctx, cancel := e.toTheEnd(ctx)
	defer cancel()
	_, err := e.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: k})
	if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
		return e.fault(err, protocol.InternalError, "clear the process of "+k)
	}
	return e.endShims(ctx, k)
}

// endShims waits until no shim of a container is left, and kills one that does not
// end by itself.
func (e *Engine) endShims(ctx context.Context, k string) error {
	for began := time.Now(); ; {
		all, err := shims.Find(e.opts.Address, e.opts.Namespace)
		if err != nil {
			return err
		}
		left := 0
		for _, s := range all {
			if s.Container != k {
				continue
			}
			left = s.PID
			if time.Since(began) < shimTimeout {
				continue
			}
			e.log.WarnContext(ctx, "shim without a task killed", "container", k, "pid", s.PID)
			if err := s.Kill(); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return engine.Errorf(protocol.InternalError, "clear the process of %s: its shim, process %d, does not end: it may hang on a device", k, left)
		}
	}
}

// removeBundle removes the folder of a task that is left after containerd was killed while it made
// or removed the task. The daemon has no record of such a folder and never removes it, and each
// later start fails with the error why, which names the folder. removeBundle does nothing while
// containerd knows a task of the container, or a shim of it runs. The caller holds the lock.
func (e *Engine) removeBundle(ctx context.Context, k string, why error) error {
	left := shims.FolderOf(why, e.opts.Namespace, k)
	if left == "" {
		return nil
	}
	if _, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: k}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return err
	}
	if err := e.endShims(ctx, k); err != nil {
		return err
	}
	e.log.WarnContext(ctx, "folder of a task that containerd has forgotten removed", "container", k, "path", left)
	rootFS := filepath.Join(string(left), "rootfs")
	if err := mount.UnmountAll(rootFS, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount what containerd left in %s: %w", rootFS, err)
	}
	return left.Remove()
}
