package listdb

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/rollout/preview"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// PlacementNodes returns the nodes of a site with what runs on them, by id. A node that the
// record shows only by what it runs is among them.
func (s *Lists) PlacementNodes(ctx context.Context, site protocol.SiteID) ([]placement.Node, error) {
	all, err := s.placementNodes(ctx, []protocol.SiteID{site})
	return all[site], err
}

func (s *Lists) placementNodes(ctx context.Context, sites []protocol.SiteID) (map[protocol.SiteID][]placement.Node, error) {
	out := map[protocol.SiteID][]placement.Node{}
	_, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var n placement.Node
		var inventory, restrictions []byte
		if err := row.Scan(&site, &n.ID, &n.Online, &inventory, &restrictions, &n.Runs); err != nil {
			return none, err
		}
		if restrictions != nil {
			var report restriction.Report
			if err := json.Unmarshal(restrictions, &report); err != nil {
				return none, err
			}
			n.Restricted = placement.RestrictedBy(report.Restrictions...)
		}
		if err := db.DecodeInventory(&n.Inventory, inventory); err != nil {
			return none, err
		}
		out[site] = append(out[site], n)
		return none, nil
	}, `select coalesce(n.site, r.site), coalesce(n.id, r.node) as node, coalesce(n.online, false), n.inventory, n.restrictions, coalesce(r.runs, '{}')
		from (select site, id, online, inventory, restrictions from nodes where site = any($1)) n
		full join (select site, node, array_agg(deployment order by deployment) as runs from deployment_nodes
			where site = any($1) and state <> 'DELETED' group by site, node) r on r.site = n.site and r.node = n.id order by 1, 2`, pgdb.Texts(sites))
	return out, pgdb.Classify("read nodes of sites", err)
}

// Facts returns what is known of sites for the preview of a deployment: without nodes only whether each is online, and how much runs there.
func (s *Lists) Facts(ctx context.Context, name protocol.DeploymentName, sites []protocol.SiteID, nodes bool) (map[protocol.SiteID]preview.Facts, error) {
	out := make(map[protocol.SiteID]preview.Facts, len(sites))
	_, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var f preview.Facts
		err = row.Scan(&site, &f.Online, &f.Running)
		out[site] = f
		return none, err
	}, `select s.id, s.online, (select count(*) from deployments d where d.site = s.id and d.desired and d.digest <> '') from sites s where s.id = any($1)`, pgdb.Texts(sites))
	if err != nil || !nodes {
		return out, pgdb.Classify("read sites", err)
	}
	on, err := s.placementNodes(ctx, sites)
	if err != nil {
		return nil, err
	}
	for site, f := range out {
		f.Known, f.Nodes, f.Versions = true, on[site], map[protocol.NodeID]string{}
		out[site] = f
	}
	_, err = pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var node protocol.NodeID
		var version string
		if err := row.Scan(&site, &node, &version); err != nil {
			return none, err
		}
		if f, known := out[site]; known {
			f.Versions[node] = version
		}
		return none, nil
	}, `select site, node, case state when 'INSTALLED' then app_version else running_version end
		from deployment_nodes where site = any($1) and deployment = $2 and state <> 'DELETED'`, pgdb.Texts(sites), name)
	return out, pgdb.Classify("read what nodes run", err)
}
