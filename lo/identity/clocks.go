package identity

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// Clocks reports to the CO whether its clock, as its certificates show it, can be that of the site. Its methods may be called
// concurrently.
type Clocks struct {
	clock  *identity.Clock
	report func(context.Context, protocol.EventKind, string, any) error
	log    *slog.Logger

	differ atomic.Bool // as it was reported last
}

// NewClocks returns Clocks of the clock of a site, which report with report.
func NewClocks(clock *identity.Clock, report func(ctx context.Context, kind protocol.EventKind, key string, message any) error, log *slog.Logger) *Clocks {
	return &Clocks{clock: clock, report: report, log: log}
}

// Compare reports whether the clocks differ where that is not as it was reported before.
func (c *Clocks) Compare(ctx context.Context) {
	ahead := c.clock.Ahead()
	if c.differ.Swap(ahead > 0) == (ahead > 0) {
		return
	}
	if ahead > 0 {
		c.log.ErrorContext(ctx, "the certificate of the co begins so far ahead that one of the two clocks is wrong: set it; the site goes by its own", "ahead", ahead.Round(time.Second))
	}
	if err := c.report(ctx, protocol.ClocksDiffer, "clocks", &protocol.ClocksReport{V: protocol.Version, AheadMillis: ahead.Milliseconds()}); err != nil {
		c.log.WarnContext(ctx, "clocks that differ not reported to the co", "err", err)
	}
}
