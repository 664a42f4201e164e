package db

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// sequenceBound is after how many events one transaction of the sequencer stops.
	sequenceBound = 10_000
	// sequencePace is the least time between two of its transactions, unless it is
	// more: what is committed meanwhile gets its ids together.
	sequencePace = 25 * time.Millisecond
	// sequencePoll is how often it looks for events of a program that died before it
	// gave them their ids.
	sequencePoll = time.Second
	// sequenceTimeout bounds one transaction of it.
	sequenceTimeout = 30 * time.Second
	// vacuumAfter is after how many of its transactions the outbox is vacuumed: each
	// row of it lives for milliseconds, and leaves dead ones that the next one passes.
	vacuumAfter = 1000
	// lateAfter is how many transactions in a row may leave something, so that the feed
	// is about 100,000 events behind, until writers of events have to wait.
	lateAfter = 10
)

// Tx is pgdb.DB.Tx. After it the sequencer looks for new events.
func (d *DB) Tx(ctx context.Context, what string, do func(pgx.Tx) error) error {
	defer d.written.Notify() // after an error, too: what was tried may be committed
	return d.DB.Tx(ctx, what, do)
}

// Sequence gives ids to events that are committed and have none, at most about 10,000,
// and reports whether there may be more. It is safe in any number of programs at once:
// one works, the others wait for it. Ids are dense, and in the order of the commits of
// each site.
func (d *DB) Sequence(ctx context.Context) (more bool, err error) {
	return sequence(ctx, d.DB)
}

func sequence(ctx context.Context, over *pgdb.DB) (more bool, err error) {
	var n int64
	err = over.QueryRow(ctx, `select * from sequence_events($1)`, sequenceBound).Scan(&n, &more)
	return more, pgdb.Classify("give ids to events", err)
}

// SequenceAll is Sequence until all that was committed before the call has ids.
func (d *DB) SequenceAll(ctx context.Context) error {
	var upto int64
	if err := d.QueryRow(ctx, `select coalesce(max(number), 0) from event_outbox`).Scan(&upto); err != nil || upto == 0 {
		return pgdb.Classify("look for events without ids", err)
	}
	for {
		more, err := d.Sequence(ctx)
		if err != nil || !more {
			return err
		}
		var left bool
		if err := d.QueryRow(ctx, `select exists (select from event_outbox where number <= $1)`, upto).Scan(&left); err != nil || !left {
			return pgdb.Classify("look for events without ids", err)
		}
	}
}

// RunSequencer calls Sequence within about 25 ms after each Tx, and once a second for
// what other programs may have left, until ctx ends. Each program runs it; while the
// database is away it tries again.
func (d *DB) RunSequencer(ctx context.Context) {
	s := sequencer{db: d, tries: retry.Backoff{Policy: retry.Policy{Min: sequencePace, Max: 5 * time.Second, Jitter: 0.4}}}
	defer d.gate.open()
	for ctx.Err() == nil {
		more := s.round(ctx)
		if s.late++; !more {
			s.late = 0
		}
		d.gate.set(s.late >= lateAfter)
		if more {
			continue
		}
		s.wait(ctx)
	}
}

// Admit returns when the feed is not far behind the commits: writers of many events call it before,
// so that a slow feed slows them.
func (d *DB) Admit(ctx context.Context) error {
	for {
		opened := d.gate.changed.C()
		if !d.gate.closed.Load() {
			return nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return protocol.Errorf(protocol.Unavailable, "wait until the events before have ids: %w", context.Cause(ctx))
		}
	}
}

// A gate is closed while the feed is far behind.
type gate struct {
	closed  atomic.Bool
	changed notify.Broadcast
}

func (g *gate) open() { g.set(false) }

func (g *gate) set(closed bool) {
	if g.closed.Swap(closed) != closed {
		g.changed.Notify()
	}
}

type sequencer struct {
	db     *DB
	tries  retry.Backoff
	failed bool
	late   int // transactions in a row that left something
	rounds int // since the outbox was vacuumed
}

// round runs one transaction, and reports whether to run another one at once.
func (s *sequencer) round(ctx context.Context) (more bool) {
	one, cancel := context.WithTimeout(ctx, sequenceTimeout)
	defer cancel()
	more, err := sequence(one, s.db.Feed)
	switch {
	case err == nil:
		s.failed = false
		s.tries.Reset()
	case ctx.Err() == nil && !s.failed:
		s.failed = true
		s.db.Log.WarnContext(ctx, "events get no ids, trying again", "err", err)
	}
	if s.rounds++; s.rounds >= vacuumAfter && err == nil {
		s.rounds = 0
		if _, err := s.db.Feed.Exec(one, `vacuum (skip_locked, truncate false) event_outbox`); err != nil {
			s.db.Log.InfoContext(ctx, "event_outbox not vacuumed", "err", err)
		}
	}
	return more && err == nil
}

// wait returns when there is something to do, and not before the pace allows it.
func (s *sequencer) wait(ctx context.Context) {
	if s.failed {
		_ = s.tries.Wait(ctx) // an error is the end of ctx
		return
	}
	if retry.Sleep(ctx, sequencePace) != nil {
		return
	}
	poll, cancel := context.WithTimeout(ctx, sequencePoll)
	defer cancel()
	_ = s.db.written.Wait(poll) // an error is the end of the wait
}
