package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/registryhosts"
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

func stalled(err error) bool {
	_, ok := errors.AsType[*registryhosts.StallError](err)
	return ok
}

// saidBy returns, after a colon, what a registry says of a refusal in its answer; "": nothing.
func saidBy(refusal remoteerrors.ErrUnexpectedStatus) string {
	var answer struct {
		Errors []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(refusal.Body, &answer) != nil || len(answer.Errors) == 0 || answer.Errors[0].Message == "" {
		return ""
	}
	return ": " + answer.Errors[0].Message
}

// pullFault is fault for errors of a pull.
func (e *Engine) pullFault(err error, ref string) error {
	what := "pull " + ref
	var unexpected remoteerrors.ErrUnexpectedStatus
	var netErr net.Error
	switch text := err.Error(); {
	case errors.As(err, &unexpected) && (unexpected.StatusCode == http.StatusUnauthorized || unexpected.StatusCode == http.StatusForbidden),
		errors.Is(err, docker.ErrInvalidAuthorization):
		return engine.Errorf(protocol.ImageUnauthorized, "%s: the registry refuses access, check the credentials of the node: %w", what, err)
	case errors.As(err, &unexpected) && unexpected.StatusCode == http.StatusInsufficientStorage:
		return engine.Errorf(protocol.NoSpace, "%s: the disk of the registry, or of the site's image cache, has no room for it, free some space there%s: %w", what, saidBy(unexpected), err)
	case strings.Contains(text, "no match for platform"):
		return engine.Errorf(protocol.Incompatible, "%s: the image is not made for this node's platform: %w", what, err)
	case strings.Contains(text, "unexpected commit digest"), strings.Contains(text, "unexpected commit size"),
		strings.Contains(text, "failed size validation"), strings.Contains(text, "wrong diff id"):
		return engine.Errorf(protocol.DigestMismatch, "%s: the registry served other bytes than the digest names: %w", what, err)
	case errdefs.IsNotFound(err):
		return engine.Errorf(protocol.ImageNotFound, "%s: the registry does not have it: %w", what, err)
	case errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(text, "unexpected EOF"):
		return engine.Errorf(protocol.Timeout, "%s: the connection to the registry broke: %w", what, err)
	case stalled(err):
		return engine.Errorf(protocol.Timeout, "%s: the registry stalled: %w", what, err)
	case !away(err) && !errors.Is(err, context.Canceled) && errors.As(err, &netErr):
		return engine.Errorf(protocol.Timeout, "%s: no registry can be reached: %w", what, err)
	default:
		return e.fault(err, protocol.InternalError, what)
	}
}
