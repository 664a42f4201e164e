package fleet

import (
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
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

// An Unenrolled is a site whose LO never got a certificate, at a CO that lets no other one in.
type Unenrolled struct {
	Site  protocol.SiteID `json:"site"`
	Nodes int             `json:"nodes" doc:"that the CO knows of the site"`
	Token *time.Time      `json:"tokenUntil,omitempty" doc:"when the last join token ends that its LO can enrol with; absent: there is none"`
}
