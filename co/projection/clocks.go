package projection

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// clocksMessage says which clocks differ, and what to do.
func clocksMessage(m *protocol.ClocksReport) string {
	if m.AheadMillis <= 0 {
		return "the clocks of the site and of the CO agree again"
	}
	ahead := time.Duration(min(m.AheadMillis, int64(time.Duration(1<<63-1)/time.Millisecond))) * time.Millisecond
	return fmt.Sprintf("the certificate of the CO begins %d days ahead of the site's clock: set the clock of the CO, or that of the site, whichever is wrong; the site goes by its own", int(ahead/(24*time.Hour)))
}
