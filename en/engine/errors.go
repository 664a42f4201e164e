package engine

import (
	"errors"
	"fmt"

	"github.com/colonyfleet/colony/protocol"
)

// An Error is why an engine could not do what it was asked, with the code that
// the deployment's status reports. Message says what is wrong and what to do.
type Error struct {
	Code    protocol.Code
	Message string
	Err     error // the cause, or nil
}

// Errorf returns an Error; %w in format keeps the cause.
func Errorf(code protocol.Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first Error in err's chain, or
// protocol.InternalError.
func CodeOf(err error) protocol.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return protocol.InternalError
}
