package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
)

// channel is where a transaction tells that it made events. Its payload is the
// greatest id. A schema of its own has a channel of its own.
const channel = `'colony_events_' || current_schema()`

// writeEvents is the last statement of a transaction that makes events. The lock
// keeps ids in the order in which they become visible; it is held to the end of
// the commit, as the one that PostgreSQL itself takes for notify.
func writeEvents(ctx context.Context, tx pgx.Tx, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	queueEvents(b, events)
	return tx.SendBatch(ctx, b).Close()
}

func queueEvents(b *pgx.Batch, events []fleet.Event) {
	if len(events) == 0 {
		return
	}
	n := len(events)
	times, siteTimes := make([]*time.Time, n), make([]*time.Time, n)
	var text [10][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	pulled, total := make([]int64, n), make([]int64, n)
	for i := range events {
		e := &events[i]
		if !e.Time.IsZero() {
			times[i] = &e.Time
		}
		siteTimes[i] = e.SiteTime
		for j, s := range [10]string{
			e.Kind, string(e.Site), string(e.Node), string(e.Deployment), string(e.From), string(e.To),
			string(e.Phase), e.AppVersion, string(e.Code), e.Message,
		} {
			text[j][i] = s
		}
		pulled[i], total[i] = int64(e.Pulled), int64(e.Total)
	}
	b.Queue(`select pg_advisory_xact_lock(hashtext(` + channel + `))`)
	b.Queue(`insert into events (time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message,
			pulled_bytes, total_bytes)
		select coalesce(t, now()), st, k, s, n, d, f, o, p, v, c, m, pb, tb
		from unnest($1::timestamptz[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[])
		with ordinality as u (t, st, k, s, n, d, f, o, p, v, c, m, pb, tb, number) order by number`,
		times, siteTimes, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], pulled, total)
	b.Queue(`select pg_notify(` + channel + `, currval(pg_get_serial_sequence('events', 'id'))::text)`)
}

// AddEvent records something that the CO itself saw. Its ID is given here, and its
// Time where it has none.
func (s *Store) AddEvent(ctx context.Context, e fleet.Event) error {
	return s.tx(ctx, "record event", func(tx pgx.Tx) error { return writeEvents(ctx, tx, []fleet.Event{e}) })
}

const eventColumns = `select id, time, site_time, kind, site, node, deployment, from_state, to_state, phase, pulled_bytes,
	total_bytes, app_version, code, message from events`

func scanEvent(row pgx.CollectableRow) (e fleet.Event, err error) {
	err = row.Scan(&e.ID, &e.Time, &e.SiteTime, &e.Kind, &e.Site, &e.Node, &e.Deployment, &e.From, &e.To, &e.Phase, &e.Pulled,
		&e.Total, &e.AppVersion, &e.Code, &e.Message)
	return e, err
}

// Events returns events in the order of their ids. Whoever asks again with the
// last id as After misses none.
func (s *Store) Events(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	// Only the conditions that are asked for, so that each has its index.
	sql, args := eventColumns+" where id > $1", []any{f.After}
	add := func(condition string, wanted bool, value any) {
		if wanted {
			args = append(args, value)
			sql += fmt.Sprintf(" and "+condition, len(args))
		}
	}
	add("site = $%d", f.Site != "", f.Site)
	add("deployment = $%d and deployment <> ''", f.Deployment != "", f.Deployment)
	add("node = $%d", f.Node != "", f.Node)
	add("kind = any($%d)", len(f.Kinds) > 0, f.Kinds)
	sql += " order by id"
	if f.Newest {
		sql += " desc"
	}
	args = append(args, size(f.Limit))
	events, err := rows(ctx, s.pool, scanEvent, sql+fmt.Sprintf(" limit $%d", len(args)), args...)
	if err != nil {
		return nil, classify("list events", err)
	}
	if f.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

// LastEvent returns the id of the event recorded last, 0 where there is none.
func (s *Store) LastEvent(ctx context.Context) (id int64, err error) {
	err = s.pool.QueryRow(ctx, `select coalesce(max(id), 0) from events`).Scan(&id)
	return id, classify("read last event", err)
}
