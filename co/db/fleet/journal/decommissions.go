package journaldb

import (
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// decommissions are the removals of nodes of some sites: those that wait for the answer of
// the site, and those that were carried out.
const decommissions = `select site, node, epoch, generation, done_at is null from requests
	where site = any($1) and kind = 'decommission' and refused = '' and not (pending and generation = 0)`

// A decommission is the removal of a node.
type decommission struct {
	site     protocol.SiteID
	node     protocol.NodeID
	position protocol.Position
	open     bool
}

func scanDecommission(row pgx.CollectableRow) (d decommission, err error) {
	err = row.Scan(&d.site, &d.node, &d.position.Epoch, &d.position.Generation, &d.open)
	return d, err
}

// decommissions writes the answers of sites to removals of nodes.
func (w writer) decommissions() {
	for _, c := range w.list {
		for _, node := range slices.Sorted(maps.Keys(c.changes.Decommissions)) {
			w.b.Queue(`update requests set done_at = now(), refused = $4 where site = $1 and kind = $2 and node = $3 and not pending`,
				c.site, string(fleet.RequestDecommission), node, c.changes.Decommissions[node])
		}
	}
}
