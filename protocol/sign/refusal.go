package sign

import (
	"errors"
	"fmt"

	"github.com/colonyfleet/colony/protocol"
)

// A Reason says why a statement is refused. A report carries it in front of its text.
type Reason string

// The reasons. The list only grows.
const (
	// Unsigned: there is no statement where one is needed.
	Unsigned Reason = "unsigned"
	// Malformed: the statement is no COSE_Sign1 as this package writes it, or its payload
	// is not of its kind.
	Malformed Reason = "malformed"
	// WrongKind: it is a statement of another kind.
	WrongKind Reason = "wrong_kind"
	// UnknownKey: it is signed with a key that the receiver's key set does not have.
	UnknownKey Reason = "unknown_key"
	// BadSignature: the signature is not that of the payload.
	BadSignature Reason = "bad_signature"
	// WrongSite: it is signed for another site.
	WrongSite Reason = "wrong_site"
	// WrongNode: it is signed for other nodes.
	WrongNode Reason = "wrong_node"
	// Mismatch: the content does not match the signed digest.
	Mismatch Reason = "mismatch"
	// Stale: the receiver has followed a later statement about the same.
	Stale Reason = "stale"
)

// Reasons are all of them, in their order.
func Reasons() []Reason {
	return []Reason{Unsigned, Malformed, WrongKind, UnknownKey, BadSignature, WrongSite, WrongNode, Mismatch, Stale}
}

// A Refusal is why a statement does not count. It comes in a protocol.Error of kind
// Invalid: the same statement can never succeed at the same receiver, but for UnknownKey, which a
// later key set may end.
type Refusal struct {
	Reason  Reason
	Message string
}

// Error returns the reason and the message.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Message }

// refuse returns a Refusal as an error of kind Invalid.
func refuse(reason Reason, format string, args ...any) error {
	r := &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
	return &protocol.Error{Kind: protocol.Invalid, Message: r.Error(), Err: r}
}

// Refuse returns a Refusal as an error of kind Invalid, for what a receiver finds beside
// the signature.
func Refuse(reason Reason, format string, args ...any) error { return refuse(reason, format, args...) }

// ReasonOf returns why err refuses a statement, or "" where it does not.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Reason
	}
	return ""
}
