package db

import (
	"cmp"
	"math"
	"slices"

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

// A Report is a batch of a site, for what it reports of its stream.
type Report struct {
	Site protocol.SiteID
	protocol.Batch
}

// QueueReports records what batches report of their streams, each of another stream,
// unless a batch is a late one of a retired epoch.
func QueueReports(q *pgx.Batch, list []Report) {
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b Report) int {
		return cmp.Or(cmp.Compare(a.Site, b.Site), cmp.Compare(a.Stream, b.Stream)) // two transactions lock in one order
	})
	var text [3][]string
	var number [7][]int64
	for _, r := range list {
		args := ReportedArgs(r.Batch)
		text[0], text[1], text[2] = append(text[0], string(r.Site)), append(text[1], r.Stream), append(text[2], args[0].(string))
		for i := range number {
			number[i] = append(number[i], args[1+i].(int64))
		}
	}
	q.Queue(`insert into streams as l (site, stream, reported_at, reported_epoch, last, bytes, oldest_ms, dropped, expired, rtt_us, rate)
		select u.site, u.stream, clock_timestamp(), u.epoch, u.last, u.bytes, u.oldest, u.dropped, u.expired, u.rtt, u.rate
		from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::bigint[]) as u (site, stream, epoch, last, bytes, oldest, dropped, expired, rtt, rate)
		on conflict (site, stream) do update set reported_at = excluded.reported_at, reported_epoch = excluded.reported_epoch, last = excluded.last,
			bytes = excluded.bytes, oldest_ms = excluded.oldest_ms, dropped = excluded.dropped, expired = excluded.expired,
			rtt_us = excluded.rtt_us, rate = excluded.rate
		where not excluded.reported_epoch = any(l.retired_epochs)
			and (excluded.stream <> '' or not exists (select from sites where id = excluded.site and excluded.reported_epoch = any(retired_epochs)))`,
		text[0], text[1], text[2], number[0], number[1], number[2], number[3], number[4], number[5], number[6])
}

// QueueProbe records what a batch without events reports. It is committed without
// waiting for the disk: a crash of the database may lose it.
func QueueProbe(q *pgx.Batch, site protocol.SiteID, b protocol.Batch) {
	q.Queue(`select set_config('synchronous_commit', 'off', true)`)
	QueueReports(q, []Report{{site, b}})
}
