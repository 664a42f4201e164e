package datadb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// queuePosition records how far the stream is committed, and what the site reports of it.
func (c *dataCommit) queuePosition(q *pgx.Batch) {
	r := &c.row
	if len(c.stored) > 0 && (r.keep == nil || *r.keep != r.ruleKeep) {
		r.keep = &r.ruleKeep
	}
	q.Queue(`update streams set epoch = $3, seq = $4, retired_epochs = $5, era = $6, sweep_from = $7, keep_millis = $8,
			reported_at = clock_timestamp(), sweep_time = $9, reported_epoch = $10, last = $11, bytes = $12, oldest_ms = $13, dropped = $14, expired = $15,
			rtt_us = $16, rate = $17
		where site = $1 and stream = $2`,
		append([]any{c.site, c.batch.Stream, r.Epoch, int64(r.Seq), pgdb.Filled(r.Retired), r.era, int64(r.sweep), r.keep, r.begun}, db.ReportedArgs(c.batch)...)...)
}

// store writes the messages of a rule that stores them.
func (c *dataCommit) store(ctx context.Context, tx pgx.Tx) error {
	if len(c.stored) == 0 {
		return nil
	}
	size := 0
	for _, m := range c.stored {
		size += 200 + len(m.Body)
	}
	rows := pgdb.NewCopy(size, "received_at", "site_time", "seq", "era", "qos", "retain", "site", "rule", "topic", "payload", "content_type",
		"response_topic", "correlation", "properties")
	for _, m := range c.stored {
		rows.Row()
		rows.Timestamptz(c.row.now)
		rows.Timestamptz(siteTime(m.UnixMillis))
		rows.Int8(int64(m.Seq))
		rows.Int4(c.row.era)
		rows.Int2(int16(m.QoS))
		rows.Bool(m.Retain)
		rows.Text(string(c.site))
		rows.Text(c.rule)
		rows.Text(m.Topic)
		rows.Bytea(m.Payload)
		rows.Text(m.ContentType)
		rows.Text(m.ResponseTopic)
		rows.Bytea(m.CorrelationData)
		rows.Texts(m.Properties)
	}
	return rows.Send(ctx, tx, "data_messages")
}
