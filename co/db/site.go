package db

import (
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// QueueAnomalies records reports of a site that could not be applied; epoch is that of
// their stream.
func QueueAnomalies(b *pgx.Batch, site protocol.SiteID, epoch string, list []projection.Anomaly) {
	for _, a := range list {
		body := a.Body
		if body == nil {
			body = []byte{}
		}
		b.Queue(`insert into anomalies (site, node, deployment, kind, journal_epoch, journal_seq, reason, body)
			values ($1, $2, $3, $4, $5, $6, $7, $8)`, site, a.Node, a.Deployment, a.Kind, epoch, int64(a.Seq), a.Reason, body)
	}
}

// ReportedArgs returns the columns reported_epoch to rate of the table streams, from the
// Backlog of a batch.
func ReportedArgs(b protocol.Batch) []any {
	out := []any{pgdb.Storable(b.Epoch)}
	for _, n := range [...]uint64{
		b.Backlog.Last, b.Backlog.Bytes, b.Backlog.OldestMillis, b.Backlog.Dropped, b.Backlog.Expired, b.Backlog.RTTMicros, b.Backlog.BytesPerSecond,
	} {
		out = append(out, int64(min(n, math.MaxInt64)))
	}
	return out
}

// QueueReport records what a batch reports of its stream, unless the batch is a late
// one of a retired epoch.
func QueueReport(q *pgx.Batch, site protocol.SiteID, b protocol.Batch) {
	q.Queue(`insert into streams as l (site, stream, reported_at, reported_epoch, last, bytes, oldest_ms, dropped, expired, rtt_us, rate)
		values ($1, $2, clock_timestamp(), $3, $4, $5, $6, $7, $8, $9, $10)
		on conflict (site, stream) do update set reported_at = excluded.reported_at, reported_epoch = excluded.reported_epoch, last = excluded.last,
			bytes = excluded.bytes, oldest_ms = excluded.oldest_ms, dropped = excluded.dropped, expired = excluded.expired,
			rtt_us = excluded.rtt_us, rate = excluded.rate
		where not excluded.reported_epoch = any(l.retired_epochs)
			and ($2 <> '' or not exists (select from sites where id = $1 and excluded.reported_epoch = any(retired_epochs)))`,
		append([]any{site, b.Stream}, ReportedArgs(b)...)...)
}

// QueueProbe records what a batch without events reports. It is committed without
// waiting for the disk: a crash of the database may lose it.
func QueueProbe(q *pgx.Batch, site protocol.SiteID, b protocol.Batch) {
	q.Queue(`select set_config('synchronous_commit', 'off', true)`)
	QueueReport(q, site, b)
}
