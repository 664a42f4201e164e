package fleetdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// siteTables hold what is known of a site, in an order in which they can be emptied. What is
// only ever added (events, transitions, anomalies, messages of machine data) is not among
// them: it is kept for its time.
var siteTables = []string{
	"node_labels", "nodes", "deployment_nodes", "deployment_status", "deployments", "data_rules", "site_files", "desired_bodies", "former_bodies",
	"data_retained", "data_readers", "streams", "down_queue", "down_retained", "down_streams", "requests", "join_tokens", "machines", "pending_nodes",
	"command_nodes", "command_sites", "rollout_sites", "restored_positions",
}

// RemoveSite forgets a site whose removal was asked for, and reports whether it did. The
// caller has seen that the deployments repo has nothing of it. The request is void where
// the site is online.
func (s *Store) RemoveSite(ctx context.Context, site protocol.SiteID) (removed bool, err error) {
	err = s.db.Tx(ctx, "remove site", func(tx pgx.Tx) error {
		removed = false
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		if _, err := db.LockSite(ctx, tx, site); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `delete from requests where site = $1 and kind = $2`, site, string(fleet.RequestSite))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		var online bool
		if err := tx.QueryRow(ctx, `select online from sites where id = $1`, site).Scan(&online); err != nil {
			return err
		}
		if online {
			return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.SiteKept, Site: site, Message: "the site is not removed: its LO has connected"}})
		}
		if err := proposaldb.Save(ctx, tx, []fleet.SiteWant{{Site: site}}); err != nil {
			return err
		}
		b := &pgx.Batch{}
		db.QueueRevokeSite(b, site)
		for _, table := range siteTables {
			b.Queue(`delete from `+table+` where site = $1`, site)
		}
		b.Queue(`delete from sites where id = $1`, site)
		db.QueueEvents(b, []fleet.Event{{Kind: fleet.SiteRemoved, Site: site}})
		removed = true
		return tx.SendBatch(ctx, b).Close()
	})
	return removed, err
}
