package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Delivery is one message of a site's machine data on its way to the clients of
// the CO's broker.
type Delivery struct {
	Site protocol.SiteID
	// Stream and Seq are the message's position among those of the site.
	Stream string
	Seq    uint64
	// Time is when it arrived at the site, by the site's clock; zero where the
	// clock showed no date before the year 10,000.
	Time    time.Time
	Message protocol.DataMessage
	// ExpiresIn is how much of the message's life is left; 0: it has no end.
	ExpiresIn time.Duration
}
