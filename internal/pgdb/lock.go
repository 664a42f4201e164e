package pgdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockPatience is how often the holder of a lock asks its connection for a sign of
// life, and how long it waits for it. The server gives the lock to another when it
// notices the loss itself, so for up to twice that time two may believe to hold it:
// what a lock guards must be safe then, if wasteful.
const lockPatience = 5 * time.Second

// Lock waits until nobody else holds the lock of that name, in any program on this
// database and schema (a PostgreSQL advisory lock of the session). The context that
// it returns ends when the lock is lost, or with ctx; release gives the lock back
// and must be called. It fails where the database is away, or ctx ends.
func (d *DB) Lock(ctx context.Context, name string) (held context.Context, release func(), err error) {
	// A connection of its own: the lock lives and dies with it.
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return nil, nil, Classify("connect for lock "+name, err)
	}
	if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext(current_schema()), hashtext($1))`, name); err != nil {
		closeSoon(ctx, conn)
		return nil, nil, Classify("take lock "+name, err)
	}
	held, lose := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer closeSoon(ctx, conn)
		defer lose()
		d.guard(held, conn, name)
	}()
	return held, func() { lose(); <-done }, nil
}

// guard returns when ctx ends or the connection is dead.
func (d *DB) guard(ctx context.Context, conn *pgx.Conn, name string) {
	ticker := time.NewTicker(lockPatience)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ping, cancel := context.WithTimeout(ctx, lockPatience)
		err := conn.Ping(ping)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				d.log.WarnContext(ctx, "lock lost with its connection", "lock", name, "err", err)
			}
			return
		}
	}
}

func closeSoon(ctx context.Context, conn *pgx.Conn) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(end) // the server notices by itself as well
}
