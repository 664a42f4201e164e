package datadb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// daysAhead is how many partitions of data_messages are made before their day.
	daysAhead = 7
	// keepEvery is how often old messages are looked for: a rule's Keep is held to
	// within it.
	keepEvery = 15 * time.Minute
	// forgetAfter is how long the position of a stream is held that no rule names and
	// of which nothing is stored, after its last report.
	forgetAfter = 30 * 24 * time.Hour
)

// dataLock is the SQL expression of the advisory lock under which partitions are made
// and dropped.
const dataLock = `hashtext('colony_data_' || current_schema())`

// errNoPartition says that the day of a message may have no partition.
var errNoPartition = errors.New("no partition for the day")

const checkViolation = "23514" // also a row that fits no partition

func lacksPartition(err error) bool {
	if errors.Is(err, errNoPartition) {
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == checkViolation && pg.TableName == "data_messages"
}

// days is up to which day (Unix days) this program has seen partitions.
type days struct{ through atomic.Int64 }

func dayOf(t time.Time) int64 { return t.Unix() / 86400 }

func (d *days) has(t time.Time) bool { return dayOf(t) <= d.through.Load() }

// KeepData makes the partitions of stored messages ahead of time, deletes what is
// older than its rule's Keep, and forgets retained messages whose time is up. It
// goes on until ctx ends. Any number of programs may run it on one database.
func (s *Store) KeepData(ctx context.Context) {
	// Several programs of one database do not tidy up at one time for long.
	often := retry.Policy{Min: keepEvery * 5 / 4, Max: keepEvery * 5 / 4, Jitter: 0.4}
	for {
		for _, step := range [...]func(context.Context) error{s.makePartitions, s.expireMessages, s.expireRetained, s.forgetStreams} {
			if err := step(ctx); err != nil && ctx.Err() == nil {
				s.db.Log.WarnContext(ctx, "machine data not expired, trying again", "err", err, "wait", keepEvery)
			}
		}
		if retry.Sleep(ctx, often.Delay(0, nil)) != nil {
			return
		}
	}
}

// A partition is one day of data_messages.
type partition struct {
	name string
	from time.Time
}

func (p partition) until() time.Time { return p.from.AddDate(0, 0, 1) }

const partitionPrefix = "data_messages_"

func partitionOf(day time.Time) partition {
	day = day.UTC().Truncate(24 * time.Hour)
	return partition{partitionPrefix + day.Format("20060102"), day}
}

// partitions lists the partitions that there are, the oldest first.
func partitions(ctx context.Context, tx pgx.Tx) ([]partition, error) {
	names, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = 'data_messages'::regclass order by c.relname`)
	var out []partition
	for _, name := range names {
		// One that a user attached is not ours to drop.
		if day, err := time.Parse("20060102", strings.TrimPrefix(name, partitionPrefix)); err == nil {
			out = append(out, partition{name, day})
		}
	}
	return out, err
}

// makePartitions makes those that are missing, from yesterday on: the database's
// clock may be set back.
func (s *Store) makePartitions(ctx context.Context) error {
	var through int64
	err := s.db.Tx(ctx, "make partitions of stored data", func(tx pgx.Tx) error {
		var now time.Time
		if err := tx.QueryRow(ctx, `select now() from pg_advisory_xact_lock(`+dataLock+`)`).Scan(&now); err != nil {
			return err
		}
		list, err := partitions(ctx, tx)
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for _, p := range list {
			there[p.name] = true
		}
		q := &pgx.Batch{}
		for i := -1; i <= daysAhead; i++ {
			p := partitionOf(now.AddDate(0, 0, i))
			through = dayOf(p.from)
			if there[p.name] {
				continue
			}
			// Attaching a table that was made before blocks no reader or writer of the
			// others, as making it a partition at once would.
			q.Queue(`create table ` + p.name + ` (like data_messages including all)`)
			q.Queue(fmt.Sprintf(`alter table data_messages attach partition %s for values from ('%s') to ('%s')`,
				p.name, p.from.Format(time.RFC3339), p.until().Format(time.RFC3339)))
		}
		return tx.SendBatch(ctx, q).Close()
	})
	if err == nil {
		s.days.through.Store(through)
	}
	return err
}

// A retention is a rule whose messages are stored, now or once.
type retention struct {
	site, rule string
	cutoff     time.Time // messages before it are not kept; zero: all are
}

// expireMessages deletes what is older than Keep, a whole day at once where
// nothing of it is kept. Messages of a removed rule are kept as long as it said.
func (s *Store) expireMessages(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, `update streams l set keep_millis = r.keep_millis from data_rules r
		where r.site = l.site and 'data/' || r.name = l.stream and r.store and l.keep_millis <> r.keep_millis`); err != nil {
		return pgdb.Classify("read how long data is kept", err)
	}
	var list []partition
	var keepers []retention
	err := s.db.Tx(ctx, "read how long data is kept", func(tx pgx.Tx) (err error) {
		if list, err = partitions(ctx, tx); err != nil {
			return err
		}
		keepers, err = pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (k retention, err error) {
			var cutoff *time.Time
			if err = row.Scan(&k.site, &k.rule, &cutoff); cutoff != nil {
				k.cutoff = *cutoff
			}
			return k, err
		}, `select site, substr(stream, 6), case when keep_millis > 0 and keep_millis < 3e13 then now() - keep_millis * interval '1 ms' end
			from streams where keep_millis is not null`)
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range list {
		err = errors.Join(err, s.expirePartition(ctx, p, keepers))
	}
	return err
}

// expirePartition deletes from one day what is not kept.
func (s *Store) expirePartition(ctx context.Context, p partition, keepers []retention) error {
	var some []retention // part of the day is kept, or all of it
	for _, k := range keepers {
		if k.cutoff.Before(p.until()) {
			some = append(some, k)
		}
	}
	return s.db.Tx(ctx, "delete old data of "+p.name, func(tx pgx.Tx) error {
		var mine, past bool // past by the clock that received_at is of
		// A program that is at it already does it for all; a reader of the table
		// holds up a drop, which must then not hold up the writers behind it.
		err := tx.QueryRow(ctx, `select pg_try_advisory_xact_lock(`+dataLock+`) and set_config('lock_timeout', '1s', true) <> '',
			now() > $1::timestamptz + interval '1 day'`, p.until()).Scan(&mine, &past)
		if err != nil || !mine {
			return err
		}
		held, err := stored(ctx, tx, p, some)
		if err != nil {
			return err
		}
		if past && !held {
			_, err := tx.Exec(ctx, `drop table if exists `+p.name)
			return err
		}
		return expireRows(ctx, tx, p, keepers)
	})
}

// expireRows deletes from one day what its rules do not keep, of all rules at once. Each
// rule's part of the day is found by the primary key.
func expireRows(ctx context.Context, tx pgx.Tx, p partition, keepers []retention) error {
	var sites, rules []string
	var cutoffs []time.Time
	for _, k := range keepers {
		if k.cutoff.After(p.from) {
			sites, rules, cutoffs = append(sites, k.site), append(rules, k.rule), append(cutoffs, k.cutoff)
		}
	}
	if len(sites) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `delete from `+p.name+` m using unnest($1::text[], $2::text[], $3::timestamptz[]) as k (site, rule, cutoff)
		where m.site = k.site and m.rule = k.rule and m.received_at < k.cutoff`, sites, rules, cutoffs)
	return err
}

// stored reports whether the partition holds messages of one of the rules.
func stored(ctx context.Context, tx pgx.Tx, p partition, of []retention) (held bool, err error) {
	sites, rules := make([]string, len(of)), make([]string, len(of))
	for i, k := range of {
		sites[i], rules[i] = k.site, k.rule
	}
	err = tx.QueryRow(ctx, `select exists (select from unnest($1::text[], $2::text[]) as k (site, rule)
		where exists (select from `+p.name+` m where m.site = k.site and m.rule = k.rule))`, sites, rules).Scan(&held)
	return held, err
}

func (s *Store) expireRetained(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `delete from data_retained where expires_at < now()`)
	return pgdb.Classify("delete expired retained data", err)
}

// forgetStreams forgets streams that belong to no rule any more, so that the number of a site's
// streams is bounded even if its rules get new names. A stream that comes back begins anew, as that
// of an unknown site does, and so do its readers.
func (s *Store) forgetStreams(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `with removed as (delete from streams l where stream <> '' and reported_at < now() - $1 * interval '1 s'
		and not exists (select from data_rules r where r.site = l.site and 'data/' || r.name = l.stream)
		and not exists (select from data_retained t where t.site = l.site and t.stream = l.stream)
		and not exists (select from data_messages m where m.site = l.site and m.rule = substr(l.stream, 6)) returning site, stream)
		delete from data_readers d using removed g where g.site = d.site and g.stream = 'data/' || d.rule`, forgetAfter.Seconds())
	return pgdb.Classify("forget streams without a rule", err)
}
