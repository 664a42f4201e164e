package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// EventChannel is the SQL expression of the channel that reports new ids of events.
// The payload is the greatest. Each schema has a channel.
const EventChannel = `'colony_events_' || current_schema()`

// WriteEvents records events as a part of a transaction. They get their ids, in the
// order of the slice, after its commit: see Sequence. It waits for no other writer.
func WriteEvents(ctx context.Context, tx pgx.Tx, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	QueueEvents(b, events)
	return tx.SendBatch(ctx, b).Close()
}

// eventTexts are the columns of an event that are texts.
func eventTexts(e *fleet.Event) [10]string {
	return [10]string{
		e.Kind, string(e.Site), string(e.Node), string(e.Deployment), string(e.From), string(e.To),
		string(e.Phase), e.AppVersion, string(e.Code), e.Message,
	}
}

// QueueEvents is WriteEvents as a statement of a batch.
func QueueEvents(b *pgx.Batch, events []fleet.Event) {
	if len(events) == 0 {
		return
	}
	o := outboxOf(events)
	b.Queue(`insert into event_outbox (size, time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code,
			message, pulled_bytes, total_bytes, site_time_unsynced) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		len(events), o.times, o.siteTimes, o.text[0], o.text[1], o.text[2], o.text[3], o.text[4], o.text[5], o.text[6], o.text[7], o.text[8], o.text[9],
		o.pulled, o.total, o.unsynced)
}

// Outbox is the table that CopyEvents is for.
const Outbox = "event_outbox"

// CopyEvents is WriteEvents as a COPY to Outbox, which costs the program less where
// there are many.
func CopyEvents(events []fleet.Event) *pgdb.Copy {
	o := outboxOf(events)
	row := pgdb.NewCopy(len(events)*200, "size", "time", "site_time", "kind", "site", "node", "deployment", "from_state", "to_state", "phase", "app_version",
		"code", "message", "pulled_bytes", "total_bytes", "site_time_unsynced")
	row.Row()
	row.Int4(int32(len(events)))
	row.Timestamps(o.times)
	row.Timestamps(o.siteTimes)
	for _, list := range o.text {
		row.Texts(list)
	}
	row.Int8s(o.pulled)
	row.Int8s(o.total)
	row.Bools(o.unsynced)
	return row
}

// An outbox is the columns of a row of event_outbox.
type outbox struct {
	times, siteTimes []*time.Time
	text             [10][]string
	pulled, total    []int64
	unsynced         []bool
}

func outboxOf(events []fleet.Event) *outbox {
	n := len(events)
	o := &outbox{
		times: make([]*time.Time, n), siteTimes: make([]*time.Time, n), pulled: make([]int64, n), total: make([]int64, n), unsynced: make([]bool, n),
	}
	for i := range o.text {
		o.text[i] = make([]string, n)
	}
	for i := range events {
		e := &events[i]
		if !e.Time.IsZero() {
			o.times[i] = &e.Time
		}
		o.siteTimes[i], o.unsynced[i] = e.SiteTime, e.Unsynced && e.SiteTime != nil
		for j, s := range eventTexts(e) {
			o.text[j][i] = s
		}
		o.pulled[i], o.total[i] = int64(e.Pulled), int64(e.Total)
	}
	return o
}
