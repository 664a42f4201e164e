package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Delivery is one message of a site's machine data on its way to the clients of
// the CO's broker.
type Delivery struct {
	Site protocol.SiteID
	// Stream and Seq are the message's place in the site's queue.
	Stream string
	Seq    uint64
	// Time is when it arrived at the site, by the site's clock; zero where that was
	// no time of a calendar.
	Time    time.Time
	Message protocol.DataMessage
	// ExpiresIn is what is left of the time that the message is of use; 0: no end.
	ExpiresIn time.Duration
}
