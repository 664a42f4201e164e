package datadb

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// maxStreams bounds the streams of a site that are recorded. Those of rules that are
// removed count until forgetStreams forgets them.
const maxStreams = 128

// Streams returns what is known of the streams of a site: of its events, with the
// empty name, and of each data rule by the name of its stream (protocol.DataStream).
// Where the site reported another epoch than the one that is committed, the Stream is
// of that epoch, and nothing of it is committed. A site that does not exist has none.
func (s *Store) Streams(ctx context.Context, site protocol.SiteID) ([]fleet.Stream, error) {
	streams, err := pgdb.Rows(ctx, s.db, scanStream, `select p.stream, p.epoch, p.seq, reported_at, coalesce(reported_epoch, ''), last, bytes, oldest_ms, dropped,
			expired, rtt_us, rate
		from (select '' as stream, journal_epoch as epoch, journal_seq as seq from sites where id = $1
			union all select stream, epoch, seq from streams where site = $1 and stream <> '') p
		left join streams l on l.site = $1 and l.stream = p.stream order by p.stream`, site)
	return streams, pgdb.Classify("list streams of site "+string(site), err)
}

func scanStream(row pgx.CollectableRow) (l fleet.Stream, err error) {
	var reportedAt *time.Time
	var reportedEpoch string
	var reported [7]*int64 // null where the site never reported
	err = row.Scan(&l.Name, &l.Epoch, &l.Committed, &reportedAt, &reportedEpoch, &reported[0], &reported[1], &reported[2], &reported[3], &reported[4], &reported[5], &reported[6])
	if err != nil || reportedAt == nil {
		return l, err
	}
	if reportedEpoch != "" && reportedEpoch != l.Epoch {
		l.Epoch, l.Committed = reportedEpoch, 0
	}
	l.Reported, l.Last, l.Bytes = *reportedAt, uint64(*reported[0]), uint64(*reported[1])
	l.OldestAge = time.Duration(min(*reported[2], math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	l.Dropped, l.Expired = uint64(*reported[3]), uint64(*reported[4])
	l.RTT = time.Duration(min(*reported[5], math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
	l.BytesPerSecond = uint64(*reported[6])
	return l, nil
}

// probe answers a batch without events: it records what the site reports, and changes
// nothing else.
func (s *Store) probe(ctx context.Context, site protocol.SiteID, b protocol.Batch) (protocol.Ack, error) {
	var row streamRow
	err := s.db.Tx(ctx, "answer probe of site "+string(site), func(tx pgx.Tx) (err error) {
		if row, err = lockStream(ctx, tx, site, b.Stream); err != nil {
			return err
		}
		q := &pgx.Batch{}
		db.QueueProbe(q, site, b)
		return tx.SendBatch(ctx, q).Close()
	})
	return row.Ack(b), err
}

// A streamRow is what a writer to a data stream needs of its row and of its rule.
type streamRow struct {
	stream.Position
	era   int32
	sweep uint64 // sweep_from
	begun int64  // sweep_time
	keep  *int64 // of what is stored already
	// store and ruleKeep are the rule's. A rule that is not known stores nothing.
	store    bool
	ruleKeep int64
	now      time.Time // the transaction began
}

// lockStream locks the row of a data stream until the transaction ends, making it
// where there is none. It touches no row of the site's events, so that these do
// not wait.
func lockStream(ctx context.Context, tx pgx.Tx, site protocol.SiteID, stream string) (r streamRow, err error) {
	rule, err := ruleOf(stream)
	if err != nil {
		return r, err
	}
	for range 2 {
		err = tx.QueryRow(ctx, `select l.epoch, l.seq, l.retired_epochs, l.era, l.sweep_from, l.sweep_time, l.keep_millis, coalesce(r.store, false),
			coalesce(r.keep_millis, 0), now() from streams l left join data_rules r on r.site = l.site and r.name = $3
			where l.site = $1 and l.stream = $2 for no key update of l`, site, stream, rule).
			Scan(&r.Epoch, &r.Seq, &r.Retired, &r.era, &r.sweep, &r.begun, &r.keep, &r.store, &r.ruleKeep, &r.now)
		if !errors.Is(err, pgx.ErrNoRows) {
			return r, err
		}
		q := &pgx.Batch{}
		q.Queue(`insert into sites (id) values ($1) on conflict do nothing`, site)
		q.Queue(`insert into streams (site, stream) select $1, $2 where (select count(*) from streams where site = $1) < $3
			on conflict do nothing`, site, stream, maxStreams)
		if err := tx.SendBatch(ctx, q).Close(); err != nil {
			return r, err
		}
	}
	return r, protocol.Errorf(protocol.Invalid,
		"site %s has %d streams already, and %s would be one more: give new rules the names of old ones", site, maxStreams, stream)
}

// ruleOf returns the name of the rule behind a data stream.
func ruleOf(stream string) (string, error) {
	rule, ok := strings.CutPrefix(stream, protocol.DataStream(""))
	if _, err := protocol.ParseDeploymentName(rule); !ok || err != nil { // rules are labels, as deployments are
		return "", protocol.Errorf(protocol.Invalid, "stream %q: want %s and the name of a data rule", stream, protocol.DataStream(""))
	}
	return rule, nil
}
