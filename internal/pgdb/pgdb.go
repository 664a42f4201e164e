// Package pgdb is what any program with a PostgreSQL database needs beside pgx: a
// pool that waits for its server, transactions that are run again where that is
// safe, errors of the protocol's kinds, COPY and LISTEN. It knows no table.
package pgdb

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure a DB. The zero Options are usable.
type Options struct {
	// MaxConns bounds the pool; 0 means 16. Each Listen uses one more of its own.
	MaxConns int32
	// Prepare, if set, is run on one connection before Open returns, and once more
	// where its error is Unavailable.
	Prepare func(ctx context.Context, conn *pgx.Conn) error
	// Tracer sees every query of the pool. It may be nil.
	Tracer pgx.QueryTracer
	// OnTx, if set, is called with each Tx that has ended: its time, with the wait for a connection and repetitions, and its
	// error. It may be called concurrently.
	OnTx func(took time.Duration, err error)
	// Logger may be nil.
	Logger *slog.Logger
}

// A DB is a database. Its methods may be called concurrently. While the server is
// away they fail with Unavailable, and the pool finds it again by itself.
type DB struct {
	pool *pgxpool.Pool
	onTx func(took time.Duration, err error) // may be nil
	log  *slog.Logger
}

// Open connects to the database at a PostgreSQL URL. While it cannot be reached it
// tries again, with backoff, until ctx ends; an error that time does not heal (a
// wrong password, a refusal of Prepare) returns at once.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "database url: %w", err)
	}
	config.MaxConns = 16
	if o.MaxConns > 0 {
		config.MaxConns = o.MaxConns
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	config.ConnConfig.Tracer = o.Tracer
	config.ConnConfig.RuntimeParams["application_name"] = "colony"
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	if _, given := config.ConnConfig.RuntimeParams[idleInTransaction]; !given {
		config.ConnConfig.RuntimeParams[idleInTransaction] = "15000"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, Classify("open database", err)
	}
	d := &DB{pool: pool, onTx: o.OnTx, log: o.Logger}
	tries := away(100 * time.Millisecond)
	for {
		err := d.prepare(ctx, o.Prepare)
		if err == nil {
			return d, nil
		}
		if protocol.KindOf(err) != protocol.Unavailable || ctx.Err() != nil {
			pool.Close()
			return nil, err
		}
		wait := tries.Next()
		d.log.WarnContext(ctx, "database not reachable, trying again", "err", err, "wait", wait)
		if ended := retry.Sleep(ctx, wait); ended != nil {
			pool.Close()
			return nil, errors.Join(err, ended)
		}
	}
}

func (d *DB) prepare(ctx context.Context, prepare func(context.Context, *pgx.Conn) error) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return Classify("connect to database", err)
	}
	defer conn.Release()
	if prepare == nil {
		return nil
	}
	return Classify("prepare database", prepare(ctx, conn.Conn()))
}

// away returns the waits for a database that is away: on average first, and with
// each further one twice as long, up to five seconds.
func away(first time.Duration) *retry.Backoff {
	const longest = 5 * time.Second
	return &retry.Backoff{Policy: retry.Policy{Min: first * 5 / 4, Max: longest * 5 / 4, Jitter: jitter}}
}

// Close ends all connections. Calls that still run finish first.
func (d *DB) Close() { d.pool.Close() }

// Ready returns nil where the database answers.
func (d *DB) Ready(ctx context.Context) error { return Classify("reach database", d.pool.Ping(ctx)) }

// idleInTransaction is after how many milliseconds the server ends a transaction whose
// program does nothing with it: one that is stopped must not hold up the others.
const idleInTransaction = "idle_in_transaction_session_timeout"

const (
	maxTries = 4
	// jitter is the part of each wait that is drawn at random, so that the programs
	// of one database do not all come back to it at once.
	jitter = 0.4
)

// Tx runs do in a transaction. It runs it again after a deadlock, a serialization
// failure, or on a pooled connection that turned out to be dead before anything
// was sent; do must therefore set its results anew on each run. what says in an
// error what was tried.
func (d *DB) Tx(ctx context.Context, what string, do func(pgx.Tx) error) error {
	var err error
	began := time.Now()
	tries := retry.Backoff{Policy: retry.Policy{Min: 25 * time.Millisecond, Max: 75 * time.Millisecond, Jitter: jitter}}
	for try := range maxTries {
		if try > 0 && tries.Wait(ctx) != nil {
			break
		}
		err = pgx.BeginFunc(ctx, d.pool, do)
		if err == nil || !retryable(err) {
			break
		}
	}
	if d.onTx != nil {
		d.onTx(time.Since(began), err)
	}
	return Classify(what, err)
}

// Stat returns how the pool is.
func (d *DB) Stat() *pgxpool.Stat { return d.pool.Stat() }

// Exec runs one statement. The error is the driver's: see Classify.
func (d *DB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return d.pool.Exec(ctx, sql, args...)
}

// Query runs one query. The error is the driver's: see Rows and Classify.
func (d *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return d.pool.Query(ctx, sql, args...)
}

// QueryRow runs a query for one row.
func (d *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return d.pool.QueryRow(ctx, sql, args...)
}

// A Querier is a DB, a pgx.Tx or a pgx.Conn.
type Querier interface {
	// Query runs a query, see pgx.Conn.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Rows runs a query and collects what scan reads of each row. The error is the
// driver's.
func Rows[T any](ctx context.Context, db Querier, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	r, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, scan)
}

// One returns the only row that Rows found; where there is none, the error is
// NotFound and says what was looked for.
func One[T any](what string, found []T, err error) (T, error) {
	var zero T
	if err != nil {
		return zero, Classify("read "+what, err)
	}
	if len(found) == 0 {
		return zero, protocol.Errorf(protocol.NotFound, "%s", "no "+what)
	}
	return found[0], nil
}
