package listdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// PlacementNodes returns the nodes of a site with what runs on them, by id. A node that the
// record shows only by what it runs is among them.
func (s *Lists) PlacementNodes(ctx context.Context, site protocol.SiteID) ([]placement.Node, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (n placement.Node, err error) {
		var inventory []byte
		if err = row.Scan(&n.ID, &n.Online, &inventory, &n.Runs); err != nil {
			return n, err
		}
		return n, db.DecodeInventory(&n.Inventory, inventory)
	}, `select coalesce(n.id, r.node) as node, coalesce(n.online, false), n.inventory, coalesce(r.runs, '{}')
		from (select id, online, inventory from nodes where site = $1) n
		full join (select node, array_agg(deployment order by deployment) as runs from deployment_nodes
			where site = $1 and state <> 'DELETED' group by node) r on r.node = n.id order by 1`, site)
	return list, pgdb.Classify("read nodes of site "+string(site), err)
}
