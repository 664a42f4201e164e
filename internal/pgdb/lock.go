package pgdb

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/protocol"
)

// lockPatience is how long Acquire waits for other programs, and lockCall bounds what is
// answered at once.
const (
	lockPatience = 30 * time.Second
	lockCall     = 10 * time.Second
)

// A Lock is one that programs with the same database have between them, by its name: an
// advisory lock of a transaction (PostgreSQL documentation, section "Advisory Locks") on a
// connection of its own. It is for one goroutine at a time. The server gives it to others
// where the program ends, or has had it for longer than its time.
type Lock struct {
	db   *DB
	name string
	most time.Duration
	conn *pgx.Conn // nil: none is open
}

// Lock returns the lock of a name, which its holder has for most at a time.
func (d *DB) Lock(name string, most time.Duration) *Lock { return &Lock{db: d, name: name, most: most} }

// Acquire waits for the lock, shared or alone. It fails with kind Unavailable where the database is
// not reachable, or another program does not release the lock in time.
func (l *Lock) Acquire(shared bool) error {
	how := "pg_advisory_xact_lock"
	if shared {
		how += "_shared"
	}
	_, err := l.begin(how, lockPatience+lockCall)
	return err
}

// Try gets the lock alone, or reports that another program has it.
func (l *Lock) Try() (bool, error) { return l.begin("pg_try_advisory_xact_lock", lockCall) }

func (l *Lock) begin(how string, within time.Duration) (got bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if l.conn == nil {
		if l.conn, err = pgx.ConnectConfig(ctx, l.db.pool.Config().ConnConfig); err != nil {
			l.conn = nil
			return false, Classify("connect for the lock "+l.name, err)
		}
	}
	begin := fmt.Sprintf("begin; set local lock_timeout = %d; set local idle_in_transaction_session_timeout = %d", lockPatience.Milliseconds(), l.most.Milliseconds())
	if _, err = l.conn.Exec(ctx, begin); err == nil {
		err = l.conn.QueryRow(ctx, "select coalesce(("+how+"(hashtextextended($1, 0)))::text, '') <> 'false'", l.name).Scan(&got)
	}
	if err != nil {
		l.drop()
		if pg := Classify("lock", err); protocol.KindOf(pg) == protocol.Unavailable {
			return false, protocol.Errorf(protocol.Unavailable, "lock %s: the database is away, or another program has had it for %s: is one of those that share it stopped?: %w", l.name, lockPatience, err)
		}
		return false, Classify("lock "+l.name, err)
	}
	if !got {
		l.Release()
	}
	return got, nil
}

// Held fails where another program may have the lock by now.
func (l *Lock) Held() error {
	ctx, cancel := context.WithTimeout(context.Background(), lockCall)
	defer cancel()
	if l.conn == nil {
		return protocol.Errorf(protocol.Unavailable, "the lock %s was lost with its connection: try again", l.name)
	}
	_, err := l.conn.Exec(ctx, "select")
	return Classify("look whether the lock "+l.name+" is held", err)
}

// Release gives the lock back.
func (l *Lock) Release() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockCall)
	defer cancel()
	if _, err := l.conn.Exec(ctx, "rollback"); err != nil {
		l.drop()
	}
}

// Close ends the connection.
func (l *Lock) Close() error {
	l.drop()
	return nil
}

// drop gives the connection up, and with it the lock.
func (l *Lock) drop() {
	if l.conn != nil {
		closeSoon(context.Background(), l.conn)
		l.conn = nil
	}
}
