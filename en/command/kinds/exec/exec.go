// Package exec executes the command that runs a program in a container for a person: it is the node's end of the session.
package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// Options are what the command needs of the agent. All are required.
type Options struct {
	Records func() []plan.Record
	List    func(ctx context.Context) ([]engine.Status, error)
	Open    func(ctx context.Context, id engine.ID, p engine.Program) (engine.Process, error)
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Exec, Run: func(ctx context.Context, r command.Request) (string, error) {
		var request wire.ExecRequest
		if err := protocol.Unmarshal(r.Command.Args, &request); err != nil {
			return "", command.Failf(wire.BadArguments, "%v", err)
		}
		c, err := command.One(ctx, o.Records(), o.List, request.Subject)
		if err != nil {
			return "", err
		}
		s := &terminal{End: segments.New(r.Command.ID, request.Key, r.Live), o: o, id: c.ID, began: make(chan struct{})}
		return s.run(ctx, &request)
	}}
}

// A terminal is the end of a session at its program.
type terminal struct {
	*segments.End
	o     Options
	id    engine.ID
	began chan struct{} // closed once it is said that the program runs
}

// run runs the program until it, or ctx, has ended.
func (s *terminal) run(ctx context.Context, request *wire.ExecRequest) (string, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	reader, input := io.Pipe()
	program := engine.Program{
		Name: string(s.Session), Arguments: request.Arguments, Terminal: request.Terminal, Columns: request.Columns, Rows: request.Rows,
		Output: &writer{s, ctx, wire.Stdout}, Errors: &writer{s, ctx, wire.Stderr},
	}
	if request.Input {
		program.Input = reader
	} else {
		_ = reader.Close() // it never fails, as those below
	}
	process, err := s.o.Open(ctx, s.id, program)
	if err != nil {
		_ = reader.Close()
		return "", failed(err, s.id)
	}
	err = s.Peer.Write(ctx, &wire.Record{Kind: wire.Began, Name: s.id.Component + "/" + s.id.Name})
	close(s.began)
	if err != nil {
		end(err)
	}
	var group sync.WaitGroup
	var code int32
	var failure error // why there is no exit code
	group.Go(func() {
		code, failure = process.Wait()
		_ = reader.Close() // ends a write that waits
		err := failure
		if err == nil {
			err = s.Peer.Write(ctx, &wire.Record{Kind: wire.Exit, Code: code})
		}
		if err != nil {
			end(err)
		}
		s.Peer.Close()
	})
	group.Go(func() { end(s.Receive(ctx)) })
	group.Go(func() {
		end(s.Peer.Serve(ctx, func(list []wire.Record) error { return do(ctx, list, process, input) }))
	})
	err = s.Peer.Send(ctx, s.Send)
	end(err)
	_ = reader.Close()
	_ = input.Close()
	group.Wait()
	if err == nil {
		err = failure // Send may have seen that no more comes before it saw why
	}
	if failure != nil {
		return "", err
	}
	return fmt.Sprintf("exit code %d", code), err
}

// failed says why a program was not started.
func failed(err error, id engine.ID) error {
	if protocol.KindOf(err) == protocol.NotFound {
		return command.Failf(wire.NoSuchSubject, "container %s/%s does not run", id.Component, id.Name)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return command.Failf(wire.ExecutionFailed, "%v", err)
}

// A writer writes output as records.
type writer struct {
	s    *terminal
	ctx  context.Context
	kind wire.RecordKind
}

// Write writes, once it was said that the program runs.
func (w *writer) Write(b []byte) (int, error) {
	select {
	case <-w.s.began:
	case <-w.ctx.Done():
		return 0, context.Cause(w.ctx)
	}
	if err := w.s.Peer.Write(w.ctx, &wire.Record{Kind: w.kind, Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}

// do does what records say.
func do(ctx context.Context, list []wire.Record, p engine.Process, input *io.PipeWriter) error {
	for i := range list {
		r := &list[i]
		switch r.Kind { //nolint:exhaustive // the others go up
		case wire.Stdin:
			_, _ = input.Write(r.Data) // a program that has ended reads no more
		case wire.StdinEnd:
			_ = input.Close() // it never fails
		case wire.Resize:
			if err := p.Resize(ctx, r.Columns, r.Rows); err != nil {
				return err
			}
		case wire.Signal:
			if err := p.Signal(ctx, r.Name); err != nil && protocol.KindOf(err) != protocol.Invalid { // such as one that only a later system has
				return err
			}
		}
	}
	return nil
}
