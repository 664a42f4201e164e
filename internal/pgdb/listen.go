package pgdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/retry"
)

const firstWait = 50 * time.Millisecond

// A Channel is where transactions notify those that Listen. Name is a SQL
// expression, so that each schema may have a channel of its own; About says in the
// log what it is about.
type Channel struct{ Name, About string }

// Listen calls hear for each notification of a channel until ctx ends. It has a
// connection of its own, which hear may use. When that is lost it is made again. The
// first call on each connection has no payload: some notifications may have been
// missed before it, and none are after it. An error of hear is one of the connection.
func (d *DB) Listen(ctx context.Context, c Channel, hear func(ctx context.Context, conn *pgx.Conn, payload string) error) {
	tries := away(firstWait)
	for {
		began := time.Now()
		err := d.listen(ctx, c.Name, hear)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			tries.Reset()
		}
		wait := tries.Next()
		d.log.WarnContext(ctx, "listening interrupted", "for", c.About, "err", err, "wait", wait)
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

func (d *DB) listen(ctx context.Context, channel string, hear func(context.Context, *pgx.Conn, string) error) error {
	// A connection of its own: one of the pool's would have to be cleaned of LISTEN.
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer closeSoon(ctx, conn)
	var name string
	if err := conn.QueryRow(ctx, "select "+channel).Scan(&name); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	for payload := ""; ; {
		if err := hear(ctx, conn, payload); err != nil {
			return err
		}
		if payload, err = nextNotification(ctx, conn); err != nil {
			return err
		}
	}
}

// nextNotification waits for one and returns its payload. It asks the server for a
// sign of life where none comes: a connection that hangs without closing must be
// noticed.
func nextNotification(ctx context.Context, conn *pgx.Conn) (string, error) {
	const patience = 30 * time.Second
	for {
		wait, cancel := context.WithTimeout(ctx, patience)
		n, err := conn.WaitForNotification(wait)
		expired := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return n.Payload, nil
		}
		if !expired || conn.IsClosed() {
			return "", err
		}
		ping, cancel := context.WithTimeout(ctx, patience)
		err = conn.Ping(ping)
		cancel()
		if err != nil {
			return "", err
		}
	}
}

func closeSoon(ctx context.Context, conn *pgx.Conn) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(end) // the server notices by itself as well
}
