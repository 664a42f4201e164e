package fleetdb

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// nodeColumns reads what the site reported of its nodes, nodeView what the CO knows of
// them now: of a site that is offline it does not know which nodes are online.
const nodeColumns = `select site, id, online, changed_at, version, labels, inventory from nodes`

const nodeView = `select n.site, n.id, n.online and s.online,
	case when s.online then n.changed_at else greatest(n.changed_at, s.changed_at) end, n.version, n.labels, n.inventory,
	case when not s.online then 'unknown' when n.online then 'online' else 'offline' end, ` + reportedAt + `
	from nodes n join sites s on s.id = n.site`

func scanNodeView(row pgx.CollectableRow) (n fleet.Node, err error) {
	var labels, inventory []byte
	err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &labels, &inventory, &n.State, &n.ReportedAt)
	if err != nil {
		return n, err
	}
	return n, decodeNode(&n, labels, inventory)
}

func scanNode(row pgx.CollectableRow) (n fleet.Node, err error) {
	var labels, inventory []byte
	if err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &labels, &inventory); err != nil {
		return n, err
	}
	return n, decodeNode(&n, labels, inventory)
}

// decodeNode fills the fields of a node that are stored as JSON.
func decodeNode(n *fleet.Node, labels, inventory []byte) error {
	if err := json.Unmarshal(labels, &n.Labels); err != nil || inventory == nil {
		return err
	}
	n.Inventory = &protocol.Inventory{}
	return json.Unmarshal(inventory, n.Inventory)
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
	nodes, err = pgdb.Rows(ctx, s.db, scanNodeView, nodeView+`
		where (n.site, n.id) > ($1, $2) and ($3 = '' or n.site = $3) and n.labels @> $4 order by n.site, n.id limit $5`,
		keys[0], keys[1], string(f.Site), labels, fleet.Size(p.Limit)+1)
	if err != nil {
		return nil, "", pgdb.Classify("list nodes", err)
	}
	nodes, next = cut(nodes, p, func(n fleet.Node) []string { return []string{string(n.Site), string(n.ID)} })
	return nodes, next, nil
}

// Node returns one node.
func (s *Store) Node(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.Node, error) {
	found, err := pgdb.Rows(ctx, s.db, scanNodeView, nodeView+` where n.site = $1 and n.id = $2`, site, node)
	return pgdb.One("node "+quote(string(node))+" at site "+quote(string(site)), found, err)
}

func notNil[K ~string](m map[K]string) map[K]string {
	if m == nil {
		return map[K]string{}
	}
	return m
}
