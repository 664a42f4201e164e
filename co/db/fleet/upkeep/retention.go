package upkeepdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/retry"
)

// A Retention says how long is kept what is only ever added. 0 means for ever.
type Retention struct {
	Events    time.Duration // the feed
	History   time.Duration // transitions, commands, and deployments that are removed from every node
	Anomalies time.Duration // how long anomalies are kept
	Sessions  time.Duration // those that have ended, with their recordings
}

// DefaultRetention is what a CO keeps unless its configuration says otherwise.
var DefaultRetention = Retention{Events: 90 * 24 * time.Hour, History: 365 * 24 * time.Hour, Anomalies: 365 * 24 * time.Hour, Sessions: 90 * 24 * time.Hour}

const (
	// retainEvery is how often is looked for what is not kept any more.
	retainEvery = 15 * time.Minute
	// weeksAhead is how many partitions are made before their week.
	weeksAhead = 4
	// specGrace is how long a specification is kept that nothing names: an answer that
	// names it may be under way.
	specGrace = 7 * 24 * time.Hour
	// purgeSites bounds the sites whose removed deployments one transaction deletes.
	purgeSites = 50
	// retainedRevisions is how many revisions of a fleet deployment are kept, beside those that a site may have: each has its files.
	retainedRevisions = 100
	// purgeCommands bounds the commands that one transaction deletes: each may have a row for each of many nodes.
	purgeCommands = 100
)

// retainLock is the SQL expression of the advisory lock under which partitions are made and
// dropped. A replica that does not get this lock does nothing: the holder does the work.
const retainLock = `pg_try_advisory_xact_lock(hashtext('colony_retention_' || current_schema()))
	and set_config('lock_timeout', '1s', true) <> ''`

// KeepHistory makes partitions ahead of time, and removes what is older than it is to be
// kept, until ctx ends. Any number of programs may run it on one database.
func (s *Upkeep) KeepHistory(ctx context.Context, keep Retention) {
	often := retry.Policy{Min: retainEvery * 5 / 4, Max: retainEvery * 5 / 4, Jitter: 0.4}
	for {
		if err := s.Retain(ctx, keep); err != nil && ctx.Err() == nil {
			s.db.Log.WarnContext(ctx, "old records not removed, trying again", "err", err, "wait", retainEvery)
		}
		if retry.Sleep(ctx, often.Delay(0, nil)) != nil {
			return
		}
	}
}

// Retain does once what KeepHistory does.
func (s *Upkeep) Retain(ctx context.Context, keep Retention) error {
	return errors.Join(
		s.weeks(ctx, "deployment_history", keep.History), s.weeks(ctx, "anomalies", keep.Anomalies),
		s.dropEvents(ctx, keep.Events), s.purge(ctx, keep.History), s.purgeCommands(ctx, keep.History), s.purgeSessions(ctx, keep.Sessions), s.purgeRollouts(ctx), s.collectSpecs(ctx),
	)
}

// mine reports whether a transaction may make and drop partitions.
func mine(ctx context.Context, tx pgx.Tx) (ok bool, err error) {
	err = tx.QueryRow(ctx, `select `+retainLock).Scan(&ok)
	return ok, err
}

// weeks makes the partitions of a table to come, and drops those that are past.
func (s *Upkeep) weeks(ctx context.Context, table string, keep time.Duration) error {
	var old []string
	err := s.db.Tx(ctx, "make partitions of "+table, func(tx pgx.Tx) error {
		old = nil
		if ok, err := mine(ctx, tx); err != nil || !ok {
			return err
		}
		_, err := tx.Exec(ctx, `select make_week($1, date_trunc('week', now() at time zone 'UTC')::date + 7 * i) from generate_series(0, $2::int) as i`, table, weeksAhead)
		if err != nil || keep <= 0 {
			return err
		}
		old, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `select name from (select c.relname::text as name, to_date(right(c.relname, 8), 'YYYYMMDD') as monday
				from pg_inherits i join pg_class c on c.oid = i.inhrelid
				where i.inhparent = to_regclass($1) and c.relname ~ ($1 || '_[0-9]{8}$')) w
			where (monday + 7)::timestamp at time zone 'UTC' < now() - $2 * interval '1 s' order by name`, table, keep.Seconds())
		return err
	})
	for _, name := range old {
		err = errors.Join(err, s.drop(ctx, name))
	}
	if err != nil || keep <= 0 {
		return err
	}
	return s.deleteFirst(ctx, table, keep)
}

// drop drops a partition. A reader of the table delays that. The drop must then not delay the
// writers behind it for long: it is given up, and tried again the next time.
func (s *Upkeep) drop(ctx context.Context, name string) error {
	return s.db.Tx(ctx, "drop partition "+name, func(tx pgx.Tx) error {
		if ok, err := mine(ctx, tx); err != nil || !ok {
			return err
		}
		_, err := tx.Exec(ctx, `drop table if exists `+pgx.Identifier{name}.Sanitize())
		return err
	})
}

// deleteFirst deletes from what is in no week: rows of before there were partitions, and
// those of a clock that was wrong.
func (s *Upkeep) deleteFirst(ctx context.Context, table string, keep time.Duration) error {
	const atOnce = 10_000
	for _, part := range [...]string{"_first", "_rest"} {
		var there bool
		if err := s.db.QueryRow(ctx, `select to_regclass($1) is not null`, table+part).Scan(&there); err != nil {
			return pgdb.Classify("look for "+table+part, err)
		}
		for there {
			tag, err := s.db.Exec(ctx, fmt.Sprintf(`delete from %s where ctid = any(array(select ctid from %[1]s where time < now() - $1 * interval '1 s' limit $2))`,
				table+part), keep.Seconds(), atOnce)
			if err != nil {
				return pgdb.Classify("delete old rows of "+table+part, err)
			}
			there = tag.RowsAffected() == atOnce
		}
	}
	return nil
}

// dropEvents drops the partitions of events of which nothing is kept: the first event
// behind them is older already. The newest partition stays.
func (s *Upkeep) dropEvents(ctx context.Context, keep time.Duration) error {
	for keep > 0 {
		dropped := ""
		err := s.db.Tx(ctx, "drop old events", func(tx pgx.Tx) error {
			dropped = ""
			if ok, err := mine(ctx, tx); err != nil || !ok {
				return err
			}
			found, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select p.name from (select * from event_partitions order by first limit 1) p,
				lateral (select time from events where id >= p.behind order by id limit 1) e where e.time < now() - $1 * interval '1 s'`, keep.Seconds())
			if err != nil || len(found) == 0 {
				return err
			}
			if _, err := tx.Exec(ctx, `drop table `+pgx.Identifier{found[0]}.Sanitize()); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `delete from event_partitions where name = $1`, found[0])
			dropped = found[0]
			return err
		})
		if err != nil || dropped == "" {
			return err
		}
		s.db.Log.InfoContext(ctx, "old events removed", "partition", dropped)
	}
	return nil
}

// purge deletes deployments that were removed from every node long ago.
func (s *Upkeep) purge(ctx context.Context, keep time.Duration) error {
	for more := keep > 0; more; {
		err := s.db.Tx(ctx, "delete removed deployments", func(tx pgx.Tx) error {
			more = false
			sites, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select distinct d.site from deployment_status t join deployments d on d.site = t.site and d.name = t.name
				where t.state = 'DELETED' and d.archived_at < now() - $1 * interval '1 s' order by d.site limit $2`, keep.Seconds(), purgeSites)
			if err != nil || len(sites) == 0 {
				return err
			}
			more = len(sites) == purgeSites
			const old = ` where site = any($1) and archived_at < now() - $2 * interval '1 s' and not desired`
			b := &pgx.Batch{}
			b.Queue(`select from sites where id = any($1) order by id for no key update`, sites)
			b.Queue(`delete from deployment_nodes where (site, deployment) in (select site, name from deployments`+old+`)`, sites, keep.Seconds())
			b.Queue(`with removed as (delete from deployments`+old+` returning site)
				update sites s set states[8] = s.states[8] - g.number from (select site, count(*) as number from removed group by site) g where s.id = g.site`,
				sites, keep.Seconds())
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// purgeCommands deletes commands that were asked for long ago.
func (s *Upkeep) purgeCommands(ctx context.Context, keep time.Duration) error {
	for more := keep > 0; more; {
		err := s.db.Tx(ctx, "delete old commands", func(tx pgx.Tx) error {
			more = false
			ids, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select id from commands where created_at < now() - $1 * interval '1 s' order by created_at, id limit $2`, keep.Seconds(), purgeCommands)
			if err != nil || len(ids) == 0 {
				return err
			}
			more = len(ids) == purgeCommands
			b := &pgx.Batch{}
			for _, table := range [...]string{"command_nodes where command", "command_sites where command", "commands where id"} {
				b.Queue(`delete from `+table+` = any($1)`, ids)
			}
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// collectSpecs deletes specifications that no deployment desires and no node has. One that
// is saved anew meanwhile stays, because its row is not the one that was looked at.
func (s *Upkeep) collectSpecs(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `delete from specs s where created_at < now() - $1 * interval '1 s'
		and not exists (select from deployments where digest = s.digest)
		and not exists (select from deployment_nodes where digest = s.digest)
		and not exists (select from deployment_nodes where running = s.digest)
		and not exists (select from deployment_nodes where refused = s.digest)`, specGrace.Seconds())
	return pgdb.Classify("delete specs that nothing names", err)
}

// purgeRollouts deletes old revisions of fleet deployments that no site may have, but for the last complete one.
func (s *Upkeep) purgeRollouts(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `delete from rollouts r using (select fleet, max(revision) as last, coalesce(max(revision) filter (where state = 'done'), 0) as complete from rollouts group by fleet) l
		where r.fleet = l.fleet and r.revision <= l.last - $1 and r.revision <> l.complete and r.state not in ('running', 'paused')
			and not exists (select from rollout_sites s where s.fleet = r.fleet and r.revision in (s.revision, s.previous))`, retainedRevisions)
	return pgdb.Classify("delete old revisions of fleet deployments", err)
}

// purgeSessions deletes sessions that ended long ago, with what they showed.
func (s *Upkeep) purgeSessions(ctx context.Context, keep time.Duration) error {
	for more := keep > 0; more; {
		tag, err := s.db.Exec(ctx, `delete from sessions where id in (select id from sessions where ended_at < now() - $1 * interval '1 s' limit $2)`, keep.Seconds(), purgeCommands)
		if err != nil {
			return pgdb.Classify("delete old sessions", err)
		}
		more = tag.RowsAffected() == purgeCommands
	}
	return nil
}
