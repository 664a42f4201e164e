package desireddb

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Held returns what sites hold that may be unknown here: a position that is not before the
// site's, or nothing although they had adopted something; and those that are unfollowed. An
// empty site means all.
func (s *Desired) Held(ctx context.Context, site protocol.SiteID) ([]fleet.SiteHeld, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (v fleet.SiteHeld, err error) {
		err = row.Scan(&v.Site, &v.Held.Position.Epoch, &v.Held.Position.Generation, &v.Held.Digest, &v.Unfollowed)
		v.Lost = v.Held.Position.IsZero()
		return v, err
	}, `select id, held_epoch, held_generation, held_digest, unfollowed from sites where ($1 = '' or id = $1) and held_digest is not null
		and ((held_epoch, held_generation) >= (epoch, generation) or held_generation = 0 and adopted > 0 or unfollowed) order by id`, site)
	return list, pgdb.Classify("read what sites hold", err)
}

// Raise goes on above the desired state that a site holds and that is not the one recorded
// here: this record was restored, or set up anew. Tombstones keep their positions: the site may
// run a later deployment of the same name, which this record has lost. It returns the message
// at the new position, or the one recorded where that is what the site holds, or a later one.
// Where the epoch would
// grow by more than protocol.MaxEpochJump it is a Conflict, unless a person has accepted it.
// Where the record was not compared with the deployments repo, that is noted until the next
// SaveDesired, also over a crash in between.
func (s *Desired) Raise(ctx context.Context, site protocol.SiteID, held protocol.Held, how fleet.Raise) (out protocol.SiteDesired, err error) {
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
		if out = last[0].Message; !held.Unknown(out.Held()) {
			return nil
		}
		next, err := row.Desired.Raise(held.Position)
		if how.Accepted {
			next, err = protocol.Position{Epoch: held.Position.Epoch + 1, Generation: max(row.Desired.Generation, held.Position.Generation) + 1}, nil
		}
		if err != nil {
			return err
		}
		if next.Epoch > math.MaxInt64 || next.Generation > math.MaxInt64 {
			return protocol.Errorf(protocol.Conflict, "no position is after %s, which the site holds: remove the desired state of its LO", held.Position)
		}
		b := &pgx.Batch{}
		b.Queue(`update sites set epoch = $2, generation = $3, unfollowed = unfollowed or $4 where id = $1`,
			site, int64(next.Epoch), int64(next.Generation), !how.Followed)
		b.Queue(`update deployments set epoch = $2, generation = $3 where site = $1 and desired and entry is not null`,
			site, int64(next.Epoch), int64(next.Generation))
		db.QueueEvents(b, []fleet.Event{{Kind: fleet.DesiredEpochRaised, Site: site, Message: fmt.Sprintf(
			"the site holds desired state %s, which the CO does not remember: the CO had %s (commit %.12s). Its database was restored or replaced, or the site was removed and is back; "+
				"what was recorded in between is lost here, and follows anew from the deployments repo and the site's reports. The CO goes on at %s",
			held.Position, row.Desired, row.Commit, next)}})
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
		if list[0].Held.Unknown(last.Held()) {
			out, err := s.Raise(ctx, site, list[0].Held, fleet.Raise{Accepted: true})
			return out.Position, err
		}
	}
	return protocol.Position{}, protocol.Errorf(protocol.Conflict, "site %s holds no position that is to be accepted", site)
}

// RemoveVolumes says whose volumes go with the deployments that the next SaveDesired of the
// site removes; those of the others outlive them.
func (s *Desired) RemoveVolumes(ctx context.Context, site protocol.SiteID, of []protocol.DeploymentName) error {
	_, err := s.db.Exec(ctx, `update deployments set remove_volumes = (name = any($2)) where site = $1 and desired and remove_volumes <> (name = any($2))`,
		site, pgdb.Texts(of))
	return pgdb.Classify("record which volumes are removed", err)
}
