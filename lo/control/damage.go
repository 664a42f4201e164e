package control

import (
	"context"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// Damaged counts, logs and reports to the CO that state files of the LO were found
// damaged; nil entries are left out. It changes nothing else: their content counts as
// not held, and the owner of each brings it back. The error says that the report to the CO could not be recorded.
func (s *Site) Damaged(ctx context.Context, found ...*statefile.Damage) error {
	var facts []nodes.Fact
	for _, d := range found {
		if d == nil {
			continue
		}
		s.metrics.Damaged.WithLabelValues(d.Role).Inc()
		s.log.ErrorContext(ctx, "state of the site is damaged; it counts as not held", "state", d.String(), "err", d)
		facts = append(facts, siteFact(protocol.StateDamaged, "", loss(d), s.opts.Now()))
	}
	if len(facts) == 0 {
		return nil
	}
	_, err := s.append(ctx, facts)
	if err != nil { // an LO with a full journal must start, to empty it
		s.log.WarnContext(ctx, "damage could not be recorded", "err", err)
	}
	return err
}

// loss says what is known of what damage has cost.
func loss(d *statefile.Damage) *protocol.Loss {
	out := &protocol.Loss{V: protocol.Version, Class: d.String(), Records: d.Lost}
	if d.Lost == 0 && !d.Kept {
		out.Records, out.Uncounted = 1, true
	}
	return out
}
