package containerd

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/protocol"
)

// Exec runs a command in a running container. It takes no lock, so that a slow
// probe never delays a stop.
func (e *Engine) Exec(ctx context.Context, id engine.ID, command []string) (engine.ExecResult, error) {
	ctx = e.in(ctx)
	if len(command) == 0 {
		return engine.ExecResult{}, e.notRun(errors.New("no command given"), protocol.ProbeFailed, id)
	}
	code, output, err := e.programs.Exec(ctx, marks.Key(id), command)
	if err != nil {
		return engine.ExecResult{}, e.notRun(err, protocol.ProbeFailed, id)
	}
	return engine.ExecResult{ExitCode: code, Output: output}, nil
}

// Open starts a program in a running container. It takes no lock either.
func (e *Engine) Open(ctx context.Context, id engine.ID, p engine.Program) (engine.Process, error) {
	process, err := e.programs.Open(e.in(ctx), marks.Key(id), p)
	if err != nil {
		return nil, e.notRun(err, protocol.StartFailed, id)
	}
	return process, nil
}

// notRun says why a program does not run in a container.
func (e *Engine) notRun(err error, code protocol.Code, id engine.ID) error {
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return protocol.Errorf(protocol.NotFound, "execute in %s: it does not run: %w", id, err)
	}
	return e.fault(tidy(err), code, "execute in "+id.String())
}
