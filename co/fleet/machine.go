package fleet

import (
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A JoinToken is what the CO keeps of a token with which machines enrol.
type JoinToken struct {
	ID      string // see identity.Token
	Secret  []byte // its SHA-256
	Site    protocol.SiteID
	Tier    identity.Tier // LO or EN
	Uses    int           // how many machines may enrol with it
	Replace bool          // a machine may take a name over from another one
	Expires time.Time
}

// A Revocation is what became of a machine whose certificates no longer count.
type Revocation struct {
	Site  protocol.SiteID `json:"site"`
	Node  protocol.NodeID `json:"node,omitempty" doc:"absent: it was the LO of the site"`
	Until time.Time       `json:"until" doc:"when the last of its certificates has ended: then its keys are taken off the list"`
}

// A RevokedKey is a key whose certificates no longer count.
type RevokedKey struct {
	Key       string          `json:"key" doc:"SHA-256 of the public key, in hex"`
	Site      protocol.SiteID `json:"site"`
	Node      protocol.NodeID `json:"node,omitempty" doc:"absent: it was that of the site's LO"`
	Authority bool            `json:"authority,omitempty" doc:"it is that of the authority with which the LO enrolled nodes"`
	Removed   bool            `json:"removed,omitempty" doc:"the machine was removed, and not revoked"`
	Revoked   time.Time       `json:"revoked" doc:"when that was"`
	Until     time.Time       `json:"until" doc:"when it is taken off the list of the site"`
}

// A PendingRevocation is a site that does not go by its list of revoked keys yet.
type PendingRevocation struct {
	Site    protocol.SiteID `json:"site"`
	Number  uint64          `json:"number" doc:"of the list"`
	Made    time.Time       `json:"made" doc:"when the CO made the list"`
	Adopted uint64          `json:"adopted,omitempty" doc:"the number of the list that the site goes by; absent: the site has reported none"`
	Online  bool            `json:"online" doc:"the LO of the site is connected"`
}

// An Unenrolled is a site whose LO never got a certificate, at a CO that lets no other one in.
type Unenrolled struct {
	Site  protocol.SiteID `json:"site"`
	Nodes int             `json:"nodes" doc:"that the CO knows of the site"`
	Token *time.Time      `json:"tokenUntil,omitempty" doc:"when the last join token ends that its LO can enrol with; absent: there is none"`
}

// A PendingNode is a node without a join token that waits until its key is approved.
type PendingNode struct {
	Site   protocol.SiteID `json:"site"`
	Node   protocol.NodeID `json:"node" doc:"the name that it asks by"`
	Key    string          `json:"key" doc:"SHA-256 of its public key, in hex: what is approved"`
	Device string          `json:"device,omitempty" doc:"serial number of the machine, as it says; it proves nothing"`
	Remote string          `json:"remote,omitempty" doc:"the address that it asks from"`
	First  time.Time       `json:"first" doc:"when its LO reported it first"`
	Last   time.Time       `json:"last" doc:"when its LO reported it last, which is once an hour"`
	Taken  bool            `json:"taken,omitempty" doc:"another key is enrolled by this name"`
}

// A PendingFilter picks nodes that wait. What is empty picks all.
type PendingFilter struct {
	Site   protocol.SiteID
	Within siteset.Set
	Key    string // what the key begins with, in hex
}

// A Decision is what is decided about the key of a node that has no join token.
type Decision struct {
	Site     protocol.SiteID
	Node     protocol.NodeID
	Key      string    // SHA-256 of the public key, in hex
	Approved bool      // else it is rejected
	Replace  bool      // it may take the name over from another key, which is revoked
	By       string    // the person that decides; empty: no token is required
	Expires  time.Time // until when the decision is in force
}

// A Decided is what was decided about a node that has no join token.
type Decided struct {
	Site     protocol.SiteID `json:"site"`
	Node     protocol.NodeID `json:"node"`
	Key      string          `json:"key" doc:"SHA-256 of its public key, in hex"`
	Approved bool            `json:"approved"` // false: it was rejected
	Until    time.Time       `json:"until" doc:"when the decision ends: then the key waits anew where it is not enrolled"`
}
