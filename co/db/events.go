package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// EventChannel is the SQL expression of the channel on which a transaction that made
// events notifies. The payload is the greatest id. Each schema has a channel.
const EventChannel = `'colony_events_' || current_schema()`

// WriteEvents records events; it is the last statement of its transaction. Its lock
// keeps ids in the order in which they become visible, and is held to the end of the
// commit, as PostgreSQL's own lock for notify is.
func WriteEvents(ctx context.Context, tx pgx.Tx, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	if len(events) <= pgdb.CopyAbove {
		QueueEvents(b, events)
		return tx.SendBatch(ctx, b).Close()
	}
	return CopyEvents(ctx, tx, EncodeEvents(events))
}

// lockEvents and notifyEvents stand around each insert of events.
const (
	lockEvents   = `select pg_advisory_xact_lock(hashtext(` + EventChannel + `))`
	notifyEvents = `select pg_notify(` + EventChannel + `, currval(pg_get_serial_sequence('events', 'id'))::text)`
)

// CopyEvents is WriteEvents for many events.
func CopyEvents(ctx context.Context, tx pgx.Tx, rows *pgdb.Copy) error {
	if _, err := tx.Exec(ctx, lockEvents); err != nil {
		return err
	}
	if err := rows.Send(ctx, tx, "events"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, notifyEvents)
	return err
}

// EncodeEvents prepares many rows for a COPY, without the columns in which all of
// them are empty: most events say little.
func EncodeEvents(events []fleet.Event) *pgdb.Copy {
	var filled [10]bool
	progress := false
	for i := range events {
		for j, s := range eventTexts(&events[i]) {
			filled[j] = filled[j] || s != ""
		}
		progress = progress || events[i].Pulled > 0 || events[i].Total > 0
	}
	columns := []string{"time", "site_time"}
	for j, name := range [10]string{"kind", "site", "node", "deployment", "from_state", "to_state", "phase", "app_version", "code", "message"} {
		if filled[j] = filled[j] || j == 0; filled[j] { // those that follow are empty by default
			columns = append(columns, name)
		}
	}
	if progress {
		columns = append(columns, "pulled_bytes", "total_bytes")
	}
	now := time.Now()
	rows := pgdb.NewCopy(len(events)*256, columns...)
	for i := range events {
		e := &events[i]
		rows.Row()
		if e.Time.IsZero() {
			rows.Timestamptz(now)
		} else {
			rows.Timestamptz(e.Time)
		}
		rows.Timestamp(e.SiteTime)
		for j, s := range eventTexts(e) {
			if filled[j] {
				rows.Text(s)
			}
		}
		if progress {
			rows.Int8(int64(e.Pulled))
			rows.Int8(int64(e.Total))
		}
	}
	return rows
}

// eventTexts are the columns of an event that are texts.
func eventTexts(e *fleet.Event) [10]string {
	return [10]string{
		e.Kind, string(e.Site), string(e.Node), string(e.Deployment), string(e.From), string(e.To),
		string(e.Phase), e.AppVersion, string(e.Code), e.Message,
	}
}

// QueueEvents is WriteEvents for few events, as statements of a batch.
func QueueEvents(b *pgx.Batch, events []fleet.Event) {
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
		for j, s := range eventTexts(e) {
			text[j][i] = s
		}
		pulled[i], total[i] = int64(e.Pulled), int64(e.Total)
	}
	b.Queue(lockEvents)
	b.Queue(`insert into events (time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message,
			pulled_bytes, total_bytes)
		select coalesce(t, now()), st, k, s, n, d, f, o, p, v, c, m, pb, tb
		from unnest($1::timestamptz[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[])
		with ordinality as u (t, st, k, s, n, d, f, o, p, v, c, m, pb, tb, number) order by number`,
		times, siteTimes, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], pulled, total)
	b.Queue(notifyEvents)
}
