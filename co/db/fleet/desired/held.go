package desireddb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Held returns what sites hold that may be unknown here: a position that is not before the
// site's, or nothing although they had adopted something; those that are unfollowed; and, of sites whose record was restored from a
// backup, whether they have reported since. One that reports then to hold nothing counts as beyond the backup: what it had since is not known. An empty site means all.
func (s *Desired) Held(ctx context.Context, site protocol.SiteID) ([]fleet.SiteHeld, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (v fleet.SiteHeld, err error) {
		var restored bool
		err = row.Scan(&v.Site, &v.Held.Position.Epoch, &v.Held.Position.Generation, &v.Held.Digest, &v.Held.Commit, &v.Unfollowed, &restored, &v.Beyond)
		v.Awaited = restored && !v.Beyond
		v.Lost = !v.Awaited && v.Held.Position.IsZero()
		return v, err
	}, `select id, coalesce(held_epoch, 0), coalesce(held_generation, 0), coalesce(held_digest, ''), held_commit, unfollowed, r.site is not null,
			r.site is not null and (r.lost or held_digest is not null and (held_epoch, held_generation) > (r.epoch, r.generation))
		from sites left join restored_positions r on r.site = id where ($1 = '' or id = $1) and (r.site is not null or held_digest is not null
		and ((held_epoch, held_generation) >= (sites.epoch, sites.generation) or held_generation = 0 and adopted > 0 or unfollowed)) order by id`, site)
	return list, pgdb.Classify("read what sites hold", err)
}

// Raise goes on above the desired state that a site holds and that is not the one recorded
// here: this record was restored, or set up anew. Tombstones of before the
// restore keep their positions: the site may
// run a later deployment of the same name, which this record has lost. Those that were made since go on above. All lose the volumes, of which this record does not know whether
// they are those that were meant; purges end for that reason, also those that no desired state had yet. Also for that reason a deployment of which a change is
// held, or that is of a fleet deployment, is in neither list of the message until that is over, or its rollout reaches the site: it stays as it is. It returns the message
// at the new position, or the one recorded where that is what the site holds, or a later one.
// Where the epoch would
// grow by more than protocol.MaxEpochJump it is a Conflict, unless a person has accepted it.
// Where the record was not compared with the deployments repo, that is noted until the next
// SaveDesired, also over a crash in between; else the message is of the commit with which it was, as the site says what it holds by that.
func (s *Desired) Raise(ctx context.Context, site protocol.SiteID, at protocol.Held, how fleet.Raise) (out protocol.SiteDesired, err error) {
	err = s.db.Tx(ctx, "raise position of site", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		row, err := db.LockSite(ctx, tx, site)
		if err != nil {
			return err
		}
		last, err := siteRecords(ctx, tx, []protocol.SiteID{site})
		if err != nil {
			return err
		}
		out = last[0].Message
		had, beyond, err := restoredAt(ctx, tx, site, at.Position)
		if err != nil || !beyond && !at.Unknown(out.Held()) {
			return err
		}
		next, err := row.Desired.Raise(at.Position)
		if how.Accepted {
			next, err = protocol.Position{Epoch: max(row.Desired.Epoch, at.Position.Epoch) + 1, Generation: max(row.Desired.Generation, at.Position.Generation) + 1}, nil
		}
		if err != nil {
			return err
		}
		if next.Epoch > math.MaxInt64 || next.Generation > math.MaxInt64 {
			return protocol.Errorf(protocol.Conflict, "no position is after %s, which the site holds: remove the desired state of its LO", at.Position)
		}
		held, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select name from deployments where site = $1 and held <> '' order by name`, site)
		if err != nil {
			return err
		}
		setBack := ""
		if len(held) > 0 {
			setBack = fmt.Sprintf(". Of %s a change is held, and the deployments repo does not say what runs: they stay as they are at the site until that is confirmed, or their files are back", strings.Join(held, ", "))
		}
		fleets, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `update rollout_sites set retained = true where site = $1 and revision > 0 and state not in ('left', 'conflict') returning fleet`, site)
		if err != nil {
			return err
		}
		if slices.Sort(fleets); len(fleets) > 0 {
			setBack += fmt.Sprintf(". Of the fleet deployments %s it keeps what it runs until their rollouts reach it", strings.Join(fleets, ", "))
		}
		ended, err := raiseRemovals(ctx, tx, site, next)
		if err != nil {
			return err
		}
		before := fmt.Sprintf("%s (commit %.12s)", row.Desired, row.Commit)
		if beyond && at.Position.Compare(row.Desired) <= 0 {
			before = had.String() + " when it was restored"
		}
		lost, err := whatIsLost(ctx, tx, site, at.Position, before)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(`update sites set epoch = $2, generation = $3, unfollowed = unfollowed or $4, raised_epoch = $5, raised_generation = $6, raised_seq = case when gap_events > 0 then -1 else journal_seq end,
				gap_events = case when gap_events is not null then 0 end, desired_commit = coalesce(nullif($7, ''), desired_commit) where id = $1`,
			site, int64(next.Epoch), int64(next.Generation), !how.Followed, int64(min(at.Position.Epoch, math.MaxInt64)), int64(min(at.Position.Generation, math.MaxInt64)), how.Commit)
		b.Queue(`update deployments set epoch = $2, generation = $3, remove_volumes = remove_volumes and $4,
				set_back = held <> '' or exists (select from rollout_sites m where m.fleet = deployments.name and m.site = deployments.site and m.retained) where site = $1 and desired and entry is not null`,
			site, int64(next.Epoch), int64(next.Generation), how.Followed)
		db.QueueEvents(b, []fleet.Event{{Kind: fleet.DesiredEpochRaised, Site: site, Message: fmt.Sprintf(
			"%s, and follows anew from the deployments repo and a snapshot of the site. The CO goes on at %s%s%s", lost, next, setBack, ended)}})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if last, err = siteRecords(ctx, tx, []protocol.SiteID{site}); err == nil {
			out = last[0].Message
		}
		return err
	})
	return out, err
}

// whatIsLost says what is lost of what a site has reported, which holds at, where the record had before.
func whatIsLost(ctx context.Context, tx pgx.Tx, site protocol.SiteID, at protocol.Position, before string) (string, error) {
	var missing, seq int64 // of its journal; missing 0: not known yet
	if err := tx.QueryRow(ctx, `select coalesce(gap_events, 0), journal_seq from sites where id = $1`, site).Scan(&missing, &seq); err != nil {
		return "", err
	}
	holds := fmt.Sprintf("the site holds desired state %s, which the CO does not remember", at)
	if at.IsZero() {
		holds = "the site holds no desired state, and what its LO had since the backup, if it had one, is lost"
	}
	journal := fmt.Sprintf(", with what the site reported after event %d of its journal", seq)
	if missing > 0 {
		journal = fmt.Sprintf(", with %d events of its journal", missing)
	}
	return fmt.Sprintf("%s: the CO had %s. Its database was restored or replaced, or the site was removed and is back; what was recorded in between is lost here%s", holds, before, journal), nil
}

// restoredAt returns at which position the record of a site was restored from a backup, if it has not reported since, and whether what it
// holds is beyond that, or may have been: its LO has lost it.
func restoredAt(ctx context.Context, tx pgx.Tx, site protocol.SiteID, held protocol.Position) (at protocol.Position, beyond bool, err error) {
	var lost bool
	err = tx.QueryRow(ctx, `select epoch, generation, lost from restored_positions where site = $1`, site).Scan(&at.Epoch, &at.Generation, &lost)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, false, nil
	}
	return at, err == nil && (lost || held.After(at)), err
}

// An ended is what a raise ends of what was asked for, by the names of deployments.
type ended struct {
	removals []string // since the restore: carried out, without the volumes
	volumes  []string // of removals of before: they stay
	purges   []string
	dropped  []string // removals
}

// raiseRemovals takes the volumes from all tombstones of a site, as those that are there may be of a later deployment, which this record has lost. It gives those
// that were made since its record was restored another position, and ends what was asked for
// by name: it may be done, and what it names may be of later. That goes for what was not begun, too, but for removals since colony co restore, which drops those of
// before: they lose the volumes.
func raiseRemovals(ctx context.Context, tx pgx.Tx, site protocol.SiteID, next protocol.Position) (out ended, err error) {
	out.removals, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `update deployments d set epoch = $2, generation = $3, remove_volumes = false from restored_positions r
		where d.site = $1 and r.site = $1 and d.tombstone and not d.desired and (d.epoch, d.generation) > (r.epoch, r.generation) returning d.name`,
		site, int64(next.Epoch), int64(next.Generation))
	if err != nil {
		return out, err
	}
	out.volumes, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `update deployments set remove_volumes = false where site = $1 and tombstone and not desired and remove_volumes returning name`, site)
	if err != nil {
		return out, err
	}
	if _, err := tx.Exec(ctx, `update requests q set volumes = false from restored_positions r where q.site = $1 and r.site = $1 and q.kind = $2`, site, string(fleet.RequestRemoval)); err != nil {
		return out, err
	}
	out.dropped, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `delete from requests q where site = $1 and kind = $2 and not exists (select from restored_positions r where r.site = q.site) returning deployment`,
		site, string(fleet.RequestRemoval))
	if err != nil {
		return out, err
	}
	// A later restore that is not by colony co restore marks nothing.
	if _, err := tx.Exec(ctx, `delete from restored_positions where site = $1`, site); err != nil {
		return out, err
	}
	out.purges, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `delete from requests where site = $1 and kind = $2 returning deployment`, site, string(fleet.RequestPurge))
	for _, list := range [][]string{out.removals, out.volumes, out.purges, out.dropped} {
		slices.Sort(list)
	}
	out.purges = slices.Compact(out.purges)
	return out, err
}

// String says what became of removals and purges that the site may not have heard of; "": there were none.
func (e ended) String() (text string) {
	for _, part := range []struct {
		names []string
		what  string
	}{
		{e.removals, "Removals since the restore are carried out, without the volumes"},
		{e.volumes, "The volumes of these were to go with earlier removals, and stay where they are still there, ask again for what colony volume list shows"},
		{e.purges, "Whether the volumes of these were purged is not known here, ask again for what colony volume list shows"},
		{e.dropped, "The removals of these were asked for by name, and dropped, as they may be done, ask again for what is to go"},
	} {
		if len(part.names) > 0 {
			text += ". " + part.what + ": " + strings.Join(part.names, ", ")
		}
	}
	return text
}

// AcceptPosition goes on above the position that a site holds, however far it is. It is a
// Conflict where the site holds nothing that is unknown here.
func (s *Desired) AcceptPosition(ctx context.Context, site protocol.SiteID) (protocol.Position, error) {
	list, err := s.Held(ctx, site)
	if err != nil {
		return protocol.Position{}, err
	}
	if len(list) == 1 {
		last, err := s.LastDesired(ctx, site)
		if err != nil {
			return protocol.Position{}, err
		}
		if list[0].Beyond || list[0].Held.Unknown(last.Held()) {
			out, err := s.Raise(ctx, site, list[0].Held, fleet.Raise{Accepted: true})
			return out.Position, err
		}
	}
	return protocol.Position{}, protocol.Errorf(protocol.Conflict, "site %s holds no position that is to be accepted", site)
}

// RemoveVolumes says whose volumes go with the deployments that the next SaveDesired of the
// site removes; those of the others outlive them. Where the record went on above a later state that the site holds, and was not compared with the deployments
// repo since, all outlive them: they may be of later deployments. Raise says the same of those that were recorded before it.
func (s *Desired) RemoveVolumes(ctx context.Context, site protocol.SiteID, of []protocol.DeploymentName) error {
	_, err := s.db.Exec(ctx, `update deployments d set remove_volumes = d.name = any($2) and not s.unfollowed from sites s
		where d.site = $1 and s.id = $1 and d.desired and d.remove_volumes <> (d.name = any($2) and not s.unfollowed)`,
		site, pgdb.Texts(of))
	return pgdb.Classify("record which volumes are removed", err)
}
