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

// observe derives the states of a rollout's admitted sites from the record of the fleet. A site runs the revision once its deployment is INSTALLED: the site
// has adopted the revision, it runs on all of its nodes, and nothing of it waits there, as a move to other nodes does. The revision failed at a site in three cases: a node has given it up, or has failed without a
// further try; the site is online and does not run it within the plan's patience, even if it was offline in between; or the site went offline after its
// admission, has never run it, and stays away, as the revision may be the reason. The last two do not count the time in which no CO watched, or in which a
// node reports that the change waits for a maintenance window or a person (not one that is offline in the window): a site that goes
// offline while it waits is away, and keeps what it waited for as its reason. The patience is with the sum of the times in which a site could have begun.
const observe = `with seen as materialized (
	select r.site, v.state, now() - greatest(r.admitted_at, r.changed_at, w.watched_since) as tries, case when v.state = 'failed' and not s.online and v.state = o.state then 'offline since ' || to_char(s.changed_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ', after it was admitted'
		when v.state = 'failed' and v.state = o.state then coalesce(nullif(d.problem, ''), nullif(t.fault, ''), nullif(d.placement, ''), nullif(h.off, ''), 'it is online, and says nothing of the revision') || ' (not running the revision ' || $6 || ' after it could)'
		when v.state = 'failed' then coalesce(nullif(d.problem, ''), nullif(t.fault, ''), 'see colony deployment show ' || r.site || '/' || r.fleet)
		when v.state = 'healthy' and w.state in ('running', 'paused') then u.unseen
		when v.state = 'moving' then h.waits when v.state = 'away' and s.changed_at > r.admitted_at then r.reason else '' end as reason
	from rollout_sites r
	left join deployments d on d.site = r.site and d.name = r.fleet
	left join deployment_status t on t.site = r.site and t.name = r.fleet
	left join sites s on s.id = r.site
	join rollouts w on w.fleet = r.fleet and w.revision = r.revision,
	lateral (select coalesce(min(n.id || ': ' || (w ->> 'why')) filter (where w ->> 'offline' is null), '') as waits, coalesce(min(n.id || ': ' || (w ->> 'why')) filter (where w ->> 'offline' is not null), '') as off
		from nodes n, jsonb_array_elements(n.restrictions -> 'waits') w where n.site = r.site and n.restrictions is not null and s.online and w ->> 'deployment' = r.fleet) h,
	lateral (select case
		when s.online and r.state = 'failed' and r.reason like '% (not running the revision %' then 'failed'
		when s.online and r.state = 'moving' and r.reason = '' and h.waits = '' and now() - greatest(r.admitted_at, r.changed_at, w.watched_since) > $5 * interval '1 s' - r.tried then 'failed'
		when s.online then 'moving'
		when s.changed_at <= r.admitted_at or r.state in ('moving', 'away') and r.reason <> '' then 'away'
		when greatest(s.changed_at, w.watched_since) > now() - interval '10 minutes' then 'moving'
		else 'failed' end as state) o,
	lateral (select case
		when d.commit is distinct from $3 or not d.desired then o.state
		when d.problem <> '' and d.problem not like '%waits, and is tried again%' then 'failed'
		when t.state = 'INSTALLED' and h.waits = '' and not (not coalesce(s.online, false) and r.state in ('moving', 'away') and r.reason <> '') then 'healthy'
		when (s.adopted_epoch, s.adopted) >= (d.epoch, d.generation) and t.state = 'FAILED' and exists (select from deployment_nodes n
			where n.site = d.site and n.deployment = d.name and (n.refused = d.digest or n.state = 'FAILED' and n.digest = d.digest and n.retry_at is null)) then 'failed'
		else o.state end as state) v,
	lateral (select case when not s.online then 'offline since ' || coalesce(to_char(s.changed_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'ever')
		when s.nodes_online < s.nodes then coalesce((select 'node ' || min(n.node) || ' is offline' from deployment_nodes n join nodes g on g.site = n.site and g.id = n.node
			where n.site = r.site and n.deployment = r.fleet and n.state = 'INSTALLED' and n.digest = d.digest and not g.online), '')
		else '' end as unseen) u
	where r.fleet = $1 and r.revision = $2 and r.state in ('moving', 'away', 'healthy', 'failed')
)
update rollout_sites r set state = v.state, reason = v.reason, accepted = r.accepted and v.state <> 'healthy', changed_at = case when v.state = 'healthy' and r.state = 'healthy' then r.changed_at else now() end,
	tried = case when v.state = 'healthy' then interval '0' when r.state = 'moving' and r.reason = '' then r.tried + greatest(v.tries, interval '0') else r.tried end,
	healthy = case when v.state = 'healthy' and not $4 = any (r.healthy) then (array_append(r.healthy, $4))[greatest(1, cardinality(r.healthy) - 8):] else r.healthy end
from seen v where r.fleet = $1 and r.site = v.site and (r.state <> v.state or r.reason <> v.reason)`

// Observe brings the sites of a rollout up to date, and returns the counts of the waves of its plan, how many sites were admitted in the last minute, and
// the time of the database. The zero plan is that of a rollout which admits no sites any more. If no program observed it for longer than gap, the waits of
// the rollout begin anew: r is settled no longer.
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
		wave, n, accepted, held, offline int
		state                            rollout.SiteState
		first                            []protocol.SiteID
	}
	numbers, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (v number, err error) {
		return v, row.Scan(&v.wave, &v.state, &v.n, &v.accepted, &v.held, &v.offline, &v.first)
	}, `select wave, state, count(*), count(*) filter (where accepted and state = 'failed'), count(*) filter (where state = 'moving' and reason <> ''), count(*) filter (where state = 'healthy' and reason <> ''),
		coalesce((array_agg(site order by site) filter (where state = 'healthy' and reason <> ''))[:5], '{}') from rollout_sites where fleet = $1 and state <> 'left' group by wave, state`, name)
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
		c.Accepted, c.Held = c.Accepted+v.accepted, c.Held+v.held
		if v.state == rollout.SiteHealthy {
			c.Offline, c.OfflineSites = v.offline, v.first
		}
	}
	return counts, nil
}

// Advance carries out a decision about a rollout, unless the rollout was changed since r was read: it was paused or ended, or spreads
// in another way. It returns how many sites were admitted.
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
		if d.State == rollout.Done {
			if err := endWatch(ctx, tx, r.Fleet); err != nil {
				return err
			}
		}
		if d.Admit > 0 {
			tag, err := tx.Exec(ctx, `update rollout_sites set previous = revision, previous_groups = groups, revision = $2, groups = next_groups, state = 'moving', reason = '', tried = '0', retained = false, admitted_at = now(), changed_at = now()
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

// endWatch forgets which of the healthy sites are offline: that counts while the rollout is open.
func endWatch(ctx context.Context, tx pgx.Tx, name protocol.DeploymentName) error {
	_, err := tx.Exec(ctx, `update rollout_sites set reason = '' where fleet = $1 and state = 'healthy' and reason <> ''`, name)
	return err
}

// TakeBack has sites that were admitted and have not begun have what they had before, where a rollout is paused or aborted: those that are offline,
// those whose nodes are all offline, and those at which the change waits on each node, for a maintenance window or a person. They wait until it goes on, if it does. It returns how many
// they are. A site that had nothing before stays admitted: to take that back would be a removal.
func (s *Store) TakeBack(ctx context.Context, r *rollout.Rollout) (sites int, err error) {
	err = s.db.Tx(ctx, "take back what sites have not got", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update rollout_sites m set revision = previous, groups = previous_groups, state = 'waiting', wave = greatest(m.wave, r.wave), admitted_at = null, changed_at = now(),
				reason = case when m.state = 'away' then 'it was offline when the rollout stopped, and has what it had before'
					when m.reason = '' then 'its nodes were offline when the rollout stopped, and it has what it had before'
					else 'the change waited there when the rollout stopped, and it has what it had before' end
			from rollouts r, rollouts p, sites s
			where m.fleet = $1 and m.revision = $2 and (m.state = 'away' and not s.online or m.state = 'moving' and (m.reason <> '' or not exists (select from deployment_nodes n
					join nodes o on o.site = n.site and o.id = n.node where n.site = m.site and n.deployment = m.fleet and n.state <> 'DELETED' and o.online)))
				and r.fleet = m.fleet and r.revision = m.revision and r.state in ('paused', 'aborted')
				and p.fleet = m.fleet and p.revision = m.previous and p.state <> 'refused' and s.id = m.site
				and (m.state = 'away' and m.reason = '' or not exists (select from deployments d, deployment_nodes n where d.site = m.site and d.name = m.fleet and d.commit = r.commit
					and n.site = m.site and n.deployment = m.fleet and n.digest = d.digest and n.state <> 'PENDING'
					and not (n.state = 'FAILED' and n.running <> '' and n.running <> d.digest)))`, r.Fleet, r.Revision)
		sites = int(tag.RowsAffected())
		return err
	})
	return sites, err
}

// EndSetBack ends what sites keep since the record was restored: where the rollout of the latest revision is over, or was to bring that revision to the
// site already, so that the record has what the site is to run; where the site is no target any more; and where all of its nodes run what
// the record has, as they reported since. It returns how many they are.
func (s *Store) EndSetBack(ctx context.Context) (sites int, err error) {
	err = s.db.Tx(ctx, "end what sites keep", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update rollout_sites m set retained = false from sites s, rollouts latest
			where m.retained and s.id = m.site and latest.fleet = m.fleet and not exists (select from rollouts r where r.fleet = m.fleet and r.revision > latest.revision) and (m.state in ('left', 'conflict') or latest.state in ('done', 'aborted') or m.revision = latest.revision
				or (s.adopted_epoch, s.adopted) >= (s.epoch, s.generation) and not exists (select from deployments d join deployment_nodes n on n.site = d.site and n.deployment = d.name
					where d.site = m.site and d.name = m.fleet and n.state <> 'DELETED' and n.digest is distinct from d.digest))`)
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
