package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/logfile"
	"github.com/colonyfleet/colony/protocol"
)

// drainTimeout is how long the output of a command that has ended is read on: a
// child that it left behind may hold it open for ever.
const drainTimeout = 500 * time.Millisecond

// Exec runs a command in a running container. It takes no lock, so that a slow
// probe never delays a stop.
func (e *Engine) Exec(ctx context.Context, id engine.ID, command []string) (engine.ExecResult, error) {
	ctx = e.in(ctx)
	fail := func(err error) (engine.ExecResult, error) {
		if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
			return engine.ExecResult{}, protocol.Errorf(protocol.NotFound, "execute in %s: it does not run: %w", id, err)
		}
		return engine.ExecResult{}, e.fault(tidy(err), protocol.ProbeFailed, "execute in "+id.String())
	}
	if len(command) == 0 {
		return fail(errors.New("no command given"))
	}
	c, err := e.client.LoadContainer(ctx, key(id))
	if err != nil {
		return fail(err)
	}
	spec, err := c.Spec(ctx)
	if err != nil {
		return fail(err)
	}
	t, err := c.Task(ctx, nil)
	if err != nil {
		return fail(err)
	}
	p := *spec.Process
	p.Args, p.Terminal = command, false
	out := logfile.Tail{Max: engine.MaxOutput}
	creator := cio.NewCreator(cio.WithStreams(nil, &out, &out), cio.WithFIFODir(filepath.Join(e.opts.StateDir, "fifo")))
	process, err := t.Exec(ctx, "exec-"+rand.Text(), &p, creator)
	if err != nil {
		return fail(err)
	}
	code, err := e.wait(ctx, process)
	if err != nil {
		return fail(err)
	}
	return engine.ExecResult{ExitCode: code, Output: out.Bytes()}, nil
}

// wait starts a process, waits for its end or that of ctx, and removes it.
func (e *Engine) wait(ctx context.Context, p client.Process) (code int32, err error) {
	defer func() {
		clean, cancel := e.toTheEnd(ctx)
		defer cancel()
		if _, failed := p.Delete(clean, client.WithProcessKill); failed != nil && !errdefs.IsNotFound(failed) && err == nil {
			err = failed
		}
	}()
	wctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	exited, err := p.Wait(wctx)
	if err != nil {
		return 0, err
	}
	defer func() { stop(); <-exited }()
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case st := <-exited:
		code, _, err := st.Result()
		drain(p.IO())
		return int32(code), err
	case <-ctx.Done():
		clean, cancel := e.toTheEnd(ctx)
		defer cancel()
		if err := p.Kill(clean, syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
			return 0, errors.Join(context.Cause(ctx), err)
		}
		return 0, context.Cause(ctx)
	}
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
