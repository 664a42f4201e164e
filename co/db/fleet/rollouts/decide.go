package rolloutdb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

func waveName(i int) string { return "wave " + strconv.Itoa(i+1) }

// current sorts the rollouts of a fleet deployment: one that is open comes before a later revision that is refused.
const current = `state in ('running', 'paused') desc, revision desc`

// Rollout returns the latest rollout of a fleet deployment with its counts.
func (s *Store) Rollout(ctx context.Context, name protocol.DeploymentName) (rollout.Rollout, error) {
	list, err := pgdb.Rows(ctx, s.db, scan, `select `+columns+` from rollouts where fleet = $1 order by `+current+` limit 1`, name)
	if err == nil && len(list) == 0 {
		return rollout.Rollout{}, notThere(name)
	}
	if err != nil {
		return rollout.Rollout{}, pgdb.Classify("read a rollout", err)
	}
	r := list[0]
	if r.Waves, err = countWaves(ctx, s.db, name, 0); err != nil {
		return r, pgdb.Classify("count the sites of a rollout", err)
	}
	return r, nil
}

func notThere(name protocol.DeploymentName) error {
	return protocol.Errorf(protocol.NotFound, "no rollout of a fleet deployment %q: colony fleet list shows them", name)
}

// Rollouts lists rollouts, the newest first; an empty name lists those of all fleet deployments.
func (s *Store) Rollouts(ctx context.Context, name protocol.DeploymentName, p fleet.Page) (list []rollout.Rollout, next string, err error) {
	size := fleet.Size(p.Limit)
	args, where := []any{size + 1}, "true"
	if name != "" {
		args, where = append(args, name), "fleet = $2"
	}
	if p.Cursor != "" {
		at, id, err := fleet.ParseTimeCursor(p.Cursor)
		before, number, ok := strings.Cut(id, "/")
		revision, bad := strconv.ParseInt(number, 10, 64)
		if err != nil || !ok || bad != nil {
			return nil, "", fleet.NotACursor(p.Cursor)
		}
		n := len(args)
		where += fmt.Sprintf(" and (created_at, fleet, revision) < ($%d, $%d, $%d)", n+1, n+2, n+3)
		args = append(args, at, before, revision)
	}
	list, err = pgdb.Rows(ctx, s.db, scan, `select `+columns+` from rollouts where `+where+` order by created_at desc, fleet desc, revision desc limit $1`, args...)
	if err != nil {
		return nil, "", pgdb.Classify("list rollouts", err)
	}
	list, next = fleet.Cut(list, size, func(r rollout.Rollout) string {
		return fleet.TimeCursor(r.Created, fmt.Sprintf("%s/%d", r.Fleet, r.Revision))
	})
	return list, next, nil
}

// Sites lists the sites of a fleet deployment by name; an empty state lists those in every one.
func (s *Store) Sites(ctx context.Context, name protocol.DeploymentName, state rollout.SiteState, p fleet.Page) (list []rollout.Member, next string, err error) {
	size := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, scanMember, `select `+shownMember+` from rollout_sites where fleet = $1 and ($2 = '' or state = $2) and site > $3 order by site limit $4`,
		name, string(state), p.Cursor, size+1)
	if err != nil {
		return nil, "", pgdb.Classify("list the sites of a rollout", err)
	}
	list, next = fleet.Cut(list, size, func(m rollout.Member) string { return string(m.Site) })
	return list, next, nil
}

// Member returns where a site stands in a fleet deployment, nil where it is no part of it.
func (s *Store) Member(ctx context.Context, name protocol.DeploymentName, site protocol.SiteID) (*rollout.Member, error) {
	list, err := pgdb.Rows(ctx, s.db, scanMember, `select `+shownMember+` from rollout_sites where fleet = $1 and site = $2`, name, site)
	if err != nil || len(list) == 0 {
		return nil, pgdb.Classify("read a site of a rollout", err)
	}
	return &list[0], nil
}

// meant sorts the rollouts that an action may mean: as current, but for revisions that are refused, which nothing can be done with.
const meant = `state in ('running', 'paused') desc, state <> 'refused' desc, revision desc`

// Act carries out an action on the latest rollout of a fleet deployment that was not refused, for by, and returns it. If the rollout already has the
// requested state, nothing changes. If the action is not possible, or the rollout changed since the caller saw it, the error is a Conflict that says why.
func (s *Store) Act(ctx context.Context, name protocol.DeploymentName, a rollout.Action, seen rollout.Seen, by string) (done rollout.Rollout, err error) {
	err = s.db.Tx(ctx, "change a rollout", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `select `+columns+` from rollouts where fleet = $1 order by `+meant+` limit 1 for update`, name)
		if err != nil {
			return err
		}
		r, err := pgx.CollectExactlyOneRow(rows, scan)
		if errors.Is(err, pgx.ErrNoRows) {
			return notThere(name)
		}
		if err != nil {
			return err
		}
		if r.Waves, err = countWaves(ctx, tx, name, 0); err != nil {
			return err
		}
		if err := seen.Check(&r); err != nil {
			return err
		}
		next, kind, err := act(r, a)
		if done = next; err != nil || kind == "" {
			return err
		}
		done.By = by
		if _, err = tx.Exec(ctx, `update rollouts set state = $3, promoted = $4, reason = $5, by = $6, settled_at = $7, changed_at = now() where fleet = $1 and revision = $2`,
			name, r.Revision, next.State, next.Promoted, next.Reason, pgdb.Storable(by), next.Settled); err != nil {
			return err
		}
		if a == rollout.Abort {
			if err := endWatch(ctx, tx, name); err != nil {
				return err
			}
		}
		if a == rollout.Resume && !strings.HasPrefix(r.Reason, rollout.PausedReason) { // failures that stopped it, and not ones that came while a person had
			if _, err = tx.Exec(ctx, `update rollout_sites set accepted = true where fleet = $1 and state = 'failed'`, name); err != nil {
				return err
			}
		}
		message := fmt.Sprintf("%s: %s", r.Name(), next.Reason)
		if by != "" {
			message += ", by " + by
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{event(kind, name, message)})
	})
	if err == nil { // with its times
		list, err := pgdb.Rows(ctx, s.db, scan, `select `+columns+` from rollouts where fleet = $1 and revision = $2`, name, done.Revision)
		if err == nil && len(list) == 1 {
			list[0].Waves, done = done.Waves, list[0]
		}
	}
	return done, err
}

// act returns a rollout after an action, and the kind of its event; "" where nothing changes.
func act(r rollout.Rollout, a rollout.Action) (next rollout.Rollout, kind string, err error) {
	next = r
	if !r.State.Open() {
		if a == rollout.Abort && r.State == rollout.Aborted {
			return next, "", nil
		}
		return next, "", protocol.Errorf(protocol.Conflict, "%s is %s: there is nothing to %s", r.Name(), r.State, a)
	}
	switch a {
	case rollout.Pause:
		if r.State == rollout.Paused {
			return next, "", nil
		}
		next.State, next.Reason, kind = rollout.Paused, rollout.PausedReason, fleet.RolloutPaused
	case rollout.Resume:
		if r.State == rollout.Running {
			return next, "", nil
		}
		next.State, next.Reason, next.Settled, kind = rollout.Running, "resumed", nil, fleet.RolloutResumed
	case rollout.Promote:
		if r.State == rollout.Paused {
			return next, "", protocol.Errorf(protocol.Conflict, "%s is paused: resume it first", r.Name())
		}
		if r.Promoted > r.Wave {
			return next, "", nil
		}
		next.Promoted, next.Reason, kind = r.Wave+1, waveName(r.Wave)+" may be followed by the next", fleet.RolloutPromoted
	case rollout.Abort:
		next.State, next.Reason, kind = rollout.Aborted, "aborted: sites that have it stay with it, and no other gets it", fleet.RolloutAborted
	}
	return next, kind, nil
}
