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
