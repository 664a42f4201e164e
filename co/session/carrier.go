package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// abandonedAfter is for how long the carrier of a session may be silent before another one takes it for killed.
	abandonedAfter = time.Minute
	// abandonedLook is how often is looked for such.
	abandonedLook = 20 * time.Second
)

// A Record says which sessions there are, see sessionsdb.Store.
type Record interface {
	// Alive says that the sessions of a carrier go on, and returns those that must end, with the person that asked
	// for that.
	Alive(ctx context.Context, carrier string) (map[command.ID]string, error)
	// Abandoned ends the sessions whose carrier was silent for a time: it was killed.
	Abandoned(ctx context.Context, silent time.Duration) error
}

// A Carrier has the sessions that a CO carries. Its methods may be called concurrently.
type Carrier struct {
	record Record
	name   string
	log    *slog.Logger
	ended  *prometheus.CounterVec

	mu   sync.Mutex // protects open
	open map[command.ID]context.CancelCauseFunc
}

// NewCarrier returns a Carrier. Call Run. The registerer may be nil.
func NewCarrier(record Record, reg prometheus.Registerer, log *slog.Logger) *Carrier {
	c := &Carrier{
		record: record, name: rand.Text(), log: log.With("component", "sessions"), open: map[command.ID]context.CancelCauseFunc{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "colony_co_sessions_total", Help: "Sessions with programs in containers that this CO carried and that have ended, by reason."}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(c.ended, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "colony_co_sessions", Help: "Sessions with programs in containers that this CO carries now."}, func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return float64(len(c.open))
		}))
	}
	return c
}

// Name is that of the carrier, which no other one has.
func (c *Carrier) Name() string { return c.name }

// Carry adds a session until done is called, which says why it ended. A person may end it before.
func (c *Carrier) Carry(ctx context.Context, id command.ID) (within context.Context, done func(fleet.SessionReason)) {
	within, stop := context.WithCancelCause(ctx)
	c.mu.Lock()
	c.open[id] = stop
	c.mu.Unlock()
	return within, func(reason fleet.SessionReason) {
		stop(nil)
		c.mu.Lock()
		delete(c.open, id)
		c.mu.Unlock()
		c.ended.WithLabelValues(string(reason)).Inc()
	}
}

// Run ends the sessions that are to end, and those that a killed CO left, until ctx ends.
func (c *Carrier) Run(ctx context.Context) {
	var looked time.Time
	for {
		c.mu.Lock()
		open := len(c.open)
		c.mu.Unlock()
		if open > 0 {
			c.stop(ctx)
		}
		if time.Since(looked) >= abandonedLook {
			looked = time.Now()
			if err := c.record.Abandoned(ctx, abandonedAfter); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "sessions of a CO that was killed are not ended yet", "err", err)
			}
		}
		if retry.Sleep(ctx, look) != nil {
			return
		}
	}
}

func (c *Carrier) stop(ctx context.Context) {
	list, err := c.record.Alive(ctx, c.name)
	if err != nil {
		if ctx.Err() == nil {
			c.log.WarnContext(ctx, "not known which sessions are to end", "err", err)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, by := range list {
		if stop := c.open[id]; stop != nil {
			stop(Because(fleet.SessionStopped, "%s ended it", cmp.Or(by, "an unnamed person")))
		}
	}
}
