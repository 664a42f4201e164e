// Package programs runs programs in running containers: health checks, and programs that a person uses.
package programs

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/logfile"
)

// drainTimeout is how long the output of a command that has ended is read on: a
// child that it left behind may hold it open for ever.
const drainTimeout = 500 * time.Millisecond

// Options of Programs. All are required.
type Options struct {
	Client *client.Client
	// FIFOs is the directory of the pipes by which programs are talked to.
	FIFOs string
	// ToTheEnd returns a context for what is done after ctx has ended.
	ToTheEnd func(ctx context.Context) (context.Context, context.CancelFunc)
}

// Programs runs programs. Its methods may be called concurrently. Errors are those of containerd.
type Programs struct {
	o Options

	mu    sync.Mutex      // protects what follows
	open  map[string]bool // programs of Open that have not ended, by the id of their process
	swept bool
	left  map[string]string // containers of programs that could not be ended, by the id of their process
}

// New returns Programs.
func New(o Options) *Programs {
	return &Programs{o: o, open: map[string]bool{}, left: map[string]string{}}
}

// task returns that of a container, and how its process was started.
func (p *Programs) task(ctx context.Context, container string) (client.Task, specs.Process, error) {
	c, err := p.o.Client.LoadContainer(ctx, container)
	if err != nil {
		return nil, specs.Process{}, err
	}
	spec, err := c.Spec(ctx)
	if err != nil {
		return nil, specs.Process{}, err
	}
	t, err := c.Task(ctx, nil)
	if err != nil {
		return nil, specs.Process{}, err
	}
	return t, *spec.Process, nil
}

// Exec runs a command in a container and waits for its end, or for that of ctx.
func (p *Programs) Exec(ctx context.Context, container string, command []string) (code int32, output []byte, err error) {
	t, spec, err := p.task(ctx, container)
	if err != nil {
		return 0, nil, err
	}
	spec.Args, spec.Terminal = command, false
	out := logfile.Tail{Max: engine.MaxOutput}
	creator := cio.NewCreator(cio.WithStreams(nil, &out, &out), cio.WithFIFODir(p.o.FIFOs))
	process, err := t.Exec(ctx, "exec-"+rand.Text(), &spec, creator)
	if err != nil {
		return 0, nil, err
	}
	code, err = p.wait(ctx, process)
	return code, out.Bytes(), err
}

// wait starts a process, waits for its end or that of ctx, and removes it.
func (p *Programs) wait(ctx context.Context, process client.Process) (code int32, err error) {
	defer func() {
		if failed := p.remove(ctx, process); err == nil {
			err = failed
		}
	}()
	wctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	exited, err := process.Wait(wctx)
	if err != nil {
		return 0, err
	}
	defer func() { stop(); <-exited }()
	if err := process.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case st := <-exited:
		code, _, err := st.Result()
		drain(process.IO())
		return int32(code), err
	case <-ctx.Done():
		return 0, errors.Join(context.Cause(ctx), p.kill(ctx, process, syscall.SIGKILL))
	}
}

// remove removes a process, and kills it where it runs.
func (p *Programs) remove(ctx context.Context, process client.Process) error {
	clean, cancel := p.o.ToTheEnd(ctx)
	defer cancel()
	_, err := process.Delete(clean, client.WithProcessKill)
	if err == nil {
		return nil
	}
	if io := process.IO(); io != nil { // the client closes what it has made where it could remove the process, and not where that was removed with its container
		io.Cancel()
		io.Wait()
		_ = io.Close() // its files are closed in any case
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// kill sends a signal to a process, also where ctx has ended. One that has ended is no error.
func (p *Programs) kill(ctx context.Context, process client.Process, signal syscall.Signal) error {
	clean, cancel := p.o.ToTheEnd(ctx)
	defer cancel()
	if err := process.Kill(clean, signal); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		return err
	}
	return nil
}

// drain waits until all output is read, or for drainTimeout. The goroutine ends
// at the latest when Delete cancels the streams.
func drain(io cio.IO) {
	done := make(chan struct{})
	go func() { io.Wait(); close(done) }()
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
