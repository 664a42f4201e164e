// Package failure gives the errors of registries their kinds.
package failure

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/colonyfleet/colony/protocol"
)

// Of gives an error of a registry its kind: NotFound where the registry has no such content, Denied
// where it wants other credentials, Invalid where it refuses the request, and Unavailable where it
// is not reachable.
func Of(ctx context.Context, verb, ref string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%s %s: %w", verb, ref, cause)
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return err
	}
	kind := protocol.Unavailable
	if te, ok := errors.AsType[*transport.Error](err); ok {
		switch {
		case te.StatusCode == http.StatusNotFound:
			return protocol.Errorf(protocol.NotFound, "%s %s: the registry does not have it", verb, ref)
		case te.StatusCode == http.StatusUnauthorized, te.StatusCode == http.StatusForbidden:
			return protocol.Errorf(protocol.Denied, "%s %s: the registry wants other credentials: %w", verb, ref, err)
		case te.StatusCode == http.StatusTooManyRequests, te.StatusCode == http.StatusRequestTimeout:
		case te.StatusCode < 500:
			kind = protocol.Invalid
		}
	}
	return protocol.Errorf(kind, "%s %s: %w", verb, ref, err)
}

// Lacks says how a thing is pushed where an error is that the registry does not have it.
func Lacks(err error, how string) error {
	if protocol.KindOf(err) != protocol.NotFound {
		return err
	}
	return protocol.Errorf(protocol.NotFound, "%w: push it there, %s", err, how)
}
