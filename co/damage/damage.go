// Package damage has the CO say what of its own state was found damaged, or is missing: in the log, in a metric and as an event.
package damage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/begun"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// recordWait bounds how long an event may take to be recorded.
const recordWait = 30 * time.Second

// The roles of the stores of a CO.
const (
	Sessions = "broker/sessions store" // sessions of the embedded broker
	Registry = "co/registry"           // the OCI registry
)

// without is what follows where a store is missing, by its role.
var without = map[string]string{
	Sessions: "the clients that have sessions at its broker have lost what waited for them; sites lose nothing, they need no session there",
	Registry: "applications and images have to be imported again; restore it from a backup (colony co restore)",
}

// A Reporter says what was found. Its methods may be called concurrently.
type Reporter struct {
	record func(ctx context.Context, e fleet.Event) error
	log    *slog.Logger
	count  *prometheus.CounterVec
}

// New returns a Reporter that records events with record.
func New(record func(ctx context.Context, e fleet.Event) error, log *slog.Logger, r prometheus.Registerer) *Reporter {
	return &Reporter{record, log, promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "colony_co_own_state_damaged_total", Help: "Files of the CO's own state that were found damaged, and stores that were found missing, by role.",
	}, []string{"role"})}
}

// Report says that files were found damaged, or stores missing. The error says that it could not be recorded as an event; it is in the
// log all the same.
func (r *Reporter) Report(ctx context.Context, found ...*statefile.Damage) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWait)
	defer cancel()
	for _, d := range found {
		r.count.WithLabelValues(d.Role).Inc()
		r.log.ErrorContext(ctx, "state of the CO is damaged; it counts as not held", "state", d.String(), "err", d)
		failed := r.record(ctx, fleet.Event{Kind: string(protocol.StateDamaged), Message: message(d)})
		if failed != nil {
			r.log.WarnContext(ctx, "damage could not be recorded", "err", failed)
			err = failed
		}
	}
	return err
}

// message says what damage leads to, and what to do.
func message(d *statefile.Damage) string {
	const check = "; check the disk of the CO"
	if d.Name == begun.Missing && without[d.Role] != "" {
		return fmt.Sprintf("the CO's %s is missing, although it was begun; %s%s", d.Role, without[d.Role], check)
	}
	text := "the CO's file of " + d.String() + " was damaged"
	switch {
	case strings.HasPrefix(d.Role, "broker/sessions") && d.Lost == 0 && d.Kept:
		text += ": nothing of the sessions of its broker is lost"
	case strings.HasPrefix(d.Role, "broker/sessions") && d.Lost > 0:
		text += fmt.Sprintf(": what could be read of it is there, %d records or more are lost to the clients that have sessions at the broker", d.Lost)
	case strings.HasPrefix(d.Role, "broker/sessions"):
		text += ": what else could be read is there, how much is lost to the clients that have sessions at the broker is not known"
	default:
		text += " and set aside"
	}
	return text + check
}
