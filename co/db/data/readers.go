package datadb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// MetricRules lists the rules with a metric that have messages which a reader of
// that name has not read, as far as SaveRead says. Those of which it read nothing
// have no After; nor have those whose stream was forgotten since and begins anew.
func (s *Store) MetricRules(ctx context.Context, reader string) ([]fleet.MetricRule, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (r fleet.MetricRule, err error) {
		var era *int32
		var seq *int64
		err = row.Scan(&r.Site, &r.Rule, &r.Metric, &r.Fields, &era, &seq)
		if era != nil && seq != nil {
			r.After = fleet.Positions{r.Rule: {Era: *era, Seq: uint64(*seq)}}
		}
		return r, err
	}, `select d.site, d.name, d.metric, d.fields,
			case when (l.era, l.seq) > (p.era, p.seq) then p.era end, case when (l.era, l.seq) > (p.era, p.seq) then p.seq end
		from data_rules d join streams l on l.site = d.site and l.stream = $2 || d.name
		left join data_readers p on p.reader = $1 and p.site = d.site and p.rule = d.name
		where d.metric <> '' and l.keep_millis is not null and (p.seq is null or (l.era, l.seq) <> (p.era, p.seq))
		order by d.site, d.name`, reader, protocol.DataStream(""))
	return list, pgdb.Classify("list rules with a metric", err)
}

// SaveRead records how far a reader of stored messages has come at a site. Rules
// that are not in at stay as they are.
func (s *Store) SaveRead(ctx context.Context, reader string, site protocol.SiteID, at fleet.Positions) error {
	return s.db.Tx(ctx, "record what was read", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		for rule, p := range at {
			b.Queue(`insert into data_readers (reader, site, rule, era, seq) values ($1, $2, $3, $4, $5)
				on conflict (reader, site, rule) do update set era = $4, seq = $5`, reader, site, rule, p.Era, int64(p.Seq))
		}
		return tx.SendBatch(ctx, b).Close()
	})
}
