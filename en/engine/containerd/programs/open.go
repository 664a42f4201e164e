package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// prefix begins the id of each process of Open.
	prefix = "session-"
	// hangUpTime is how long a program may go on after it was hung up.
	hangUpTime = 2 * time.Second
	// drainEvery is the interval at which the output of a program that has ended is checked for bytes
	// that are not read.
	drainEvery = 50 * time.Millisecond
	// lookEvery is how often is looked whether children of a program that was hung up have ended.
	lookEvery = 250 * time.Millisecond
)

// A process is a program that a person uses.
type process struct {
	of        *Programs
	container string
	ctx       context.Context
	task      client.Task
	process   client.Process
	id        string
	exited    <-chan client.ExitStatus
	stop      context.CancelFunc // ends the wait for exited
	outputs   []*output
}

// Open starts a program, see engine.Programs.
func (p *Programs) Open(ctx context.Context, container string, program engine.Program) (engine.Process, error) {
	t, spec, err := p.task(ctx, container)
	if err != nil {
		return nil, err
	}
	spec.Args, spec.Terminal = program.Arguments, program.Terminal
	if program.Terminal {
		spec.ConsoleSize = &specs.Box{Width: uint(program.Columns), Height: uint(program.Rows)}
		if !slices.ContainsFunc(spec.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
			spec.Env = append(slices.Clip(spec.Env), "TERM=xterm")
		}
	}
	id := prefix + program.Name
	spec.Env = append(slices.Clip(spec.Env), marker+id)
	out, errs := &output{to: program.Output}, &output{to: program.Errors}
	started := make(chan struct{})
	made := &process{of: p, container: container, ctx: ctx, task: t, id: id, outputs: []*output{out, errs}}
	var in io.Reader
	if program.Input != nil {
		in = &input{program.Input, func() {
			<-started
			made.closeInput()
		}}
	}
	opts := []cio.Opt{cio.WithStreams(in, out, errs), cio.WithFIFODir(p.o.FIFOs)}
	if program.Terminal {
		opts = append(opts, cio.WithTerminal)
	}
	p.note(made.id, true)
	if err := made.start(t, spec, cio.NewCreator(opts...), program); err != nil {
		close(started)
		p.note(made.id, false)
		return nil, err
	}
	close(started)
	return made, nil
}

func (p *Programs) note(id string, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open {
		p.open[id] = true
	} else {
		delete(p.open, id)
	}
}

// start starts the process; where that fails nothing of it is left.
func (o *process) start(t client.Task, spec specs.Process, creator cio.Creator, program engine.Program) (err error) {
	made, err := t.Exec(o.ctx, o.id, &spec, creator)
	if err != nil {
		return err
	}
	o.process = made
	defer func() {
		if err != nil {
			failed := o.of.remove(o.ctx, made)
			if failed != nil {
				o.of.leave(o.container, o.id)
			}
			err = errors.Join(err, failed)
		}
	}()
	wctx, stop := context.WithCancel(context.WithoutCancel(o.ctx))
	o.stop = stop
	if o.exited, err = made.Wait(wctx); err != nil {
		stop()
		return err
	}
	if err := made.Start(o.ctx); err != nil {
		stop()
		<-o.exited
		return err
	}
	if program.Terminal && program.Columns > 0 && program.Rows > 0 {
		if err := o.Resize(o.ctx, program.Columns, program.Rows); err != nil && !ended(err) {
			o.hangUp()
			stop()
			<-o.exited
			return fmt.Errorf("size its terminal: %w", err)
		}
	}
	return nil
}

// ended reports whether an error says that the process has ended.
func ended(err error) bool { return errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) }

// Resize sets the size of the terminal. A program that has ended has none.
func (o *process) Resize(ctx context.Context, columns, rows uint16) error {
	if err := o.process.Resize(ctx, uint32(columns), uint32(rows)); err != nil && !ended(err) {
		return err
	}
	return nil
}

// Signal sends a signal.
func (o *process) Signal(ctx context.Context, name string) error {
	number, err := command.ParseSignal(name)
	if err != nil {
		return err
	}
	if err := o.process.Kill(ctx, syscall.Signal(number)); err != nil && !ended(err) {
		return err
	}
	return nil
}

// closeInput says to the program that nothing follows on its input.
func (o *process) closeInput() {
	if o.process == nil {
		return
	}
	clean, cancel := o.of.o.ToTheEnd(o.ctx)
	defer cancel()
	_ = o.process.CloseIO(clean, client.WithStdinCloser) // it has ended
}

// hangUp ends the program and its children: by SIGHUP, and what goes on by SIGKILL.
func (o *process) hangUp() {
	_ = o.of.kill(o.ctx, o.process, syscall.SIGHUP)         // the next one is sent anyhow
	_, _ = o.of.signal(o.ctx, o.task, o.id, syscall.SIGHUP) // likewise
	timer, look := time.NewTimer(hangUpTime), time.NewTicker(lookEvery)
	defer timer.Stop()
	defer look.Stop()
	for exited := o.exited; exited != nil || !o.alone(); {
		select {
		case <-exited:
			exited = nil
		case <-look.C:
		case <-timer.C:
			_ = o.of.kill(o.ctx, o.process, syscall.SIGKILL)         // the removal says what is wrong
			_, _ = o.of.signal(o.ctx, o.task, o.id, syscall.SIGKILL) // where that fails the task is gone, or containerd is away and Sweep ends what is left
			return
		}
	}
}

// alone reports whether no child of the program runs, as far as is known.
func (o *process) alone() bool {
	children, err := o.of.signal(o.ctx, o.task, o.id, 0)
	return err != nil || children == 0
}

// Wait waits for the end of the program and removes its process.
func (o *process) Wait() (code int32, err error) {
	defer o.of.note(o.id, false)
	defer func() {
		failed := o.of.remove(o.ctx, o.process)
		if failed != nil {
			o.of.leave(o.container, o.id) // containerd is away: the program may go on
		}
		if err == nil {
			err = failed
		}
	}()
	defer o.stop()
	select {
	case st := <-o.exited:
		code, _, err := st.Result()
		if err == nil {
			err = o.drain()
		}
		return int32(code), err
	case <-o.ctx.Done():
		o.hangUp()
		return 0, context.Cause(o.ctx)
	}
}

// drain waits until all output is read. A child that the program left behind may hold it open for ever: then until nothing has come for drainTimeout.
func (o *process) drain() error {
	done := make(chan struct{})
	go func() { o.process.IO().Wait(); close(done) }() // it ends at the latest when the process is removed
	for silent := time.Now(); ; {
		if left, err := retry.SleepOr(o.ctx, drainEvery, done); err != nil {
			return context.Cause(o.ctx)
		} else if left {
			return nil
		}
		for _, out := range o.outputs {
			if out.busy.Load() || out.news.Swap(false) {
				silent = time.Now()
			}
		}
		if time.Since(silent) > drainTimeout {
			return nil
		}
	}
}

// An output says whether it is being written to.
type output struct {
	to   io.Writer
	busy atomic.Bool
	news atomic.Bool
}

// Write writes on.
func (o *output) Write(b []byte) (int, error) {
	o.busy.Store(true)
	defer o.busy.Store(false)
	o.news.Store(true)
	return o.to.Write(b)
}

// An input says when it has ended.
type input struct {
	from io.Reader
	end  func()
}

// Read reads.
func (i *input) Read(b []byte) (int, error) {
	n, err := i.from.Read(b)
	if err != nil {
		i.end()
	}
	return n, err
}

// leave notes that a program in a container could not be ended.
func (p *Programs) leave(container, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left[id] = container
}

// SweepLeft ends the programs that could not be ended before, as containerd was away.
func (p *Programs) SweepLeft(ctx context.Context) error {
	p.mu.Lock()
	left := maps.Clone(p.left)
	p.mu.Unlock()
	var errs []error
	for id, container := range left {
		t, _, err := p.task(ctx, container)
		if err == nil {
			err = p.end(ctx, t, id)
		}
		if err != nil && !ended(err) {
			errs = append(errs, fmt.Errorf("end a program in %s: %w", container, err))
			continue
		}
		p.mu.Lock()
		delete(p.left, id)
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Sweep ends, once, the programs that an earlier agent left in these containers.
func (p *Programs) Sweep(ctx context.Context, containers []string) error {
	p.mu.Lock()
	swept := p.swept
	p.mu.Unlock()
	if swept {
		return nil
	}
	var errs []error
	for _, c := range containers {
		if err := p.sweep(ctx, c); err != nil && !ended(err) {
			errs = append(errs, fmt.Errorf("end the programs in %s that an earlier agent left: %w", c, err))
		}
	}
	p.mu.Lock()
	p.swept = len(errs) == 0
	p.mu.Unlock()
	return errors.Join(errs...)
}

func (p *Programs) sweep(ctx context.Context, container string) error {
	t, _, err := p.task(ctx, container)
	if err != nil {
		return err
	}
	list, err := t.Pids(ctx)
	if err != nil {
		return err
	}
	for _, each := range list {
		if each.Info == nil {
			continue
		}
		info, err := typeurl.UnmarshalAny(each.Info)
		if err != nil {
			return err
		}
		details, ok := info.(*options.ProcessDetails)
		if !ok || !strings.HasPrefix(details.ExecID, prefix) {
			continue
		}
		p.mu.Lock()
		open := p.open[details.ExecID]
		p.mu.Unlock()
		if open {
			continue
		}
		if err := p.end(ctx, t, details.ExecID); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// end kills a process of another agent and removes it.
func (p *Programs) end(ctx context.Context, t client.Task, id string) error {
	left, err := t.LoadProcess(ctx, id, nil)
	if err != nil {
		return err
	}
	within, cancel := p.o.ToTheEnd(ctx)
	defer cancel()
	exited, err := left.Wait(within)
	if err != nil {
		return err
	}
	if err := p.kill(ctx, left, syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := p.signal(ctx, t, id, syscall.SIGKILL); err != nil {
		return err
	}
	<-exited // within ends it, too
	return p.remove(ctx, left)
}
