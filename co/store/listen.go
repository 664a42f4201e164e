package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
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
		l := &listener{store: s, out: out, last: -1}
		for wait := firstWait; ; wait = min(2*wait, 5*time.Second) {
			began := time.Now()
			err := l.run(ctx)
			if ctx.Err() != nil {
				return
			}
			if time.Since(began) > time.Minute {
				wait = firstWait
			}
			s.log.WarnContext(ctx, "listening for events interrupted", "err", err, "wait", wait)
			if !pause(ctx, wait) {
				return
			}
		}
	}()
	return out
}

const firstWait = 50 * time.Millisecond

type listener struct {
	store *Store
	out   chan int64
	last  int64
}

func (l *listener) run(ctx context.Context) error {
	// A connection of its own: one of the pool's would have to be cleaned of LISTEN.
	conn, err := pgx.ConnectConfig(ctx, l.store.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(end) // the server notices by itself as well
	}()
	var name string
	if err := conn.QueryRow(ctx, "select "+channel).Scan(&name); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	for {
		// One read for any number of notifications, after LISTEN: none is missed.
		var id int64
		if err := conn.QueryRow(ctx, `select coalesce(max(id), 0) from events`).Scan(&id); err != nil {
			return err
		}
		l.tell(id)
		if err := waitNotification(ctx, conn); err != nil {
			return err
		}
	}
}

// waitNotification waits for one, and asks the server for a sign of life where
// none comes: a connection that hangs without closing must be noticed.
func waitNotification(ctx context.Context, conn *pgx.Conn) error {
	const patience = 30 * time.Second
	for {
		wait, cancel := context.WithTimeout(ctx, patience)
		_, err := conn.WaitForNotification(wait)
		expired := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !expired || conn.IsClosed() {
			return err
		}
		ping, cancel := context.WithTimeout(ctx, patience)
		err = conn.Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
}

// tell offers the latest id without ever waiting for the reader.
func (l *listener) tell(id int64) {
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
