// Package store is the CO's record in PostgreSQL: the catalog, what should run,
// what runs, and every event. Errors are of the protocol's kinds; while the
// database is away they are Unavailable, and the pool finds it again by itself.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/migrations"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure a Store. The zero Options are usable.
type Options struct {
	// MaxConns bounds the pool; 0 means 16. Listen takes one more of its own.
	MaxConns int32
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// A Store is the database. Its methods may be called concurrently.
type Store struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics metrics
	epoch   string
}

type metrics struct{ events, duplicates, anomalies, lost prometheus.Counter }

func newMetrics(r prometheus.Registerer) metrics {
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "colony", Subsystem: "co", Name: name, Help: help})
	}
	return metrics{
		events:     counter("site_events_total", "Events of sites' journals that were committed."),
		duplicates: counter("site_events_duplicate_total", "Events of sites' journals that came again and were ignored."),
		anomalies:  counter("site_anomalies_total", "Reports that broke the lifecycle table or could not be read."),
		lost:       counter("site_events_lost_total", "Events of sites' journals that will never arrive."),
	}
}

// Open connects to the database at a PostgreSQL URL and brings its schema up to
// date. While the database cannot be reached it tries again, with backoff, until
// ctx ends; an error that time does not heal (a wrong password, a database made by
// a later program) returns at once.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With("component", "store")
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "database url: %w", err)
	}
	config.MaxConns = 16
	if opts.MaxConns > 0 {
		config.MaxConns = opts.MaxConns
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	config.ConnConfig.RuntimeParams["application_name"] = "colony"
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, classify("open database", err)
	}
	s := &Store{pool: pool, log: log, metrics: newMetrics(opts.Registerer)}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := s.prepare(ctx)
		if err == nil {
			return s, nil
		}
		if protocol.KindOf(err) != protocol.Unavailable || ctx.Err() != nil {
			pool.Close()
			return nil, err
		}
		log.WarnContext(ctx, "database not reachable, trying again", "err", err, "wait", wait)
		if !pause(ctx, wait) {
			pool.Close()
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

func (s *Store) prepare(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return classify("connect to database", err)
	}
	defer conn.Release()
	if err := migrations.Apply(ctx, conn.Conn()); err != nil {
		return classify("prepare database", err)
	}
	err = conn.QueryRow(ctx, "select epoch from colony").Scan(&s.epoch)
	return classify("read epoch", err)
}

// pause waits, with jitter of a quarter, and reports false where ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d - d/4 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Close ends all connections. Calls that still run finish first.
func (s *Store) Close() { s.pool.Close() }

// Epoch names this database: it counts the generations of the desired states.
func (s *Store) Epoch() string { return s.epoch }

// Ready returns nil where the database answers.
func (s *Store) Ready(ctx context.Context) error {
	return classify("reach database", s.pool.Ping(ctx))
}

const maxTries = 4

// tx runs do in a transaction. It runs it again after a deadlock, a serialization
// failure, or on a pooled connection that turned out to be dead before anything
// was sent; do must therefore set its results anew on each run.
func (s *Store) tx(ctx context.Context, what string, do func(pgx.Tx) error) error {
	var err error
	for try := range maxTries {
		if try > 0 && !pause(ctx, time.Duration(try)*20*time.Millisecond) {
			break
		}
		err = pgx.BeginFunc(ctx, s.pool, do)
		if err == nil || !again(err) {
			break
		}
	}
	return classify(what, err)
}

// rows runs a query and collects what scan reads of each row.
func rows[T any](ctx context.Context, db querier, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	r, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, scan)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// one returns the only row that a query found; where there is none, the error is
// NotFound and says what was looked for.
func one[T any](what string, found []T, err error) (T, error) {
	var zero T
	if err != nil {
		return zero, classify("read "+what, err)
	}
	if len(found) == 0 {
		return zero, protocol.Errorf(protocol.NotFound, "%s", "no "+what)
	}
	return found[0], nil
}

func quote(s string) string { return fmt.Sprintf("%q", s) }
