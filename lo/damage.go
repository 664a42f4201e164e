package lo

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// damaged takes note of state that was found damaged: it is counted, logged, and told
// to the CO. What becomes of it is up to its owner; it counts as not held.
func (l *LO) damaged(ctx context.Context, found ...*statefile.Damage) {
	var facts []nodes.Fact
	for _, d := range found {
		if d == nil {
			continue
		}
		l.site.counts.damaged.WithLabelValues(d.Role).Inc()
		l.log.ErrorContext(ctx, "state of the site is damaged; it counts as not held", "state", d.String(), "err", d)
		facts = append(facts, siteFact(protocol.StateDamaged, &protocol.Loss{
			V: protocol.Version, Class: d.String(), Records: max(1, d.Lost),
		}, time.Now()))
	}
	if len(facts) == 0 {
		return
	}
	if _, err := l.site.append(ctx, facts); err != nil {
		// A full journal is a reason to start, not one to stay away.
		l.log.WarnContext(ctx, "damage could not be recorded", "err", err)
	}
}
