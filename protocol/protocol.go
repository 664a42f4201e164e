// Package protocol is the contract between the tiers of Colony: the messages that cross MQTT, the
// ids in their topics, their encoding and their digests. It does no I/O and has no clock; it needs
// the standard library and the CBOR codec only. The schema is colony.cddl beside this file; golden
// vectors in testdata hold the two together.
//
// A field's comment says its unit and what its absence means. If a field is newer than release
// 0.2.0, its comment, or that of its message, names its first release, as in "Since 0.3.0."
// testdata has the schema of each release from 0.2.0 on. The sender of a message owns its fields,
// unless a comment names another owner.
//
// Evolution: a new field takes a new integer key and "omitempty", so that a message without it
// keeps its bytes and its digest. A key is never used again. Receivers ignore keys that they do not
// know. A change that an old receiver would misread raises Version.
package protocol

import (
	"errors"
	"fmt"
)

// Version is the major version of the protocol; each message carries it.
//
//	1  first version
const Version = 1

// A Kind is the class of an error, the same in every tier. Kinds survive the
// wire: they map to HTTP status codes and MQTT reason codes. The list only grows.
type Kind string

// The kinds.
const (
	Invalid     Kind = "invalid"     // the input is wrong; the same call can never succeed
	NotFound    Kind = "not_found"   // what was named does not exist
	Conflict    Kind = "conflict"    // it exists already, or another caller changed it first
	Denied      Kind = "denied"      // the caller may not
	Unavailable Kind = "unavailable" // a part is away; the same call may succeed later
	Internal    Kind = "internal"    // a fault of Colony
)

// An Error is an error with a Kind. Message says what is wrong, where, and what to do.
type Error struct {
	Kind    Kind
	Message string
	Err     error // the cause, or nil
}

// Errorf returns an Error of a kind; %w in format keeps the cause.
func Errorf(kind Kind, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, or Internal.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}
