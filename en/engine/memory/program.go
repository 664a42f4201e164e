package memory

import (
	"context"
	"io"
	"sync"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// echo is a program that writes what it reads, and ends with its input.
func echo(_ context.Context, _ engine.Container, p engine.Program) int32 {
	if p.Input == nil {
		return 0
	}
	if _, err := io.Copy(p.Output, p.Input); err != nil {
		return 1
	}
	return 0
}

// A process is a program that the script plays.
type process struct {
	ctx    context.Context    // of Open
	end    context.CancelFunc // of the program
	played chan int32         // its code, once it has ended by itself

	mu       sync.Mutex // protects what follows
	signal   int
	signaled chan struct{} // closed with the first signal
}

// Open starts a program as the script has it.
func (e *Engine) Open(ctx context.Context, id engine.ID, p engine.Program) (engine.Process, error) {
	e.mu.Lock()
	err := e.enter(Open)
	c := e.containers[id]
	if err == nil && (c == nil || c.status.State != engine.Running) {
		err = protocol.Errorf(protocol.NotFound, "execute in %s: it does not run", id)
	}
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	spec, ended := c.spec, c.ended // of this run
	e.mu.Unlock()
	within, end := context.WithCancel(ctx)
	o := &process{ctx: ctx, end: end, played: make(chan int32, 1), signaled: make(chan struct{})}
	go func() { o.played <- e.opts.Open(within, spec, p) }()
	go func() {
		select {
		case <-ended:
			o.kill(9)
		case <-within.Done():
		}
	}()
	return o, nil
}

// kill ends the program by a signal.
func (o *process) kill(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.signal == 0 {
		o.signal = number
		close(o.signaled)
	}
}

// Resize does nothing.
func (o *process) Resize(context.Context, uint16, uint16) error { return nil }

// Signal ends the program: it minds none.
func (o *process) Signal(_ context.Context, name string) error {
	number, err := command.ParseSignal(name)
	if err != nil {
		return err
	}
	o.kill(number)
	return nil
}

// Wait waits for the end of the program.
func (o *process) Wait() (int32, error) {
	defer o.end()
	select {
	case code := <-o.played:
		return code, context.Cause(o.ctx) // which may be why it ended
	case <-o.signaled:
		o.mu.Lock()
		defer o.mu.Unlock()
		return int32(128 + o.signal), nil
	case <-o.ctx.Done():
		return 0, context.Cause(o.ctx)
	}
}
