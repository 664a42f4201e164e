package fleetdb

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

const nodeColumns = `select site, id, online, changed_at, version, labels, inventory from nodes`

func scanNode(row pgx.CollectableRow) (n fleet.Node, err error) {
	var labels, inventory []byte
	if err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &labels, &inventory); err != nil {
		return n, err
	}
	if err = json.Unmarshal(labels, &n.Labels); err != nil || inventory == nil {
		return n, err
	}
	n.Inventory = &protocol.Inventory{}
	return n, json.Unmarshal(inventory, n.Inventory)
}

// Nodes lists nodes by site and id.
func (s *Store) Nodes(ctx context.Context, f fleet.NodeFilter, p fleet.Page) (nodes []fleet.Node, next string, err error) {
	keys, err := after(p, 2)
	if err != nil {
		return nil, "", err
	}
	labels, err := pgdb.JSON(notNil(f.Labels))
	if err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "labels: %w", err)
	}
	nodes, err = pgdb.Rows(ctx, s.db, scanNode, nodeColumns+`
		where (site, id) > ($1, $2) and ($3 = '' or site = $3) and labels @> $4 order by site, id limit $5`,
		keys[0], keys[1], string(f.Site), labels, fleet.Size(p.Limit)+1)
	if err != nil {
		return nil, "", pgdb.Classify("list nodes", err)
	}
	nodes, next = cut(nodes, p, func(n fleet.Node) []string { return []string{string(n.Site), string(n.ID)} })
	return nodes, next, nil
}

// Node returns one node.
func (s *Store) Node(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.Node, error) {
	found, err := pgdb.Rows(ctx, s.db, scanNode, nodeColumns+` where site = $1 and id = $2`, site, node)
	return pgdb.One("node "+quote(string(node))+" at site "+quote(string(site)), found, err)
}

func notNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
