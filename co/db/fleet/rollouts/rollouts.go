// Package rolloutdb records the rollouts of fleet deployments in PostgreSQL: each revision with its files, which revision
// each site may have, and how far it has come there.
package rolloutdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the record. Its methods may be called concurrently; those that the owner of the desired states calls are
// fenced by its lease. Errors are of the protocol's kinds.
type Store struct{ db *db.DB }

// New returns the Store of a database, which stays the caller's to close.
func New(d *db.DB) *Store { return &Store{d} }

const columns = `fleet, revision, digest, asks, problem, app, app_version, commit, state, wave, settled_at, promoted, reason, by, created_at, changed_at`

func scan(row pgx.CollectableRow) (r rollout.Rollout, err error) {
	err = row.Scan(&r.Fleet, &r.Revision, &r.Digest, &r.Asks, &r.Problem, &r.App, &r.Version, &r.Commit, &r.State, &r.Wave, &r.Settled, &r.Promoted, &r.Reason, &r.By, &r.Created, &r.Changed)
	return r, err
}

// Latest returns the latest rollout of each fleet deployment, by name, without counts.
func (s *Store) Latest(ctx context.Context) ([]rollout.Rollout, error) {
	list, err := pgdb.Rows(ctx, s.db, scan, `select distinct on (fleet) `+columns+` from rollouts order by fleet, revision desc`)
	return list, pgdb.Classify("read the latest rollouts", err)
}

// Source returns the files of a revision, as Begin was given them.
func (s *Store) Source(ctx context.Context, name protocol.DeploymentName, revision int64) (source []byte, commit string, err error) {
	err = s.db.QueryRow(ctx, `select source, commit from rollouts where fleet = $1 and revision = $2`, name, revision).Scan(&source, &commit)
	if errors.Is(err, pgx.ErrNoRows) {
		err = protocol.Errorf(protocol.NotFound, "fleet deployment %s has no revision %d", name, revision)
	}
	return source, commit, pgdb.Classify("read a revision of a fleet deployment", err)
}

// Sources returns, by fleet deployment, the files of the revisions that a site may have or that may still be admitted.
func (s *Store) Sources(ctx context.Context) (map[protocol.DeploymentName][][]byte, error) {
	out := map[protocol.DeploymentName][][]byte{}
	_, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var name protocol.DeploymentName
		var source []byte
		err = row.Scan(&name, &source)
		out[name] = append(out[name], source)
		return none, err
	}, `select fleet, source from rollouts r where state in ('running', 'paused') or state <> 'refused' and exists (select from rollout_sites s where s.fleet = r.fleet and r.revision in (s.revision, s.previous))`)
	return out, pgdb.Classify("read the revisions of fleet deployments that are in use", err)
}

// FleetSites returns the sites that a fleet deployment may mean: all but those whose removal was asked for.
func (s *Store) FleetSites(ctx context.Context) ([]protocol.SiteID, error) {
	list, err := pgdb.Rows(ctx, s.db, pgx.RowTo[protocol.SiteID], `select id from sites s
		where not exists (select from requests r where r.site = s.id and r.kind = $1 and r.pending) order by id`, fleet.RequestSite)
	return list, pgdb.Classify("list the sites of the fleet", err)
}

// Completed returns the last revision of a fleet deployment whose rollout is done; 0: there is none.
func (s *Store) Completed(ctx context.Context, name protocol.DeploymentName) (revision int64, err error) {
	err = s.db.QueryRow(ctx, `select coalesce(max(revision), 0) from rollouts where fleet = $1 and state = 'done'`, name).Scan(&revision)
	return revision, pgdb.Classify("read the last complete rollout", err)
}

// A Revision is one that begins to spread.
type Revision struct {
	Fleet protocol.DeploymentName
	// Digest is of what runs at its sites; another Asks than that of the latest makes a revision.
	Digest, Asks string
	// Commit is the last one of the file, and Head that of the branch, which counts where the revision differs in other files.
	Commit, Head string
	App, Version string // of the application
	Source       []byte
	// Refused says why nothing of it is published; empty: it spreads over the sites.
	Refused string
	Waves   int // of its plan
	Sites   []rollout.Placed
}

// Begin records a revision. It takes the place of a rollout that is open. A site that ran a revision of this digest
// healthily is admitted at once. Those that are not among its sites have left.
func (s *Store) Begin(ctx context.Context, v Revision) (revision int64, err error) {
	err = s.db.Tx(ctx, "begin a rollout", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		state := rollout.Running
		if v.Refused != "" {
			state = rollout.Refused
		}
		var events []fleet.Event
		held := ""
		if v.Refused == "" {
			if revision, err = putBack(ctx, tx, v); err != nil || revision > 0 {
				return err
			}
			if held, err = stopped(ctx, tx, v); err != nil {
				return err
			}
			if err := supersede(ctx, tx, v.Fleet); err != nil {
				return err
			}
			if held != "" {
				state = rollout.Paused
			}
		}
		err := tx.QueryRow(ctx, `insert into rollouts (fleet, revision, digest, commit, source, state, reason, app, app_version, asks)
			select $1, coalesce(max(revision), 0) + 1, $2, case when $3 = any (array_agg(commit)) then $9 else $3 end, $4, $5, $6, $7, $8, $10 from rollouts where fleet = $1 returning revision, commit`,
			v.Fleet, v.Digest, v.Commit, v.Source, state, pgdb.Storable(v.Refused+held), pgdb.Storable(v.App), pgdb.Storable(v.Version), v.Head, v.Asks).Scan(&revision, &v.Commit)
		if err != nil {
			return err
		}
		if v.Refused != "" {
			events = append(events, event(fleet.RolloutRefused, v.Fleet, fmt.Sprintf("revision %d at commit %.12s is refused: %s", revision, v.Commit, v.Refused)))
			return db.WriteEvents(ctx, tx, events)
		}
		events = append(events, event(fleet.RolloutStarted, v.Fleet, fmt.Sprintf("revision %d at commit %.12s, over %d sites", revision, v.Commit, len(v.Sites))))
		if held != "" {
			events = append(events, event(fleet.RolloutPaused, v.Fleet, fmt.Sprintf("revision %d of %s is paused: %s", revision, v.Fleet, held)))
		}
		if err := enter(ctx, tx, v, revision); err != nil {
			return err
		}
		return db.WriteEvents(ctx, tx, events)
	})
	return revision, err
}

// stopped returns why a revision begins paused: the revision before was stopped and not resumed. "": it does not begin paused.
func stopped(ctx context.Context, tx pgx.Tx, v Revision) (why string, err error) {
	var before rollout.Rollout
	rows, err := tx.Query(ctx, `select `+columns+` from rollouts where fleet = $1 and state <> 'refused' order by revision desc limit 1`, v.Fleet)
	if err == nil {
		before, err = pgx.CollectExactlyOneRow(rows, scan)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", err
	case before.State == rollout.Paused && strings.HasPrefix(before.Reason, rollout.PausedReason):
		return rollout.PausedReason + ", before this revision: resume to go on with it", nil
	}
	// Or its version was aborted and not resumed since, unless this is what ran everywhere before.
	err = tx.QueryRow(ctx, `select revision from (select revision, state, reason from rollouts where fleet = $1 and state <> 'refused' and app = $2 and app_version = $3 order by revision desc limit 1) r
		where (state = 'aborted' and reason <> $4 or reason like '%' || $5 || '%') and not exists (select from rollouts where fleet = $1 and digest = $6 and state = 'done')`,
		v.Fleet, v.App, v.Version, rollout.RemovedReason, abortedBefore, v.Digest).Scan(&before.Revision)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("revision %d with version %s of the application %s: resume to spread it all the same, or choose another version", before.Revision, v.Version, abortedBefore), nil
}

// abortedBefore is in the reason of a revision that begins paused because its version was aborted, until a person resumes it.
const abortedBefore = "was aborted, and this one has the same"

// putBack has a revision whose content is there once more, after others that were refused, be the latest: it goes on as it was. It returns 0 where there is none.
func putBack(ctx context.Context, tx pgx.Tx, v Revision) (revision int64, err error) {
	var was int64
	err = tx.QueryRow(ctx, `with accepted as (select revision, asks from rollouts where fleet = $1 and state <> 'refused' order by revision desc limit 1),
			latest as (select max(revision) as revision from rollouts where fleet = $1)
		update rollouts r set revision = latest.revision + 1, changed_at = now() from accepted, latest
		where r.fleet = $1 and r.revision = accepted.revision and accepted.asks = $2 and latest.revision > accepted.revision returning r.revision, accepted.revision`,
		v.Fleet, v.Asks).Scan(&revision, &was)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `update rollout_sites set revision = case revision when $2 then $3 else revision end, previous = case previous when $2 then $3 else previous end
		where fleet = $1 and $2 in (revision, previous)`, v.Fleet, was, revision)
	return revision, err
}

func supersede(ctx context.Context, tx pgx.Tx, name protocol.DeploymentName) error {
	_, err := tx.Exec(ctx, `update rollouts set state = 'superseded', changed_at = now(), reason = 'a later revision takes its place' || case when reason like '%' || $2 || '%' then '; ' || reason else '' end
		where fleet = $1 and state in ('running', 'paused')`, name, abortedBefore)
	return err
}

// enter puts the sites of a revision into its waves.
func enter(ctx context.Context, tx pgx.Tx, v Revision, revision int64) error {
	sites, waves, ranks, groups := arrays(v.Sites)
	if _, err := tx.Exec(ctx, `insert into rollout_sites as r (fleet, site, wave, rank, next_groups)
		select $1, u.site, u.wave, u.rank, coalesce(string_to_array(nullif(u.groups, ''), ','), '{}') from unnest($2::text[], $3::int[], $4::bigint[], $5::text[]) as u (site, wave, rank, groups)
		on conflict (fleet, site) do update set wave = excluded.wave, rank = excluded.rank, next_groups = excluded.next_groups,
			state = case when r.state = 'conflict' then 'conflict' else 'waiting' end, accepted = false, reason = case when r.state = 'conflict' then r.reason else '' end, changed_at = now()`,
		v.Fleet, sites, waves, ranks, groups); err != nil {
		return err
	}
	// Where the content ran healthily no wave waits for it: such sites count with the last one.
	if _, err := tx.Exec(ctx, `update rollout_sites set previous = revision, previous_groups = groups, revision = $2, wave = $5, groups = next_groups, state = 'moving', admitted_at = now(), changed_at = now()
		where fleet = $1 and state = 'waiting' and $3 = any (healthy) and site = any ($4)`, v.Fleet, revision, v.Digest, sites, max(v.Waves-1, 0)); err != nil {
		return err
	}
	return leave(ctx, tx, v.Fleet, sites)
}

// leave notes that no sites of a fleet deployment but these are meant.
func leave(ctx context.Context, tx pgx.Tx, name protocol.DeploymentName, sites []string) error {
	_, err := tx.Exec(ctx, `update rollout_sites set state = 'left', revision = 0, previous = 0, reason = '', changed_at = now() where fleet = $1 and state <> 'left' and site <> all ($2)`, name, sites)
	return err
}

func arrays(list []rollout.Placed) (sites []string, waves []int32, ranks []int64, groups []string) {
	sites, groups = make([]string, len(list)), make([]string, len(list))
	waves, ranks = make([]int32, len(list)), make([]int64, len(list))
	for i, p := range list {
		sites[i], waves[i], ranks[i] = string(p.Site), int32(p.Wave), int64(p.Rank>>1)
		for j, g := range p.Groups { // names of groups have no comma
			if j > 0 {
				groups[i] += ","
			}
			groups[i] += g
		}
	}
	return sites, waves, ranks, groups
}

// Refuse renews the reason of a revision that is refused.
func (s *Store) Refuse(ctx context.Context, name protocol.DeploymentName, revision int64, reason string) error {
	_, err := s.db.Exec(ctx, `update rollouts set reason = $3, changed_at = now() where fleet = $1 and revision = $2 and state = 'refused' and reason <> $3`, name, revision, pgdb.Storable(reason))
	return pgdb.Classify("record why a revision is refused", err)
}

// Accept ends a refusal: the revision spreads.
func (s *Store) Accept(ctx context.Context, v Revision, revision int64) error {
	return s.db.Tx(ctx, "begin a rollout", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		if err := supersede(ctx, tx, v.Fleet); err != nil {
			return err
		}
		// No other revision has its commit: by its commit it is known which revision a site runs.
		tag, err := tx.Exec(ctx, `update rollouts set state = 'running', reason = '', source = $3, digest = $4,
			commit = case when exists (select from rollouts o where o.fleet = $1 and o.revision <> $2 and o.commit = $5) then $9 else $5 end, app = $6, app_version = $7, asks = $8, changed_at = now() where fleet = $1 and revision = $2 and state = 'refused'`,
			v.Fleet, revision, v.Source, v.Digest, v.Commit, v.App, v.Version, v.Asks, v.Head)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if err := enter(ctx, tx, v, revision); err != nil {
			return err
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{event(fleet.RolloutStarted, v.Fleet, fmt.Sprintf("revision %d at commit %.12s, over %d sites", revision, v.Commit, len(v.Sites)))})
	})
}

// Restate records how a revision spreads from now on, where that is another way than before: the desired version is the same. Waiting sites are assigned to
// waves anew, but to none that is through; and a promotion of the current wave is void, as it was meant for other waves. It reports whether anything changed.
func (s *Store) Restate(ctx context.Context, v Revision, revision int64) (changed bool, err error) {
	err = s.db.Tx(ctx, "change how a rollout spreads", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		last := max(v.Waves-1, 0)
		tag, err := tx.Exec(ctx, `update rollouts set source = $3, wave = least(wave, $4), promoted = least(promoted, wave, $4), settled_at = case when strpos(reason, $5) = 0 then settled_at end, changed_at = now() where fleet = $1 and revision = $2 and source <> $3`, v.Fleet, revision, v.Source, last, rollout.Unwatched)
		if changed = err == nil && tag.RowsAffected() > 0; !changed {
			return err
		}
		sites, waves, ranks, groups := arrays(v.Sites)
		_, err = tx.Exec(ctx, `update rollout_sites s set rank = u.rank, next_groups = case when s.state = 'waiting' then coalesce(string_to_array(nullif(u.groups, ''), ','), '{}') else s.next_groups end,
				wave = case when s.state in ('waiting', 'conflict') then greatest(u.wave, r.wave) else least(s.wave, $7) end
			from unnest($3::text[], $4::int[], $5::bigint[], $6::text[]) as u (site, wave, rank, groups), rollouts r
			where s.fleet = $1 and s.site = u.site and s.state <> 'left' and r.fleet = $1 and r.revision = $2 and r.state in ('running', 'paused')`,
			v.Fleet, revision, sites, waves, ranks, groups, last)
		return err
	})
	return changed, err
}

// SetProblem records why the sites of a fleet deployment cannot be found anew; empty: they can. A reason that differs from the one before is an
// event.
func (s *Store) SetProblem(ctx context.Context, name protocol.DeploymentName, revision int64, problem string) error {
	return s.db.Tx(ctx, "record what is wrong with a fleet deployment", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update rollouts set problem = $3 where fleet = $1 and revision = $2 and problem <> $3`, name, revision, pgdb.Storable(problem))
		if err != nil || tag.RowsAffected() == 0 || problem == "" {
			return err
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{event(fleet.RolloutRefused, name, fmt.Sprintf("the sites of revision %d cannot be found anew, and those that it has stay: %s", revision, problem))})
	})
}

// A Join is which sites are meant now, without a new revision.
type Join struct {
	Sites []rollout.Placed
	// Completed is what those get that are new; 0: nothing.
	Completed int64
	// Open is the revision that spreads, and Digest that of what it runs: new sites are in its last wave, and those that ran it, and
	// had left, have it at once. 0: none does.
	Open   int64
	Digest string
}

// Join records which sites are meant now. Those that are not meant any more have left. It reports whether anything changed.
func (s *Store) Join(ctx context.Context, name protocol.DeploymentName, j Join) (changed bool, err error) {
	err = s.db.Tx(ctx, "record the sites of a fleet deployment", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		ids, waves, ranks, groups := arrays(j.Sites)
		tag, err := tx.Exec(ctx, `insert into rollout_sites as r (fleet, site, wave, rank, next_groups, groups, revision, state, admitted_at)
			select $1, u.site, u.wave, u.rank, g.list, case when $6 > 0 then g.list else '{}' end, $6, case when $6 > 0 and not $7 then 'moving' else 'waiting' end, case when $6 > 0 then now() end
			from unnest($2::text[], $3::int[], $4::bigint[], $5::text[]) as u (site, wave, rank, groups), lateral (select coalesce(string_to_array(nullif(u.groups, ''), ','), '{}') as list) g
			on conflict (fleet, site) do update set wave = excluded.wave, rank = excluded.rank, next_groups = excluded.next_groups, accepted = false, reason = '', changed_at = now(),
				groups = case when $9 = any (r.healthy) then excluded.next_groups else excluded.groups end,
				revision = case when $9 = any (r.healthy) then $8 else excluded.revision end,
				state = case when $9 = any (r.healthy) then 'moving' else excluded.state end,
				admitted_at = case when $9 = any (r.healthy) then now() else excluded.admitted_at end
			where r.state = 'left'`,
			name, ids, waves, ranks, groups, j.Completed, j.Open > 0, j.Open, j.Digest)
		if err != nil {
			return err
		}
		left, err := tx.Exec(ctx, `update rollout_sites set state = 'left', revision = 0, previous = 0, reason = '', changed_at = now() where fleet = $1 and state <> 'left' and site <> all ($2)`, name, ids)
		changed = tag.RowsAffected()+left.RowsAffected() > 0
		return err
	})
	return changed, err
}

// Conflicts records at which sites of a fleet deployment a deployment of their own has its name. Where it has it no more, the site
// waits for its turn in the rollout that is open, which is now where its wave is through, or gets the revision of the one that is done.
func (s *Store) Conflicts(ctx context.Context, name protocol.DeploymentName, sites []protocol.SiteID) error {
	return s.db.Tx(ctx, "record conflicts of a fleet deployment", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		found, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `update rollout_sites set state = 'conflict', accepted = false, changed_at = now(),
				reason = 'deployments/' || site || '/' || fleet || '/deployment.yaml is a deployment of its own'
					|| case when revision > 0 then ', which is not read: the fleet deployment runs there' else '' end || ': remove it, or except the site'
			where fleet = $1 and state not in ('left', 'conflict') and site = any ($2) returning site || case when revision > 0 then ' (what runs there is that of the fleet deployment)' else '' end`, name, pgdb.Texts(sites))
		if err != nil {
			return err
		}
		if err := db.WriteEvents(ctx, tx, conflicted(name, found)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `with done as (select max(revision) as revision from rollouts
				where fleet = $1 and state = 'done' and revision = (select max(revision) from rollouts where fleet = $1 and state <> 'refused')),
			open as (select coalesce(max(wave), 0) as wave from rollouts where fleet = $1 and state in ('running', 'paused'))
			update rollout_sites r set reason = '', changed_at = now(), wave = greatest(r.wave, o.wave), state = case when d.revision is null then 'waiting' else 'moving' end,
				revision = coalesce(d.revision, r.revision), groups = case when d.revision is null then r.groups else r.next_groups end,
				admitted_at = case when d.revision is null then r.admitted_at else now() end
			from done d, open o where r.fleet = $1 and r.state = 'conflict' and r.site <> all ($2)`, name, pgdb.Texts(sites))
		return err
	})
}

// shownSites is how many sites an event names.
const shownSites = 10

// conflicted are the events of sites at which a deployment of their own has the name of a fleet deployment since now.
func conflicted(name protocol.DeploymentName, sites []string) []fleet.Event {
	if len(sites) == 0 {
		return nil
	}
	slices.Sort(sites)
	shown := strings.Join(sites[:min(len(sites), shownSites)], ", ")
	if more := len(sites) - shownSites; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return []fleet.Event{event(fleet.RolloutConflict, name, "a site's own deployment has the name of the fleet deployment, and what runs stays: remove one of both, or except the site: "+shown)}
}

// Claims reports whether a site has, or is to have, a fleet deployment of a name.
func (s *Store) Claims(ctx context.Context, name protocol.DeploymentName, site protocol.SiteID) (claims bool, err error) {
	err = s.db.QueryRow(ctx, `select exists (select from rollout_sites where fleet = $1 and site = $2 and (state not in ('left', 'conflict') or state = 'conflict' and revision > 0))`, name, site).Scan(&claims)
	return claims, pgdb.Classify("read whether a site has a fleet deployment", err)
}

// Earlier returns the last complete revision of a fleet deployment that runs something else than the current one; 0: there
// is none. It is a Conflict where the current one is open, and returns to an earlier one already.
func (s *Store) Earlier(ctx context.Context, name protocol.DeploymentName) (revision int64, err error) {
	var back int64
	err = s.db.QueryRow(ctx, `with now as (select revision, digest, state from rollouts where fleet = $1 order by `+current+` limit 1)
		select coalesce(max(r.revision) filter (where r.digest <> now.digest), 0),
			coalesce(max(r.revision) filter (where r.digest = now.digest and r.revision < now.revision and now.state in ('running', 'paused')), 0)
		from rollouts r, now where r.fleet = $1 and r.state = 'done'`, name).Scan(&revision, &back)
	if err == nil && back > 0 {
		return 0, protocol.Errorf(protocol.Conflict, "%s returns to what revision %d ran already: colony rollout abort without --rollback ends that, and colony fleet revert --to names another revision", name, back)
	}
	return revision, pgdb.Classify("read the complete rollout before", err)
}

// Removed forgets a fleet deployment whose files are gone, once nothing of it runs. Until then its sites have left.
func (s *Store) Removed(ctx context.Context, name protocol.DeploymentName) error {
	return s.db.Tx(ctx, "end a fleet deployment", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		if err := leave(ctx, tx, name, []string{}); err != nil {
			return err
		}
		if err := forget(ctx, tx, name); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update rollouts set state = 'aborted', reason = $2, changed_at = now() where fleet = $1 and state in ('running', 'paused')`, name, rollout.RemovedReason)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `delete from rollouts where fleet = $1 and not exists (select from rollout_sites where fleet = $1)`, name)
		return err
	})
}

// forget forgets sites that have left and where nothing of the fleet deployment is any more.
func forget(ctx context.Context, tx pgx.Tx, name protocol.DeploymentName) error {
	_, err := tx.Exec(ctx, `delete from rollout_sites r where fleet = $1 and state = 'left'
		and not exists (select from deployments d where d.site = r.site and d.name = r.fleet and d.desired)`, name)
	return err
}

// Members returns all sites of a fleet deployment, by their names.
func (s *Store) Members(ctx context.Context, name protocol.DeploymentName) ([]rollout.Member, error) {
	list, err := pgdb.Rows(ctx, s.db, scanMember, `select `+memberColumns+` from rollout_sites where fleet = $1 order by site`, name)
	return list, pgdb.Classify("read the sites of a fleet deployment", err)
}

// memberColumns are those of a member; shownMember are the same for people: a site that is on its way has as its reason what stands in the way
// there, also where nothing waits.
const (
	memberColumns = memberKey + `reason` + memberRest
	shownMember   = memberKey + `case when state <> 'moving' or reason <> '' then reason else coalesce(
		(select coalesce(nullif(d.problem, ''), nullif(d.placement, '')) from deployments d join rollouts r on r.fleet = d.name and r.revision = rollout_sites.revision
			where d.site = rollout_sites.site and d.name = rollout_sites.fleet and d.commit = r.commit),
		(select min(n.id || ': ' || (w ->> 'why')) from nodes n, jsonb_array_elements(n.restrictions -> 'waits') w
			where n.site = rollout_sites.site and n.restrictions is not null and w ->> 'deployment' = rollout_sites.fleet), '') end` + memberRest

	memberKey  = `site, revision, coalesce((select digest from rollouts r where r.fleet = rollout_sites.fleet and r.revision = rollout_sites.revision), ''), wave, state, `
	memberRest = `, admitted_at, changed_at, groups`
)

func scanMember(row pgx.CollectableRow) (m rollout.Member, err error) {
	err = row.Scan(&m.Site, &m.Revision, &m.Digest, &m.Wave, &m.State, &m.Reason, &m.Admitted, &m.Changed, &m.Groups)
	return m, err
}

func event(kind string, name protocol.DeploymentName, message string) fleet.Event {
	return fleet.Event{Kind: kind, Deployment: name, Message: pgdb.Storable(message)}
}

// Now returns the time of the database: the times of rollouts are compared with it.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	return now, pgdb.Classify("read the time of the database", s.db.QueryRow(ctx, `select now()`).Scan(&now))
}
