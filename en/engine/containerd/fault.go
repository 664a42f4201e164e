package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// fault makes err, met while doing what, an engine.Error: with a code that err
// itself shows, or else with code.
func (e *Engine) fault(err error, code protocol.Code, what string) error {
	if _, ok := errors.AsType[*engine.Error](err); ok {
		return err
	}
	switch text := err.Error(); {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	case away(err):
		return engine.Errorf(protocol.EngineUnavailable, "%s: containerd at %s does not answer, start it or correct its address: %w", what, e.opts.Address, err)
	case errors.Is(err, syscall.ENOSPC), strings.Contains(text, "no space left on device"):
		return engine.Errorf(protocol.NoSpace, "%s: the disk is full, free some space: %w", what, err)
	default:
		return engine.Errorf(code, "%s: %w", what, err)
	}
}

// away reports whether err says that the daemon does not answer. An error of a
// registry may look similar, but carries no gRPC status.
func away(err error) bool {
	if errdefs.IsUnavailable(err) {
		return true
	}
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Unavailable
}
