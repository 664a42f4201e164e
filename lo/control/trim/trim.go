// Package trim stands between the uplink of an LO and its journal, so that the journal forgets no event that a stored record
// of a node lacks.
package trim

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// trimDelay is how long the journal keeps events after the CO has them. In that time
// many reports of a node need one write of its record: with each report, or with each
// acknowledgement of the CO, it would be two flushes of the disk every time.
const trimDelay = time.Second

// A Log is the journal as the uplink uses it; see uplink.Log.
type Log interface {
	// Position returns the epoch, what is trimmed and the last sequence of one moment, and what the last was when the journal was opened.
	Position() (epoch string, trimmed, last, opened uint64)
	// Bodies returns the bodies of events after a sequence: bodies[i] is that of first+i.
	Bodies(after uint64, maxRecords, maxBytes int) (first uint64, bodies [][]byte, err error)
	// Wait returns nil once the last sequence is greater than after.
	Wait(ctx context.Context, after uint64) error
	// Trim forgets everything up to through, which the CO has on disk.
	Trim(through uint64) error
	// Renew gives the journal a new epoch and keeps its records. have is the position that the CO holds of the old one.
	Renew(have uint64) error
	// Salvage gives up the records that cannot be read any more, and returns how many they were.
	Salvage() (lost uint64, err error)
	// Backlog returns what the journal reports of itself to the CO, and the time of that moment.
	Backlog() (b protocol.Backlog, now time.Time)
}

// Records are those of the nodes.
type Records interface {
	// SaveThrough stores those that lack an event up to a sequence of the journal.
	SaveThrough(through uint64) error
}

// A Trimmer stands between the uplink and the journal of the site, so that the journal
// forgets no event that a stored record lacks. What the CO has acknowledged the uplink
// sees as trimmed at once; Run trims the journal once the records are stored. A crash
// before that only costs a question to the CO. Its methods may be called concurrently.
type Trimmer struct {
	Log
	records Records
	log     *slog.Logger
	acks    notify.Signal // acked may be ahead of the journal

	mu    sync.Mutex // protects what follows
	epoch string     // the one that acked is of
	acked uint64     // the CO has the events up to this sequence
}

// New returns a Trimmer for the journal of a site.
func New(l Log, r Records, log *slog.Logger) *Trimmer {
	return &Trimmer{Log: l, records: r, log: log.With("component", "control"), acks: notify.New()}
}

// Position is the journal's, as if the events that the CO has were trimmed.
func (t *Trimmer) Position() (epoch string, trimmed, last, opened uint64) {
	epoch, trimmed, last, opened = t.Log.Position()
	return epoch, max(trimmed, t.ackedOf(epoch)), last, opened
}

func (t *Trimmer) ackedOf(epoch string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch != epoch {
		return 0
	}
	return t.acked
}

// Bodies are the journal's, without those that the CO has.
func (t *Trimmer) Bodies(after uint64, maxRecords, maxBytes int) (uint64, [][]byte, error) {
	epoch, _, _, _ := t.Log.Position()
	return t.Log.Bodies(max(after, t.ackedOf(epoch)), maxRecords, maxBytes)
}

// Backlog is the journal's. Where the CO has everything, no event is old.
func (t *Trimmer) Backlog() (protocol.Backlog, time.Time) {
	b, now := t.Log.Backlog()
	if _, trimmed, last, _ := t.Position(); trimmed >= last {
		b.OldestMillis = 0
	}
	return b, now
}

// Trim notes what the CO has. Run trims the journal.
func (t *Trimmer) Trim(through uint64) error {
	epoch, _, last, _ := t.Log.Position()
	t.mu.Lock()
	if t.epoch != epoch {
		t.epoch, t.acked = epoch, 0
	}
	t.acked = max(t.acked, min(through, last))
	t.mu.Unlock()
	t.acks.Notify()
	return nil
}

// Renew stores all records first: a start replays the new epoch alone.
func (t *Trimmer) Renew(have uint64) error {
	if err := t.records.SaveThrough(math.MaxUint64); err != nil {
		return err
	}
	return t.Log.Renew(have)
}

// Salvage stores all records first: a start cannot replay the events that are given up.
func (t *Trimmer) Salvage() (uint64, error) {
	if err := t.records.SaveThrough(math.MaxUint64); err != nil {
		return 0, err
	}
	return t.Log.Salvage()
}

// Run trims the journal of what the CO has, until ctx ends, and then once more.
func (t *Trimmer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if t.acks.Wait(ctx) == nil {
			_ = retry.Sleep(ctx, trimDelay) // what is acknowledged is trimmed when ctx ends, too
		}
		if err := t.TrimAcked(); err != nil && !errors.Is(err, context.Canceled) {
			t.log.WarnContext(ctx, "journal keeps events that the co has, because records of nodes could not be stored", "err", err)
			t.acks.Notify()
		}
	}
}

// TrimAcked stores the records that lack an event that the CO has, and trims the
// journal, as Run does. One write of a record stands for all reports of its node since the last.
func (t *Trimmer) TrimAcked() error {
	epoch, trimmed, _, _ := t.Log.Position()
	through := t.ackedOf(epoch)
	if through <= trimmed {
		return nil
	}
	if err := t.records.SaveThrough(through); err != nil {
		return err
	}
	if now, _, _, _ := t.Log.Position(); now != epoch {
		return nil // through is a sequence of the epoch before
	}
	return t.Log.Trim(through)
}
