package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
)

// containerd keeps a task whose removal was cancelled in its table and shows it no
// more: the next start finishes the removal.
func TestCancelledRemovalIsFinished(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	ctx := r.in(t.Context())
	for wait := 2 * time.Millisecond; wait < 40*time.Millisecond; wait += 3 * time.Millisecond {
		r.run(t, c)
		if _, err := r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: marks.Key(c.ID), Signal: 9}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: marks.Key(c.ID)}); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, wait)
		_, _ = r.client.TaskService().Delete(short, &tasks.DeleteTaskRequest{ContainerID: marks.Key(c.ID)}) // cancelled, or done before
		cancel()
	}
	r.run(t, c)
}

// What a killed containerd left of a task that it was making keeps no later start away.
func TestForgottenFolderIsRemoved(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	state := filepath.Join(r.daemon.Dir, "c", "state", "io.containerd.runtime.v2.task", r.opts.Namespace)
	work := filepath.Join(r.daemon.Dir, "c", "root", "io.containerd.runtime.v2.task", r.opts.Namespace, marks.Key(c.ID))
	for _, dir := range []string{filepath.Join(state, marks.Key(c.ID), "rootfs"), filepath.Join(state, "other"), work} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(work, filepath.Join(state, marks.Key(c.ID), "work")); err != nil {
		t.Fatal(err)
	}
	r.run(t, c)
	if _, err := os.Stat(filepath.Join(state, "other")); err != nil {
		t.Errorf("the folder of another task: %v", err)
	}
}

// A command that hangs for longer than its clearing away may take leaves nothing.
func TestHungCommandLeavesNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	r.cleanup = 3 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if _, err := r.Exec(ctx, c.ID, []string{"/toolbox", "hang"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the command ended with %v, want the end of its time", err)
	}
	if left, err := filepath.Glob(filepath.Join(r.opts.StateDir, "fifo", "*")); err != nil || len(left) > 0 {
		t.Errorf("pipes left: %q %v", left, err)
	}
	pids, err := r.client.TaskService().ListPids(r.in(t.Context()), &tasks.ListPidsRequest{ContainerID: marks.Key(c.ID)})
	if err != nil || len(pids.Processes) != 1 {
		t.Errorf("processes %v %v, want that of the container alone", pids, err)
	}
}

// What a killed agent left of its commands is cleared away at the next start.
func TestLeftPipesAreCleared(t *testing.T) {
	t.Parallel()
	r := setup(t)
	left := filepath.Join(r.opts.StateDir, "fifo", "123")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

// The folder of a task that an earlier daemon left is removed by the first start that does not
// get past it.
func TestFolderOfAnEarlierDaemon(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var made atomic.Int32
	e := r.open(t, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/containerd.services.tasks.v1.Tasks/Create" {
			made.Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}))
	c := r.container("wait")
	folder := filepath.Join(r.daemon.Dir, "c", "state", "io.containerd.runtime.v2.task", r.opts.Namespace, marks.Key(c.ID))
	if err := os.MkdirAll(filepath.Join(folder, "rootfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	socket, err := os.Stat(r.daemon.Socket)
	if err != nil {
		t.Fatal(err)
	}
	before := socket.ModTime().Add(-time.Second)
	if err := os.Chtimes(folder, before, before); err != nil {
		t.Fatal(err)
	}
	if err := e.Pull(t.Context(), r.image, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if n := made.Load(); n != 2 {
		t.Errorf("the daemon was asked %d times to make the task, want twice", n)
	}

	// It was killed in the middle of the removal of a folder: no later one succeeds.
	half := filepath.Join(filepath.Dir(folder), "."+marks.Key(c.ID))
	if err := os.MkdirAll(filepath.Join(half, "rest"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(half, before, before); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int32{2, 1} {
		if err := e.Stop(t.Context(), c.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		made.Store(0)
		if err := e.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if n := made.Load(); n != want {
			t.Errorf("start %d: the daemon was asked %d times to make the task, want %d", i, n, want)
		}
	}
}

// A task that the daemon takes away before it is started is made once more.
func TestTaskThatVanishes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var starts atomic.Int32
	e := r.open(t, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/containerd.services.tasks.v1.Tasks/Start" && starts.Add(1)%3 != 0 {
			return status.Error(codes.NotFound, "task not found")
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}))
	c := r.container("wait")
	if err := e.Pull(t.Context(), r.image, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	all, err := e.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != engine.Running || all[0].Restarts != 0 {
		t.Errorf("listed %+v (%v), want it to run for the first time", all, err)
	}
	if n := starts.Load(); n != 3 {
		t.Errorf("%d starts, want 3", n)
	}
}
