package fleetdb

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// Listen gives ids to new events and reports them until ctx ends, and then closes the
// channel. Each value is
// the id of an event that can be read; values grow, and the latest replaces one that
// was not received in time. The first value is the last event there is (0: none). A
// connection that is lost is made again, and the first value after it covers all that
// was missed.
func (s *Store) Listen(ctx context.Context) <-chan int64 {
	out := make(chan int64, 1)
	go func() {
		defer close(out)
		var sequencer sync.WaitGroup
		defer sequencer.Wait()
		sequencer.Go(func() { s.db.RunSequencer(ctx) })
		l := &listener{out: out, last: -1}
		s.db.Listen(ctx, pgdb.Channel{Name: db.EventChannel, About: "events"}, l.handle)
	}()
	return out
}

type listener struct {
	out  chan int64
	last int64
}

// handle reads once for any number of notifications.
func (l *listener) handle(ctx context.Context, conn *pgx.Conn, _ string) error {
	var id int64
	if err := conn.QueryRow(ctx, `select last from event_sequence`).Scan(&id); err != nil {
		return err
	}
	l.notify(id)
	return nil
}

// notify offers the latest id without ever waiting for the reader.
func (l *listener) notify(id int64) {
	if id <= l.last {
		return
	}
	l.last = id
	select {
	case <-l.out: // not received yet
	default:
	}
	l.out <- id // the only sender, so there is room
}
