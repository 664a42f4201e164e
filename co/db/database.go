// Package db is the CO's PostgreSQL database. It migrates the schema, and has what several stores in its folder
// need: the feed of events, anomalies, the reports about a site's streams, the lock of a site, and the counters of
// deployments. Errors are of the protocol's kinds; while the database is not reachable they are Unavailable.
package db

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/migrations"
	"github.com/colonyfleet/colony/protocol"
)

// feedConns bounds the connections of the feed: one for the sequencer, one for the
// reader of new events, two for streams that are behind. The fifth is for leases, which must
// not wait for other work.
const feedConns = 5

// Options configure a DB. The zero Options are usable.
type Options struct {
	// MaxConns bounds the pool; 0 means 16. The feed of events has five more.
	MaxConns int32
	// Tracer sees every query but those of the feed, which are not measured then. It may be nil.
	Tracer pgx.QueryTracer
	// NoMigration refuses a database whose schema is not this program's, as another program may use it; one that holds
	// no CO is prepared.
	NoMigration bool
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// A DB is the database. Its methods may be called concurrently.
type DB struct {
	*pgdb.DB
	// Feed is the same database over a few connections of their own, for the sequencer
	// and the readers of the feed of events: they and the other work do not wait for
	// each other's connections.
	Feed *pgdb.DB
	// Log is the logger of the stores.
	Log *slog.Logger
	// Counts are of all streams of the sites, whichever store commits them.
	Counts Counts
	// Metrics registers further metrics; it may be nil.
	Metrics prometheus.Registerer

	epoch   string
	written notify.Signal // a Tx has ended: there may be events without ids
	gate    gate
}

// Counts count what the sites' batches brought.
type Counts struct {
	Duplicates, Anomalies, Lost prometheus.Counter
}

// Counter registers a counter of the CO by the name that is scraped; r may be nil.
func Counter(r prometheus.Registerer, name, help string) prometheus.Counter {
	return promauto.With(r).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Open connects to the database at a PostgreSQL URL and brings its schema up to
// date. While the database cannot be reached it tries again, with backoff, until
// ctx ends; an error that waiting does not remove (a wrong password, a database made
// by a later program) returns at once.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &DB{
		Log: o.Logger.With("component", "store"), Metrics: o.Registerer, written: notify.New(),
		Counts: Counts{
			Duplicates: Counter(o.Registerer, "colony_co_site_events_duplicate_total", "Events and messages of sites' journals that were received before and ignored."),
			Anomalies:  Counter(o.Registerer, "colony_co_site_anomalies_total", "Reports that broke the lifecycle table, and reports and messages that could not be read."),
			Lost:       Counter(o.Registerer, "colony_co_site_events_lost_total", "Events and messages of sites' journals that will never arrive."),
		},
	}
	measured := newMetrics()
	if o.Tracer == nil && o.Registerer != nil {
		o.Tracer = measured
	}
	var err error
	d.DB, err = pgdb.Open(ctx, url, pgdb.Options{MaxConns: o.MaxConns, Prepare: d.prepare(o), Tracer: o.Tracer, OnTx: measured.ended, Logger: d.Log})
	if err != nil {
		return nil, err
	}
	d.Feed, err = pgdb.Open(ctx, url, pgdb.Options{MaxConns: feedConns, Logger: d.Log})
	if err != nil {
		d.DB.Close()
		return nil, err
	}
	measured.pools = map[string]func() *pgxpool.Stat{"work": d.Stat, "feed": d.Feed.Stat}
	if o.Registerer == nil {
		return d, nil
	}
	if err := o.Registerer.Register(measured); err != nil {
		d.Close()
		return nil, fmt.Errorf("register metrics of the database: %w", err)
	}
	return d, nil
}

// Close ends all connections. Calls that still run finish first.
func (d *DB) Close() {
	d.DB.Close()
	d.Feed.Close()
}

func (d *DB) prepare(o Options) func(ctx context.Context, conn *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		if err := restored(ctx, conn); err != nil {
			return err
		}
		if o.NoMigration {
			n, err := migrations.Version(ctx, conn)
			if err != nil {
				return pgdb.Classify("read the schema of the database", err)
			}
			if last := migrations.Latest(); n != 0 && n != last {
				return protocol.Errorf(protocol.Conflict, "the database has the schema %d, and this program's is %d: use the program of the CO that runs, or start the CO of this one first", n, last)
			}
		}
		if err := migrations.Apply(ctx, conn); err != nil {
			return pgdb.Classify("prepare database", err)
		}
		return pgdb.Classify("read epoch", conn.QueryRow(ctx, "select epoch from colony").Scan(&d.epoch))
	}
}

// restored fails where a restore did not end: what it put aside is the fleet's record, and what stands in its place may be empty, or
// a backup whose tokens still count.
func restored(ctx context.Context, conn *pgx.Conn) error {
	var schema string
	err := conn.QueryRow(ctx, `select coalesce(max(nspname), '') from pg_namespace where nspname = current_schema() || $1`, migrations.BeforeRestore).Scan(&schema)
	if err != nil {
		return pgdb.Classify("look at the database", err)
	}
	if schema != "" {
		return protocol.Errorf(protocol.Conflict, "a restore of the database did not end, and has left the schema %s: run colony co restore --replace again, "+
			"which begins with what was there before; or, without it, stop all COs, and drop schema %[1]s where the present content is the right one", pgx.Identifier{schema}.Sanitize())
	}
	return nil
}

// Epoch names this database: the sequences of its streams count within it.
func (d *DB) Epoch() string { return d.epoch }
