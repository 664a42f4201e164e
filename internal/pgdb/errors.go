package pgdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/colonyfleet/colony/protocol"
)

// SQLSTATE codes (PostgreSQL documentation, appendix A) that a caller's fate
// hangs on.
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	readOnly             = "25006" // a standby, or one that is being demoted
	diskFull             = "53100"
	lockNotAvailable     = "55P03" // not within lock_timeout
)

// retryable reports whether the same transaction may succeed when run once more, and
// is known not to have been committed.
func retryable(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == serializationFailure || pg.Code == deadlockDetected
	}
	return pgconn.SafeToRetry(err) && !isConnect(err)
}

func isConnect(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// Classify gives an error of the driver its kind and says what was tried. Errors
// that have a kind already, and nil, pass.
func Classify(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return err
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return protocol.Errorf(kindOf(pg.Code), "%s: %w", what, err)
	}
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case isConnect(err), isNet, pgconn.SafeToRetry(err), pgconn.Timeout(err),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, context.DeadlineExceeded), strings.Contains(err.Error(), "conn closed"):
		return protocol.Errorf(protocol.Unavailable, "%s: the database is not reachable: %w", what, err)
	}
	return protocol.Errorf(protocol.Internal, "%s: %w", what, err)
}

func kindOf(code string) protocol.Kind {
	switch code {
	case uniqueViolation:
		return protocol.Conflict
	case serializationFailure, deadlockDetected, readOnly, diskFull, lockNotAvailable:
		return protocol.Unavailable
	case "57P01", "57P02", "57P03", "57014", "25P03": // shut down, crashed, starting; statement cancelled; transaction idle for too long
		return protocol.Unavailable
	}
	switch code[:min(2, len(code))] {
	case "22": // data that no column can hold, such as NUL in a text
		return protocol.Invalid
	case "08", "53", "58": // connection, resources, its system
		return protocol.Unavailable
	}
	return protocol.Internal
}
