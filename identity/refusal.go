package identity

import (
	"errors"
	"fmt"
	"slices"
)

// A Code says why a machine gets no certificate.
type Code string

// The codes.
const (
	TokenUnknown   Code = "token_unknown"   // no such token, or its secret is another one
	TokenExpired   Code = "token_expired"   // its time is over
	TokenExhausted Code = "token_exhausted" // it was used as often as it may be
	WrongSite      Code = "wrong_site"      // the token is for another site, or another kind of machine
	NameTaken      Code = "name_taken"      // a machine with another key has the name
	NotEnrolled    Code = "not_enrolled"    // a renewal for a machine that was removed, or never enrolled
	Revoked        Code = "revoked"         // its certificate was revoked
	Pending        Code = "pending"         // it has no token, and waits until its key is approved
	PendingFull    Code = "pending_full"    // it has no token, and as many wait as may
	Rejected       Code = "rejected"        // it has no token, and its key was rejected
	Invalid        Code = "invalid"         // the question itself is wrong
	Unavailable    Code = "unavailable"     // try again later
)

// Proved reports whether a machine that was refused with the code had proved something, a token or a key.
// A machine that has proved nothing must not fill records.
func (c Code) Proved() bool {
	return !slices.Contains([]Code{TokenUnknown, Pending, PendingFull, Rejected, Invalid, Unavailable}, c)
}

// A Refusal is an error with a code.
type Refusal struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // what is wrong, and what to do
	// Key is what alone the machine has proved, as in Claim, so that refusals are counted by it: a name of its
	// choice could be anybody's. Empty: by the name.
	Key string `json:"-"`
}

// Error returns code and message.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Message }

// Refuse makes a refusal.
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of an error: Unavailable where it is no refusal.
func CodeOf(err error) Code {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Code
	}
	return Unavailable
}

// A Claim is what a machine that has no certificate asks for.
type Claim struct {
	Token  string // id; empty: it has no token
	Secret []byte // secret of the join token
	Name   Name   // whom it says to be
	Key    string // SHA-256 of its public key in hex, see KeySum
	Device string // its serial number, where it has no token; it is not verified
	Remote string // its address
}
