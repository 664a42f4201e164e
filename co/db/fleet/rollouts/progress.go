package rolloutdb

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Open returns the rollouts that may still admit sites, without counts.
func (s *Store) Open(ctx context.Context) ([]rollout.Rollout, error) {
	list, err := pgdb.Rows(ctx, s.db, scan, `select `+columns+` from rollouts where state in ('running', 'paused') order by fleet`)
	return list, pgdb.Classify("read the open rollouts", err)
}

// Unfinished returns the rollouts that admit no sites any more, and have admitted some whose outcome is not known, or that failed, and may heal. One that is
// not the latest may be that of sites that came since.
func (s *Store) Unfinished(ctx context.Context) ([]rollout.Rollout, error) {
	list, err := pgdb.Rows(ctx, s.db, scan, `select `+columns+` from rollouts r where state in ('done', 'aborted', 'superseded')
		and exists (select from rollout_sites s where s.fleet = r.fleet and s.revision = r.revision and s.state in ('moving', 'away', 'failed')) order by fleet`)
	return list, pgdb.Classify("read the rollouts that are not finished", err)
}

// observe takes over from the record of the fleet where the admitted sites of a rollout stand. A site runs the revision once
// its deployment is INSTALLED, which says that the site has adopted the revision and that it runs on all its nodes. It failed
// there once a node has given the revision up, or has failed without a further try to come; where it is online and does not run the revision for longer
// than the plan has patience, however often it was offline in between; and where the site went offline after it was admitted, has not run it before, and stays
// away: the revision may be the reason. Neither counts for the time in which no CO watched.
const observe = `with seen as materialized (
	select r.site, v.state, case when v.state = 'failed' and not s.online and v.state = o.state then 'offline since ' || to_char(s.changed_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ', after it was admitted'
		when v.state = 'failed' and v.state = o.state then coalesce(nullif(d.problem, ''), nullif(t.fault, ''), nullif(d.placement, ''), 'it is online, and says nothing of the revision') || ' (not running the revision ' || $6 || ' after it could)'
		when v.state = 'failed' then coalesce(nullif(d.problem, ''), nullif(t.fault, ''), 'see colony deployment show ' || r.site || '/' || r.fleet) else '' end as reason
	from rollout_sites r
	left join deployments d on d.site = r.site and d.name = r.fleet
	left join deployment_status t on t.site = r.site and t.name = r.fleet
	left join sites s on s.id = r.site
	join rollouts w on w.fleet = r.fleet and w.revision = r.revision,
	lateral (select case
		when s.online and r.state = 'failed' and r.reason like '% (not running the revision %' then 'failed'
		when s.online and r.state = 'moving' and greatest(r.admitted_at, r.changed_at, w.watched_since) < now() - $5 * interval '1 s' then 'failed'
		when s.online then 'moving'
		when s.changed_at <= r.admitted_at then 'away'
		when greatest(s.changed_at, w.watched_since) > now() - interval '10 minutes' then 'moving'
		else 'failed' end as state) o,
	lateral (select case
		when d.commit is distinct from $3 or not d.desired then o.state
		when d.problem <> '' and d.problem not like '%waits, and is tried again%' then 'failed'
		when t.state = 'INSTALLED' then 'healthy'
		when (s.adopted_epoch, s.adopted) >= (d.epoch, d.generation) and t.state = 'FAILED' and exists (select from deployment_nodes n
			where n.site = d.site and n.deployment = d.name and (n.refused = d.digest or n.state = 'FAILED' and n.digest = d.digest and n.retry_at is null)) then 'failed'
		else o.state end as state) v
	where r.fleet = $1 and r.revision = $2 and r.state in ('moving', 'away', 'healthy', 'failed')
)
update rollout_sites r set state = v.state, reason = v.reason, accepted = r.accepted and v.state <> 'healthy', changed_at = now(),
	healthy = case when v.state = 'healthy' and not $4 = any (r.healthy) then (array_append(r.healthy, $4))[greatest(1, cardinality(r.healthy) - 8):] else r.healthy end
from seen v where r.fleet = $1 and r.site = v.site and (r.state <> v.state or r.reason <> v.reason)`

// Observe brings the sites of a rollout up to date, and returns the counts of the waves of its plan, how many sites were admitted in the
// last minute, and the time of the database. The zero plan is that of a rollout which admits no sites any more. Where nobody had looked for longer than gap,
// what depends on time begins anew: r is settled no longer.
func (s *Store) Observe(ctx context.Context, r *rollout.Rollout, plan *rollout.Plan, gap time.Duration) (counts []rollout.Counts, recent int, now time.Time, err error) {
	deadline := cmp.Or(plan.Deadline, rollout.DefaultDeadline)
	err = s.db.Tx(ctx, "observe a rollout", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update rollouts set watched_since = case when observed_at < now() - $3 * interval '1 s' then now() else watched_since end, observed_at = now()
			where fleet = $1 and revision = $2 and observed_at not between now() - $3 / 3 * interval '1 s' and now()`, r.Fleet, r.Revision, gap.Seconds()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, observe, r.Fleet, r.Revision, r.Commit, r.Digest, deadline.Seconds(), deadline.String()); err != nil {
			return err
		}
		if counts, err = countWaves(ctx, tx, r.Fleet, len(plan.Waves)); err != nil {
			return err
		}
		var watched time.Time
		err := tx.QueryRow(ctx, `select now(), (select count(*) from rollout_sites where fleet = $1 and admitted_at between now() - interval '1 minute' and now() and revision = $2), watched_since
			from rollouts where fleet = $1 and revision = $2`, r.Fleet, r.Revision).Scan(&now, &recent, &watched)
		if err == nil && r.Settled != nil && r.Settled.Before(watched) {
			r.Settled = nil
		}
		return err
	})
	return counts, recent, now, err
}

func countWaves(ctx context.Context, tx pgdb.Querier, name protocol.DeploymentName, waves int) ([]rollout.Counts, error) {
	type number struct {
		wave, n, accepted int
		state             rollout.SiteState
	}
	numbers, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (v number, err error) {
		return v, row.Scan(&v.wave, &v.state, &v.n, &v.accepted)
	}, `select wave, state, count(*), count(*) filter (where accepted and state = 'failed') from rollout_sites where fleet = $1 and state <> 'left' group by wave, state`, name)
	if err != nil {
		return nil, err
	}
	counts := make([]rollout.Counts, max(waves, 1))
	for _, v := range numbers {
		for v.wave >= len(counts) {
			counts = append(counts, rollout.Counts{})
		}
		c := &counts[v.wave]
		*map[rollout.SiteState]*int{
			rollout.SiteWaiting: &c.Waiting, rollout.SiteMoving: &c.Moving, rollout.SiteAway: &c.Away,
			rollout.SiteHealthy: &c.Healthy, rollout.SiteFailed: &c.Failed, rollout.SiteConflict: &c.Conflict,
		}[v.state] = v.n
		c.Accepted += v.accepted
	}
	return counts, nil
}

// Advance carries out a decision about a rollout, unless it was changed since r was read: somebody paused or ended it, or it spreads in
// another way. It returns how many sites were admitted.
func (s *Store) Advance(ctx context.Context, r *rollout.Rollout, d rollout.Decision) (admitted int, err error) {
	err = s.db.Tx(ctx, "advance a rollout", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		var settled *time.Time
		if !d.Settled.IsZero() {
			settled = &d.Settled
		}
		if d.State == rollout.Done { // unless a site has come since it was decided
			late, err := tx.Exec(ctx, `update rollout_sites set wave = $2 where fleet = $1 and state = 'waiting'`, r.Fleet, d.Wave)
			if err != nil || late.RowsAffected() > 0 {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `update rollouts set state = $4, wave = $5, settled_at = $6, reason = $7, changed_at = case when (state, wave, reason) = ($4, $5, $7) then changed_at else now() end
			where fleet = $1 and revision = $2 and state = $3 and changed_at = $8`, r.Fleet, r.Revision, r.State, d.State, d.Wave, settled, pgdb.Storable(d.Reason), r.Changed)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if d.Admit > 0 {
			tag, err := tx.Exec(ctx, `update rollout_sites set previous = revision, previous_groups = groups, revision = $2, groups = next_groups, state = 'moving', reason = '', admitted_at = now(), changed_at = now()
				where fleet = $1 and site in (select site from rollout_sites where fleet = $1 and wave = $3 and state = 'waiting' order by rank, site limit $4)`,
				r.Fleet, r.Revision, d.Wave, d.Admit)
			if err != nil {
				return err
			}
			admitted = int(tag.RowsAffected())
		}
		return db.WriteEvents(ctx, tx, stepped(r, d))
	})
	return admitted, err
}

// TakeBack has sites that were admitted and are offline have what they had before, where a rollout is paused or aborted: they wait until it
// goes on, if it does. It returns how many they are. A site that had nothing before stays admitted: to take that back would be a removal.
func (s *Store) TakeBack(ctx context.Context, r *rollout.Rollout) (sites int, err error) {
	err = s.db.Tx(ctx, "take back what sites have not got", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update rollout_sites m set revision = previous, groups = previous_groups, state = 'waiting', wave = greatest(m.wave, r.wave), admitted_at = null, changed_at = now(),
				reason = 'it was offline when the rollout stopped, and has what it had before'
			from rollouts r, rollouts p, sites s
			where m.fleet = $1 and m.revision = $2 and m.state = 'away' and r.fleet = m.fleet and r.revision = m.revision and r.state in ('paused', 'aborted')
				and p.fleet = m.fleet and p.revision = m.previous and p.state <> 'refused' and s.id = m.site and not s.online`, r.Fleet, r.Revision)
		sites = int(tag.RowsAffected())
		return err
	})
	return sites, err
}

// stepped are the events of a decision.
func stepped(r *rollout.Rollout, d rollout.Decision) (events []fleet.Event) {
	if d.Wave != r.Wave && d.State == rollout.Running {
		events = append(events, event(fleet.RolloutWave, r.Fleet, r.Name()+" begins "+waveName(d.Wave)))
	}
	if d.State == rollout.Running && rollout.Held(d.Reason) && !rollout.Held(r.Reason) {
		events = append(events, event(fleet.RolloutHeld, r.Fleet, r.Name()+" is "+d.Reason))
	}
	switch {
	case d.State == r.State:
	case d.State == rollout.Paused:
		events = append(events, event(fleet.RolloutPaused, r.Fleet, r.Name()+" is paused: "+d.Reason))
	case d.State == rollout.Done:
		events = append(events, event(fleet.RolloutDone, r.Fleet, r.Name()+" is done: "+d.Reason))
	}
	return events
}
