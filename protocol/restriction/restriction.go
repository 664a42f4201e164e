// Package restriction holds what a site reports of the nodes that a person has cordoned, drained or held: the kind of
// restriction, its actor and reason, when it ends, and what waits because of it. The LO of the site owns it.
// docs/adr/0015-restrictions.md says why it is so, docs/operations.md what each does.
//
// The package is pure. All of it is since release 0.3.0.
package restriction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Kind is what a person has restricted. The list only grows.
type Kind string

// The kinds. A node has at most one of Cordon and Drain, and at most one Hold.
const (
	Cordon Kind = "cordon" // nothing new is placed on the node; what runs stays
	Drain  Kind = "drain"  // as Cordon, and what can move to other nodes moves there
	Hold   Kind = "hold"   // nothing on the node is installed, updated, moved or removed
)

// Participle is the kind as what a node is, such as "cordoned".
func (k Kind) Participle() string {
	switch k {
	case Cordon:
		return "cordoned"
	case Drain:
		return "drained"
	case Hold:
		return "held"
	}
	return string(k)
}

const (
	// MaxReason bounds a reason, in bytes.
	MaxReason = 512
	// MaxFor is the longest time that a restriction may be set for: a year. One without an end has none.
	MaxFor = 366 * 24 * time.Hour
	// MaxWaits bounds the Waits of a Report.
	MaxWaits = 256
)

// CheckTerms returns what is wrong with the reason of a restriction, or with how long it is set for; 0: without an end.
func CheckTerms(reason string, lasts time.Duration) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return protocol.Errorf(protocol.Invalid, "a reason is missing: say why, for those who find the node restricted")
	case len(reason) > MaxReason || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }):
		return protocol.Errorf(protocol.Invalid, "reason of %d bytes: want one line of at most %d", len(reason), MaxReason)
	case lasts < 0 || lasts > 0 && lasts < time.Second || lasts > MaxFor:
		return protocol.Errorf(protocol.Invalid, "for %s: want 1s to %s, or nothing for until it is ended", lasts, MaxFor)
	}
	return nil
}

// A Restriction is one that is in force on a node.
type Restriction struct {
	// Kind says what it is.
	Kind Kind `cbor:"1,keyasint" json:"kind" enum:"cordon,drain,hold"`
	// Reason is why the restriction was set, in the words of its actor.
	Reason string `cbor:"2,keyasint" json:"reason"`
	// Actor is the person: the owner of the token at the CO, or the user of the site's machine. Absent: the CO does without tokens.
	Actor string `cbor:"3,keyasint,omitempty" json:"actor,omitempty" doc:"who asked: at the CO, or which user of the machine of the site's LO; absent: the CO does without tokens"`
	// Command is the id of the command that set it. Absent: it was set at the site's own machine.
	Command string `cbor:"4,keyasint,omitempty" json:"command,omitempty" doc:"the command that set it; absent: it was set at the machine of the site's LO"`
	// SetMillis is when it was set, in milliseconds since 1970 by the LO's clock, for people.
	SetMillis int64 `cbor:"5,keyasint" json:"setMillis" doc:"when it was set, by the clock of the LO, in milliseconds since 1970"`
	// ForMillis is how long it was set for, in milliseconds. Absent: until a person ends it.
	ForMillis uint64 `cbor:"6,keyasint,omitempty" json:"forMillis,omitempty" doc:"how long it was set for, in milliseconds; absent:until a person ends it"`
	// UntilMillis is when it ends, by the clock of the CO, in milliseconds since 1970. Absent: the LO did not know the time of the
	// CO when it was set, or it has no end.
	UntilMillis int64 `cbor:"7,keyasint,omitempty" json:"untilMillis,omitempty" doc:"when it ends, by the CO's clock, in milliseconds since 1970; absent: the site counts by itself, or it has no end"`
	// Force says of a Drain that replicas with volumes or devices move, too. Absent: they stay.
	Force bool `cbor:"8,keyasint,omitempty" json:"force,omitempty" doc:"of a drain: volumes and devices keep nothing on the node"`
}

// String says it in a sentence about the node, such as "cordoned by anna: new disk".
func (r *Restriction) String() string {
	return fmt.Sprintf("%s by %s: %s", r.Kind.Participle(), cmp.Or(r.Actor, "an unnamed person"), r.Reason)
}

// A Wait is what is not carried out on a node because of its restrictions.
type Wait struct {
	// Deployment is the one that it is about.
	Deployment protocol.DeploymentName `cbor:"1,keyasint" json:"deployment"`
	// Why says, for people, what waits and for what.
	Why string `cbor:"2,keyasint" json:"why"`
	// UntilMillis is when the next maintenance window begins, in milliseconds since 1970 by the time that the LO goes by. Absent: it waits for no
	// window, or the LO does not know the time.
	UntilMillis int64 `cbor:"3,keyasint,omitempty" json:"untilMillis,omitempty" doc:"when the maintenance window begins that it waits for, in milliseconds since 1970; absent: it waits for none, or the site does not know the time"`
	// Offline says that a window is open, and the node is offline. Absent: it waits for something else.
	Offline bool `cbor:"4,keyasint,omitempty" json:"offline,omitempty" doc:"a maintenance window is open, and the node is offline"`
}

// A Change is what changed the restrictions of a node.
type Change struct {
	// Did is what was done: the kind of a command, or Expired.
	Did string `cbor:"1,keyasint"`
	// Reason and Actor are as in Restriction; for an end, those of the person that ended it. Absent: none was
	// given.
	Reason string `cbor:"2,keyasint,omitempty"`
	Actor  string `cbor:"3,keyasint,omitempty"` // see Reason. Absent: no person asked, or the CO does without tokens.
	// Local says that it was done at the machine of the LO, without a command. Absent: a command did it, or no
	// person.
	Local bool `cbor:"4,keyasint,omitempty"`
	// Command is the id of the command that did it. Absent: it was none.
	Command string `cbor:"5,keyasint,omitempty"`
}

// What is done without a command.
const (
	// Expired is the Did of what has ended by itself.
	Expired = "expired"
	// Lost is the Did where the LO has lost the record of the node.
	Lost = "lost"
)

// A Report is all that restricts a node: whole state, as an event of the LO.
type Report struct {
	V uint16 `cbor:"0,keyasint" json:"-"` // protocol version, see protocol.Version
	// Restrictions are in force, a Hold last. Absent: there are none.
	Restrictions []Restriction `cbor:"1,keyasint,omitempty" json:"restrictions,omitempty"`
	// Waits are sorted by deployment, at most MaxWaits. Absent: nothing waits.
	Waits []Wait `cbor:"2,keyasint,omitempty" json:"waits,omitempty" doc:"what is not carried out because of them"`
	// Change is what made the report. Absent: only Waits changed, or the report repeats what was.
	Change *Change `cbor:"3,keyasint,omitempty" json:"-"`
}

// Wait returns why something waits of a deployment; "": nothing does.
func (m *Report) Wait(name protocol.DeploymentName) string {
	i, ok := slices.BinarySearchFunc(m.Waits, name, func(w Wait, n protocol.DeploymentName) int { return cmp.Compare(w.Deployment, n) })
	if !ok {
		return ""
	}
	return m.Waits[i].Why
}

// Unmarshal decodes a Report, and refuses one of a later major version.
func Unmarshal(b []byte, m *Report) error {
	if err := protocol.Unmarshal(b, m); err != nil {
		return err
	}
	if m.V > protocol.Version {
		return protocol.Errorf(protocol.Invalid, "report of restrictions has protocol version %d, this program knows %d: upgrade it", m.V, protocol.Version)
	}
	return nil
}
