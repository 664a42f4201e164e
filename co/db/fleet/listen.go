package fleetdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// Listen tells of new events until ctx ends, and then closes the channel. Each
// value is the id of an event that can be read; values grow, and those that nobody
// took in time are left out for the latest. The first value is the last event
// there is (0: none). When the connection is lost it is made again, and the first
// value after it tells of all that was missed.
func (s *Store) Listen(ctx context.Context) <-chan int64 {
	out := make(chan int64, 1)
	go func() {
		defer close(out)
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
	if err := conn.QueryRow(ctx, `select coalesce(max(id), 0) from events`).Scan(&id); err != nil {
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
	case <-l.out: // nobody took it yet
	default:
	}
	l.out <- id // the only sender, so there is room
}
