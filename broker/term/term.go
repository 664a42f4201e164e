// Package term says for how long a connection may last: until its certificate ends, or no longer
// counts.
package term

import (
	"crypto/tls"
	"time"
)

// An Access knows how long connections may last.
type Access interface {
	// Term is for how long a connection of a listener may last from now on, where bounded is
	// true. The error says why it may not last any more.
	Term(listener string, s *tls.ConnectionState) (left time.Duration, bounded bool, err error)
}

// Begin calls end when the time of a connection is up, on another goroutine, unless the result is
// stopped; the result is nil where there is no such time, and where a is no Access. A timer ends it, and
// not a time of day: a clock that is set meanwhile ends no connection.
func Begin(a any, listener string, s *tls.ConnectionState, end func()) (*time.Timer, error) {
	terms, ok := a.(Access)
	if !ok || s == nil {
		return nil, nil
	}
	left, bounded, err := terms.Term(listener, s)
	if err != nil || !bounded {
		return nil, err
	}
	return time.AfterFunc(left, end), nil
}

// Check returns why a connection may not last any more; nil: it may, or a is no Access.
func Check(a any, listener string, s *tls.ConnectionState) error {
	terms, ok := a.(Access)
	if !ok || s == nil {
		return nil
	}
	_, _, err := terms.Term(listener, s)
	return err
}
