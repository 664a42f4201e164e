package db

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A SiteRow is what a writer to a site needs of its row.
type SiteRow struct {
	Version string            // of its LO
	Desired protocol.Position // of the desired state that was recorded last
	Commit  string            // of the deployments repo that it is of
	Adopted protocol.Position // of the desired state that the site follows, as it reported
	// Position is that of the site's journal.
	stream.Position
	Gap        bool      // the journal had a gap
	Incomplete bool      // rows of what it reported are missing: it is asked for a snapshot
	Lost       uint64    // events that the site declared as lost, since it is known
	Now        time.Time // the transaction began

	Held, Raised protocol.Position // what the site reported to hold, and what Desired was raised above last; zero: nothing
	RaisedSeq    int64             // Seq, when Desired was raised; -1: it was not
	GapSaid      bool              // the event of that has said what the gap means
	Unfollowed   bool              // since then the record was not compared with the deployments repo
}

// LockSite locks the row of a site until the transaction ends, making it where
// there is none: all writers of a site follow one another. It writes nothing to a
// row that is there.
func LockSite(ctx context.Context, tx pgx.Tx, site protocol.SiteID) (SiteRow, error) {
	rows, err := LockSites(ctx, tx, []protocol.SiteID{site})
	return rows[site], err
}

// LockSites is LockSite for some sites. It locks them in the order of their ids, as all
// writers of several do.
func LockSites(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID]SiteRow, error) {
	rows := make(map[protocol.SiteID]SiteRow, len(sites))
	ids := slices.Sorted(slices.Values(pgdb.Texts(sites)))
	for range 2 {
		_, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (r SiteRow, err error) {
			var id protocol.SiteID
			err = row.Scan(&id, &r.Version, &r.Desired.Epoch, &r.Desired.Generation, &r.Commit, &r.Adopted.Epoch, &r.Adopted.Generation, &r.Epoch, &r.Seq, &r.Retired, &r.Gap, &r.Incomplete, &r.Lost, &r.Now,
				&r.Held.Epoch, &r.Held.Generation, &r.Raised.Epoch, &r.Raised.Generation, &r.RaisedSeq, &r.GapSaid, &r.Unfollowed)
			rows[id] = r
			return r, err
		}, `select id, version, epoch, generation, desired_commit, adopted_epoch, adopted, journal_epoch, journal_seq, retired_epochs, gap, incomplete,
				events_lost, now(), coalesce(held_epoch, 0), coalesce(held_generation, 0), raised_epoch, raised_generation, raised_seq, gap and gap_events is not null, unfollowed
			from sites where id = any($1) order by id for no key update`, ids)
		if err != nil || len(rows) == len(ids) {
			return rows, err
		}
		if _, err := tx.Exec(ctx, `insert into sites (id) select unnest($1::text[]) on conflict do nothing`, ids); err != nil {
			return rows, err
		}
	}
	return rows, fmt.Errorf("lock %d sites: %d are there after all were made", len(ids), len(rows))
}

// QueueHeld records what a site reports to hold. What no column can hold counts as the
// greatest that one can.
func QueueHeld(b *pgx.Batch, site protocol.SiteID, h protocol.Held) {
	b.Queue(`update sites set held_epoch = $2, held_generation = $3, held_digest = $4, held_commit = $5 where id = $1`, site,
		int64(min(h.Position.Epoch, math.MaxInt64)), int64(min(h.Position.Generation, math.MaxInt64)), pgdb.Storable(string(h.Digest)), pgdb.Storable(h.Commit))
}

// QueuePresenceHeld records what a site holds as its presence says. What its LO reported of
// nodes that follow a later state, without a digest, stays until the record is above it.
func QueuePresenceHeld(b *pgx.Batch, site protocol.SiteID, h protocol.Held) {
	// What it holds is in the backup from which its record was restored: nothing is lost. One that holds nothing, of which the backup has a state, has lost
	// what it held, also if it has taken up a state since: whether that was in the backup is not known.
	b.Queue(`delete from restored_positions where site = $1 and (epoch, generation) >= ($2, $3) and not lost and (generation = 0 or $3::bigint > 0)`, site,
		int64(min(h.Position.Epoch, math.MaxInt64)), int64(min(h.Position.Generation, math.MaxInt64)))
	b.Queue(`update restored_positions set lost = true where site = $1 and generation > 0 and $2`, site, h.Position.IsZero())
	b.Queue(`update sites set held_epoch = $2, held_generation = $3, held_digest = $4, held_commit = $5 where id = $1 and not (
		$3::bigint > 0 and coalesce(held_digest = '', false) and (held_epoch, held_generation) > (epoch, generation) and (held_epoch, held_generation) > ($2, $3))`, site,
		int64(min(h.Position.Epoch, math.MaxInt64)), int64(min(h.Position.Generation, math.MaxInt64)), pgdb.Storable(string(h.Digest)), pgdb.Storable(h.Commit))
}
