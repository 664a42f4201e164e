package listdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// decommissioning returns the progress of the removal of a node; nil: it was not requested.
func (s *Lists) decommissioning(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (*fleet.Decommissioning, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (d *fleet.Decommissioning, err error) {
		d = &fleet.Decommissioning{}
		return d, row.Scan(&d.RequestedAt, &d.DoneAt, &d.Refused)
	}, `select requested_at, done_at, refused from requests where site = $1 and kind = $2 and node = $3`, site, string(fleet.RequestDecommission), node)
	if err != nil || len(list) == 0 {
		return nil, pgdb.Classify("read removal of node", err)
	}
	return list[0], nil
}

// KeptVolumes lists the volumes of a site that outlived their deployments, by node,
// deployment and name. An empty node or deployment means all. A node names
// protocol.MaxVolumes of them at most.
func (s *Lists) KeptVolumes(ctx context.Context, site protocol.SiteID, node protocol.NodeID, deployment protocol.DeploymentName) ([]fleet.KeptVolume, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (v fleet.KeptVolume, err error) {
		var removed int64
		err = row.Scan(&v.Site, &v.Node, &v.Deployment, &v.Volume, &v.Bytes, &removed, &v.Unsynced, &v.Purging, &v.NodeState, &v.ReportedAt)
		if removed > 0 {
			at := time.UnixMilli(removed).UTC()
			v.RemovedAt = &at
		}
		return v, err
	}, `select n.site, n.id, v->>'deployment', v->>'name', coalesce((v->>'bytes')::bigint, 0), coalesce((v->>'removedMillis')::bigint, 0), coalesce((v->>'unsynced')::boolean, false),
			exists (select from requests r where r.site = n.site and r.kind = $4 and r.node = n.id and r.deployment = v->>'deployment'
				and r.volume in ('', v->>'name')),
			`+nodeState+`, greatest(s.last_event_at, st.reported_at)
		from nodes n join sites s on s.id = n.site left join streams st on st.site = s.id and st.stream = '',
		lateral jsonb_array_elements(coalesce(n.inventory->'volumes', '[]')) v
		where n.site = $1 and ($2 = '' or n.id = $2) and ($3 = '' or v->>'deployment' = $3) order by 2, 3, 4`,
		site, node, deployment, string(fleet.RequestPurge))
	return list, pgdb.Classify("list kept volumes", err)
}
