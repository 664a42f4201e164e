package migrations_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestApplyAtOnceAndAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	var g errgroup.Group
	for range 4 {
		conn := connect(t, url)
		g.Go(func() error { return migrations.Apply(t.Context(), conn) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	var before, after string
	if err := conn.QueryRow(t.Context(), "select epoch from colony").Scan(&before); err != nil || before == "" {
		t.Fatalf("epoch %q: %v", before, err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "select epoch from colony").Scan(&after); err != nil || after != before {
		t.Errorf("epoch was %s, is %s after a second Apply: %v", before, after, err)
	}
}

func TestLaterDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t))
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "update schema_version set version = version + 1"); err != nil {
		t.Fatal(err)
	}
	err := migrations.Apply(t.Context(), conn)
	if err == nil || !strings.Contains(err.Error(), "later version of this program") {
		t.Errorf("got %v", err)
	}
}

// TestWordsKeepRows brings a database that stands at the fourth step up to date, with
// a row in each table that the fifth renames.
func TestWordsKeepRows(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t))
	if err := migrations.ApplyTo(t.Context(), conn, 4); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(t.Context(), `
		insert into sites (id, left_epochs) values ('plant', '{a}');
		insert into lanes (site, lane, left_epochs, told_at, told_epoch) values ('plant', 'data/temps', '{b}', 'epoch', 'c');
		insert into data_retained (site, topic, lane, epoch, seq, qos, payload, content_type, response_topic, correlation, properties)
			values ('plant', 'x', 'data/temps', 'c', 1, 0, '', '', '', '', '{}');
		insert into down_lanes (site, rule, seq) values ('plant', 'recipes', 7);
		insert into down_queue (site, rule, seq, kind, size, taken_at) values ('plant', 'recipes', 7, 'data', 0, 'epoch');
		insert into down_retained (site, rule, topic, body, taken_at) values ('plant', 'recipes', 'x', '', 'epoch')`)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		`select retired_epochs[1] from sites`: "a",
		`select concat_ws(' ', stream, retired_epochs[1], extract(epoch from reported_at)::int, reported_epoch) from streams`: "data/temps b 0 c",
		`select stream from data_retained`:                                     "data/temps",
		`select seq::text from down_streams`:                                   "7",
		`select extract(epoch from accepted_at)::int::text from down_queue`:    "0",
		`select extract(epoch from accepted_at)::int::text from down_retained`: "0",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
}

// TestWordsOfCommandsKeepRows brings a database that stands at the step before 050_words.sql up to date, with rows in the tables that it changes.
func TestWordsOfCommandsKeepRows(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t))
	if err := migrations.ApplyTo(t.Context(), conn, 49); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(t.Context(), `
		insert into sites (id, behind) values ('plant', true);
		insert into command_sites (command, site, created_at, deadline, taken_at, withdrawn_at, given_up, meant, nodes) values
			('waiting', 'plant', 'epoch', 'epoch', null, null, false, 1, '{}'), ('running', 'plant', 'epoch', 'epoch', 'epoch', null, false, 1, '{}'),
			('cancelled', 'plant', 'epoch', 'epoch', null, 'epoch', true, 1, '{}');
		insert into command_nodes (command, site, node, state, code, rank) values ('cancelled', 'plant', 'gw-1', 'refused', 'withdrawn', 1)`)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		`select string_agg(concat_ws(' ', command, state, extract(epoch from received_at)::int, extract(epoch from cancelled_at)::int), ', ' order by command) from command_sites`: "cancelled cancelled 0, running running 0, waiting waiting",
		`select code from command_nodes`:     "cancelled",
		`select incomplete::text from sites`: "true",
		`select count(*)::text from pg_indexes where schemaname = current_schema() and indexname = 'command_sites_open'`:                      "1",
		`select count(*)::text from pg_constraint where connamespace = current_schema()::regnamespace and conname = 'down_streams_site_fkey'`: "1",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
}

// TestEventSequenceGoesOn keeps the events of a database that gave ids as it wrote, and
// goes on behind the last of them.
func TestEventSequenceGoesOn(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t))
	if err := migrations.ApplyTo(t.Context(), conn, 6); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into events (kind, message) values ('a', 'one'), ('a', 'two')`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(t.Context(), `insert into event_outbox (size, time, site_time, kind, site, node, deployment, from_state, to_state, phase,
			app_version, code, message, pulled_bytes, total_bytes)
		values (1, '{null}', '{null}', '{a}', '{""}', '{""}', '{""}', '{""}', '{""}', '{""}', '{""}', '{""}', '{three}', '{0}', '{0}');
		select sequence_events(10)`)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := conn.QueryRow(t.Context(), `select string_agg(id || ' ' || message, ', ' order by id) from events`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "1 one, 2 two, 3 three"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	if _, err := conn.Exec(t.Context(), `insert into events (kind) values ('a')`); err == nil {
		t.Error("a program that does not know the sequence has written an event")
	}
}

// TestApplyWaitsForLocksForAWhile applies a step while a reader holds a table that it changes: it
// gives up, so that the transactions behind it go on, and succeeds the next time.
func TestApplyWaitsForLocksForAWhile(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	conn, reader := connect(t, url), connect(t, url)
	if err := migrations.ApplyTo(t.Context(), conn, 6); err != nil {
		t.Fatal(err)
	}
	tx, err := reader.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from deployments`); err != nil {
		t.Fatal(err)
	}
	err = migrations.Apply(t.Context(), conn)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55P03" {
		t.Fatalf("got %v, want an error with the code 55P03", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Error(err)
	}
	var timeout string
	if err := conn.QueryRow(t.Context(), `show lock_timeout`).Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("lock_timeout is %s afterwards, %v; want 0", timeout, err)
	}
}
