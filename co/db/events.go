package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
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
	n := len(events)
	times, siteTimes := make([]*time.Time, n), make([]*time.Time, n)
	var text [10][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	pulled, total, unsynced := make([]int64, n), make([]int64, n), make([]bool, n)
	for i := range events {
		e := &events[i]
		if !e.Time.IsZero() {
			times[i] = &e.Time
		}
		siteTimes[i], unsynced[i] = e.SiteTime, e.Unsynced && e.SiteTime != nil
		for j, s := range eventTexts(e) {
			text[j][i] = s
		}
		pulled[i], total[i] = int64(e.Pulled), int64(e.Total)
	}
	b.Queue(`insert into event_outbox (size, time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code,
			message, pulled_bytes, total_bytes, site_time_unsynced) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		n, times, siteTimes, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], pulled, total, unsynced)
}
